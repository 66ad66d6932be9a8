"""Dialogs: every key and the mouse give the answer they promise, on small terminals, too."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from screen_host import text_of
from textual.app import App
from textual.pilot import Pilot
from textual.widgets import Button, Input, OptionList

from workbench.tui.dialogs import AskText, Choice, Confirm, Dialog
from workbench.tui.glyphs import BLOCKS, PLAIN, Glyphs

OPTIONS = [("detach", "Detach: keep training"), ("stop", "Stop and save"), ("cancel", "Cancel")]
SIZES = [(60, 16), (80, 24), (30, 8)]
Act = Callable[[Pilot[None]], Awaitable[object]]


def answers_of(dialog: Dialog[Any], act: Act, size: tuple[int, int] = (80, 24)) -> list[object]:
    """What a dialog gives back when `act` is done with it."""
    answers: list[object] = []

    async def scenario() -> None:
        app: App[None] = App()
        async with app.run_test(size=size) as pilot:
            app.push_screen(dialog, answers.append)
            await pilot.pause()
            await act(pilot)
            await pilot.pause()

    asyncio.run(scenario())
    return answers


def confirm(*, danger: bool = False, glyphs: Glyphs = BLOCKS) -> Confirm:
    return Confirm("Delete", "Delete [run] 'a'?", "Delete it", "Keep it", danger=danger, glyphs=glyphs)


def choice(glyphs: Glyphs = BLOCKS) -> Choice:
    return Choice("Leave", OPTIONS, "A run is going.", glyphs=glyphs)


def ask_text() -> AskText:
    return AskText("Name", "a", lambda text: "" if text else "a name is needed", about="Of the copy.")


@pytest.mark.parametrize(
    ("dialog", "keys", "answers"),
    [
        (lambda: confirm(danger=True), ["y"], [True]),
        (confirm, ["n"], [False]),
        (confirm, ["escape"], [False]),
        (confirm, ["enter"], [True]),
        (lambda: confirm(danger=True), ["enter"], [False]),
        (lambda: confirm(danger=True), ["left", "enter"], [True]),
        (confirm, ["right", "enter"], [False]),
        (confirm, ["tab", "enter"], [False]),
        (choice, ["enter"], ["detach"]),
        (choice, ["down", "enter"], ["stop"]),
        (choice, ["c"], ["cancel"]),
        (choice, ["escape"], [None]),
        (choice, ["2", "x"], []),
        (ask_text, ["b", "space", "enter"], ["ab"]),
        (ask_text, ["backspace", "enter"], []),
        (ask_text, ["backspace", "enter", "c", "enter"], ["c"]),
        (ask_text, ["tab", "enter"], ["a"]),
        (ask_text, ["tab", "tab", "enter"], [None]),
        (ask_text, ["escape"], [None]),
    ],
)
def test_keys_answer(dialog: Callable[[], Dialog[Any]], keys: list[str], answers: list[object]) -> None:
    assert answers_of(dialog(), lambda pilot: pilot.press(*keys)) == answers


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(
    ("dialog", "target", "offset", "answer"),
    [
        (confirm, "#yes", (0, 0), True),
        (confirm, "#no", (0, 0), False),
        (choice, OptionList, (4, 1), "stop"),
        (confirm, None, (0, 0), False),
        (choice, None, (0, 0), None),
    ],
)
def test_clicks_answer_at_every_size_and_one_beside_the_box_cancels(
    dialog: Callable[[], Dialog[Any]],
    target: Any,
    offset: tuple[int, int],
    answer: object,
    size: tuple[int, int],
) -> None:
    assert answers_of(dialog(), lambda pilot: pilot.click(target, offset=offset), size) == [answer]


def test_a_problem_of_a_text_is_shown_and_the_text_stays() -> None:
    async def act(pilot: Pilot[None]) -> None:
        await pilot.press("backspace", "enter")
        await pilot.pause()
        assert "a name is needed" in text_of(pilot.app) and pilot.app.screen.query_one(Input).has_focus

    assert answers_of(ask_text(), act) == []


def test_a_text_longer_than_the_terminal_leaves_the_answers_in_reach() -> None:
    async def see(pilot: Pilot[None]) -> None:
        screen = pilot.app.screen
        for button in screen.query(Button):
            assert screen.region.contains_region(button.region) and button.region.height == 1
        await pilot.click("#no")

    assert answers_of(Confirm("Title " * 30, "A long sentence about this. " * 200), see, (60, 16)) == [False]


@pytest.mark.parametrize("glyphs", [PLAIN, BLOCKS])
@pytest.mark.parametrize("size", SIZES)
def test_a_text_is_shown_whole_and_in_plain_mode_in_ascii(size: tuple[int, int], glyphs: Glyphs) -> None:
    words = [f"word{number}" for number in range(9)]
    seen: list[str] = []

    async def see(pilot: Pilot[None]) -> None:
        seen.append(text_of(pilot.app))
        await pilot.press("escape")

    answers_of(Confirm("A", " ".join(words), glyphs=glyphs), see, size)
    answers_of(Choice("A", OPTIONS, " ".join(words[:4]), glyphs=glyphs), see, size)
    assert all(word in seen[0] for word in words)
    assert all(label in seen[1] for _, label in OPTIONS)
    assert all(text.isascii() is glyphs.ascii for text in seen)
