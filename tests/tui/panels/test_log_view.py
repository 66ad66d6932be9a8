"""The log view follows, searches, filters and copies, and survives what happens to the file."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from panel_host import SIZES, check_box, picture, with_widget
from settled_pilot import settled
from textual.pilot import Pilot

from workbench.tui.glyphs import BLOCKS, PLAIN, Glyphs
from workbench.tui.panels.log.log_reading import PAGE_LINES
from workbench.tui.panels.log.log_view import LogView
from workbench.tui.panels.log.log_window import MAX_LINES

SIZE = (60, 12)


async def press(pilot: Pilot[None], *keys: str) -> None:
    """Each key with time for what it reads; letters of a search are typed at once."""
    while keys:
        at_once = keys.index("enter") + 1 if keys[0] == "slash" and "enter" in keys else 1
        await pilot.press(*keys[:at_once])
        await settled(pilot)
        keys = keys[at_once:]


def with_log(
    path: Path,
    scenario: Callable[[Pilot[None], LogView], Awaitable[None]],
    size: tuple[int, int] = SIZE,
    glyphs: Glyphs = BLOCKS,
) -> None:
    async def run(pilot: Pilot[None], view: LogView) -> None:
        view.focus()
        view.open(path)
        await settled(pilot)
        await scenario(pilot, view)

    with_widget(LogView(glyphs), size, run)


def steps(path: Path, count: int, first: int = 0) -> None:
    with path.open("a") as file:
        file.writelines(f"step {i:06}/100000 | loss 3.2\n" for i in range(first, first + count))


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "train.log"


def test_the_end_is_seen_and_followed(log: Path) -> None:
    steps(log, 3000)

    async def scenario(pilot: Pilot[None], view: LogView) -> None:
        assert "step 002999" in picture(view)[-2] and "following" in picture(view)[0]
        steps(log, 5, 3000)
        view.look()
        await settled(pilot)
        assert "step 003004" in picture(view)[-2]
        await press(pilot, "up", "up")
        steps(log, 5, 3005)
        view.look()
        await settled(pilot)
        assert "step 003004" in picture(view)[-2] and "following" not in picture(view)[0]
        assert view.current is not None and "step 003002" in view.current.text
        await press(pilot, "end")
        assert "step 003009" in picture(view)[-2]

    with_log(log, scenario)


def test_moving_up_reads_the_lines_before_page_by_page_and_down_those_after(log: Path) -> None:
    steps(log, 2 * MAX_LINES)

    async def scenario(pilot: Pilot[None], view: LogView) -> None:
        view.reading.following = False
        seen = 2 * MAX_LINES - 1
        for _ in range(12):
            view.action_scroll_rows(-450)
            await settled(pilot)
            seen -= 450
            assert view.current is not None and f"step {seen:06}" in view.current.text
            assert len(view.reading.window.lines) <= MAX_LINES
        numbers = [int(line.text[5:11]) for line in view.reading.window.lines]
        assert numbers == list(range(numbers[0], numbers[-1] + 1))
        while not view.reading.window.at_end:
            view.action_scroll_rows(450)
            await settled(pilot)
        numbers = [int(line.text[5:11]) for line in view.reading.window.lines]
        assert numbers == list(range(numbers[0], 2 * MAX_LINES)) and len(numbers) <= MAX_LINES

    with_log(log, scenario)


def test_the_picture_stands_still_while_lines_above_are_read(log: Path) -> None:
    steps(log, 2 * PAGE_LINES)

    async def scenario(pilot: Pilot[None], view: LogView) -> None:
        view.reading.following = False
        for rows in (-PAGE_LINES * 6 // 10, 3):
            view.action_scroll_rows(rows)
            before = picture(view)
        await settled(pilot)
        assert len(view.reading.window.lines) == 2 * PAGE_LINES and picture(view) == before

    with_log(log, scenario)


def test_what_was_given_up_does_not_come_back(log: Path) -> None:
    steps(log, 3)

    async def scenario(pilot: Pilot[None], view: LogView) -> None:
        done: list[str] = []
        view.reading.begin(lambda stopped: "old", done.append)
        view.reading.begin(lambda stopped: "new", done.append)
        await settled(pilot)
        assert done == ["new"]

    with_log(log, scenario)


def test_home_goes_to_the_first_line_of_the_file(log: Path) -> None:
    steps(log, 3 * PAGE_LINES)

    async def scenario(pilot: Pilot[None], view: LogView) -> None:
        await press(pilot, "home")
        assert "step 000000" in picture(view)[1]
        await press(pilot, "pagedown", "pagedown")
        assert view.current is not None and view.current.text.startswith("step 000018")

    with_log(log, scenario)


def test_a_long_run_is_followed_in_bounded_memory(log: Path) -> None:
    steps(log, 100)

    async def scenario(pilot: Pilot[None], view: LogView) -> None:
        for i in range(4):
            steps(log, 2000, 100 + 2000 * i)
            view.look()
            await settled(pilot)
            assert f"step {2099 + 2000 * i:06}" in picture(view)[-2]
        assert len(view.reading.window.lines) == MAX_LINES

    with_log(log, scenario)


def test_search_goes_up_then_on_and_back(log: Path) -> None:
    steps(log, 2500)
    with log.open("a") as file:
        file.write("Evaluation: 3.1\n")
    steps(log, 2500, 2500)

    async def scenario(pilot: Pilot[None], view: LogView) -> None:
        await press(pilot, "slash", *"004444", "enter")
        assert view.current is not None and "step 004444" in view.current.text
        await press(pilot, "slash", *"evalX", "backspace")
        assert picture(view)[-2].startswith("│/eval ")
        await press(pilot, "enter")
        assert view.current.text == "Evaluation: 3.1" and "/eval" in picture(view)[0]
        await press(pilot, "n")
        assert "not found above" in picture(view)[-1] and view.current.text == "Evaluation: 3.1"
        await press(pilot, "N")
        assert "not found below" in picture(view)[-1]
        await press(pilot, "escape", "slash", *"step", "enter", "n")
        assert "step 002498" in view.current.text
        await press(pilot, "N", "N")
        assert "step 002500" in view.current.text

    with_log(log, scenario)


def test_letters_typed_into_a_search_are_no_commands(log: Path) -> None:
    steps(log, 10)

    async def scenario(pilot: Pilot[None], view: LogView) -> None:
        await press(pilot, "slash", *"fyenN")
        assert view.reading.following and view.reading.level == "all"
        await press(pilot, "escape", "f")
        assert not view.reading.following and view.searched == ""

    with_log(log, scenario)


def test_levels_show_warnings_and_errors_of_the_whole_file(log: Path) -> None:
    log.write_text("workbench: warning: slow disk\n")
    steps(log, 3000)
    with log.open("a") as file:
        file.write("RuntimeError: CUDA error\n")
    steps(log, 3000)

    async def scenario(pilot: Pilot[None], view: LogView) -> None:
        await press(pilot, "e")
        assert [line.text for line in view.reading.window.lines] == [
            "workbench: warning: slow disk",
            "RuntimeError: CUDA error",
        ]
        rows = picture(view)
        assert "warnings and errors" in rows[0] and "! workbench" not in rows[1] and "!workbench" in rows[1]
        with log.open("a") as file:
            file.write("step 1\nwarning: swap\n")
        view.look()
        await settled(pilot)
        assert view.reading.window.lines[-1].text == "warning: swap" and len(view.reading.window.lines) == 3
        await press(pilot, "e")
        assert [line.text for line in view.reading.window.lines] == ["RuntimeError: CUDA error"]
        await press(pilot, "e")
        assert view.reading.level == "all" and len(view.reading.window.lines) == PAGE_LINES

    with_log(log, scenario)


def test_a_level_without_lines_says_so(log: Path) -> None:
    steps(log, 10)

    async def scenario(pilot: Pilot[None], view: LogView) -> None:
        await press(pilot, "e", "e")
        assert "No errors in the log." in picture(view)[1]

    with_log(log, scenario)


def test_the_current_line_is_copied_whole(log: Path) -> None:
    log.write_text("first\n" + "long " * 40 + "\nlast\n")

    async def scenario(pilot: Pilot[None], view: LogView) -> None:
        await press(pilot, "up", "y")
        assert pilot.app.clipboard == "long " * 40
        assert "copied" in picture(view)[-1]

    with_log(log, scenario)


def test_long_lines_are_cut_visibly_and_moved_sideways(log: Path) -> None:
    log.write_text("0123456789" * 10 + "\n")

    async def scenario(pilot: Pilot[None], view: LogView) -> None:
        assert "…" in picture(view)[1]
        await press(pilot, "right", "right", "right")
        assert "…" not in picture(view)[1] and "0123456789" * 4 in picture(view)[1]

    with_log(log, scenario)


def test_a_log_that_is_cut_off_replaced_or_gone_is_survived(log: Path) -> None:
    steps(log, 100)

    async def scenario(pilot: Pilot[None], view: LogView) -> None:
        log.write_text("anew\n")
        view.look()
        await settled(pilot)
        assert [line.text for line in view.reading.window.lines] == ["anew"]
        log.unlink()
        view.look()
        await settled(pilot)
        assert "no train.log" in picture(view)[-1] and "anew" in picture(view)[1]
        log.write_text("another\n")
        view.look()
        await settled(pilot)
        assert [line.text for line in view.reading.window.lines] == ["another"]

    with_log(log, scenario)


def test_a_log_that_is_not_there_yet_is_waited_for(log: Path) -> None:
    async def scenario(pilot: Pilot[None], view: LogView) -> None:
        assert "There is no train.log yet." in picture(view)[1]
        steps(log, 1)
        view.look()
        await settled(pilot)
        assert "step 000000" in picture(view)[1]

    with_log(log, scenario)


def test_the_last_words_without_an_end_of_line_are_seen(log: Path) -> None:
    log.write_text("step 1\nKilled")

    async def scenario(pilot: Pilot[None], view: LogView) -> None:
        assert "Killed" in picture(view)[2]

    with_log(log, scenario)


@pytest.mark.parametrize("glyphs", [BLOCKS, PLAIN], ids=["blocks", "plain"])
@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
def test_the_log_fills_its_box_and_no_more(log: Path, size: tuple[int, int], glyphs: Glyphs) -> None:
    log.write_bytes("naïve 名前\t\x1b[31mred\x1b[0m\n".encode() * 50 + b"\xff\xfe\x00\n" + b"x" * 9000)

    async def scenario(pilot: Pilot[None], view: LogView) -> None:
        check_box(picture(view), size, ascii_only=glyphs.ascii)
        await press(pilot, "up", "up", "right", "slash", *"red", "enter")
        check_box(picture(view), size, ascii_only=glyphs.ascii)

    with_log(log, scenario, size, glyphs)


def test_the_pointer_chooses_a_line_and_the_wheel_moves(log: Path) -> None:
    steps(log, 100)

    async def scenario(pilot: Pilot[None], view: LogView) -> None:
        await pilot.click(view, offset=(5, 3))
        assert view.current is not None and "step 000092" in view.current.text and not view.reading.following

    with_log(log, scenario)
