"""Dialogs: every key and the mouse give the answer they promise, on small terminals, too."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from textual.app import App
from textual.pilot import Pilot
from textual.screen import ModalScreen
from textual.widgets import Button, OptionList

from workbench.tui.dialogs import Choice, Confirm
from workbench.tui.glyphs import BLOCKS, PLAIN, Glyphs

OPTIONS = [("detach", "Detach: keep training"), ("stop", "Stop and save"), ("cancel", "Cancel")]
SIZES = [(60, 16), (80, 24), (30, 8)]


def answers_of(
    dialog: Callable[[], ModalScreen[object]],
    act: Callable[[Pilot[None]], Awaitable[object]],
    size: tuple[int, int] = (80, 24),
) -> list[object]:
    """What a dialog gives back when `act` is done with it."""
    answers: list[object] = []

    async def scenario() -> None:
        app: App[None] = App()
        async with app.run_test(size=size) as pilot:
            app.push_screen(dialog(), answers.append)
            await pilot.pause()
            await act(pilot)
            await pilot.pause()

    asyncio.run(scenario())
    return answers


def confirm(*, danger: bool = False) -> ModalScreen[object]:
    return Confirm("Delete", "Delete [run] 'a'?", "Delete it", "Keep it", danger=danger)  # type: ignore[return-value]


def choice() -> ModalScreen[object]:
    return Choice("Leave", OPTIONS, "A run is going.")  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("keys", "danger", "answer"),
    [
        (["y"], True, True),
        (["n"], False, False),
        (["escape"], False, False),
        (["enter"], False, True),
        (["enter"], True, False),
        (["left", "enter"], True, True),
        (["right", "enter"], False, False),
        (["tab", "enter"], False, False),
    ],
)
def test_a_question_is_answered_by_keys_and_a_dangerous_one_not_by_enter_alone(
    keys: list[str], danger: bool, answer: bool
) -> None:
    assert answers_of(lambda: confirm(danger=danger), lambda pilot: pilot.press(*keys)) == [answer]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(("button", "answer"), [("#yes", True), ("#no", False)])
def test_a_question_is_answered_by_the_mouse_at_every_size(
    size: tuple[int, int], button: str, answer: bool
) -> None:
    assert answers_of(confirm, lambda pilot: pilot.click(button), size) == [answer]


def test_a_click_beside_a_dialog_is_no_answer() -> None:
    assert answers_of(confirm, lambda pilot: pilot.click(offset=(1, 1))) == [False]
    assert answers_of(choice, lambda pilot: pilot.click(offset=(1, 1))) == [None]


@pytest.mark.parametrize(
    ("keys", "answer"),
    [(["enter"], "detach"), (["down", "enter"], "stop"), (["3"], "cancel"), (["escape"], None)],
)
def test_one_of_several_is_chosen_by_keys(keys: list[str], answer: str | None) -> None:
    assert answers_of(choice, lambda pilot: pilot.press(*keys)) == [answer]


def test_a_digit_beyond_the_options_does_nothing() -> None:
    assert answers_of(choice, lambda pilot: pilot.press("4", "0")) == []


@pytest.mark.parametrize("size", SIZES)
def test_one_of_several_is_chosen_by_the_mouse_at_every_size(size: tuple[int, int]) -> None:
    assert answers_of(choice, lambda pilot: pilot.click(OptionList, offset=(4, 1)), size) == ["stop"]


def test_a_text_longer_than_the_terminal_leaves_the_answers_in_reach() -> None:
    def long() -> ModalScreen[object]:
        return Confirm("Title " * 30, "A long sentence about this. " * 200)  # type: ignore[return-value]

    async def see(pilot: Pilot[None]) -> None:
        screen = pilot.app.screen
        for button in screen.query(Button):
            assert screen.region.contains_region(button.region) and button.region.height == 1
        await pilot.click("#no")

    assert answers_of(long, see, (60, 16)) == [False]


def text_of(app: App[None]) -> str:
    strips = app.screen._compositor.render_strips()
    return "\n".join("".join(segment.text for segment in strip) for strip in strips)


@pytest.mark.parametrize("glyphs", [PLAIN, BLOCKS])
@pytest.mark.parametrize("size", SIZES)
def test_a_text_is_shown_whole_and_in_plain_mode_in_ascii(size: tuple[int, int], glyphs: Glyphs) -> None:
    words = [f"word{number}" for number in range(9)]
    seen: list[str] = []

    async def see(pilot: Pilot[None]) -> None:
        seen.append(text_of(pilot.app))
        await pilot.press("escape")

    dialogs: list[Callable[[], ModalScreen[object]]] = [
        lambda: Confirm("A", " ".join(words), glyphs=glyphs),  # type: ignore[return-value]
        lambda: Choice("A", OPTIONS, " ".join(words[:4]), glyphs=glyphs),  # type: ignore[return-value]
    ]
    for dialog in dialogs:
        answers_of(dialog, see, size)
    assert all(word in seen[0] for word in words)
    assert all(label in seen[1] for _, label in OPTIONS)
    assert all(text.isascii() is glyphs.ascii for text in seen)
