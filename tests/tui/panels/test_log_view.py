"""The log view follows, searches, filters and copies the end of a file, and survives what happens to the file."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from panel_host import BOXES, check_box, picture, shown_widget
from settled_pilot import settled
from textual.pilot import Pilot

from workbench.tui.glyphs import BLOCKS, Glyphs
from workbench.tui.panels.log import LONGEST_LINE, TAIL_LINES, LogTail, LogView, level_of

SIZE = (60, 12)


async def press(pilot: Pilot[None], *keys: str) -> None:
    await pilot.press(*keys)
    await settled(pilot)


@asynccontextmanager
async def shown_log(
    path: Path, size: tuple[int, int] = SIZE, glyphs: Glyphs = BLOCKS
) -> AsyncIterator[tuple[Pilot[None], LogView]]:
    async with shown_widget(LogView(glyphs), size) as (pilot, view):
        view.focus()
        view.open(path)
        await settled(pilot)
        yield pilot, view


async def look(pilot: Pilot[None], view: LogView) -> None:
    view.look()
    await settled(pilot)


def steps(path: Path, count: int, first: int = 0) -> None:
    with path.open("a") as file:
        file.writelines(f"step {i:06}/100000 | loss 3.2\n" for i in range(first, first + count))


def texts(view: LogView) -> list[str]:
    return [line[2:] for line in view.lines]


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "train.log"


async def test_the_end_is_seen_and_followed_until_one_moves_up(log: Path) -> None:
    steps(log, 3000)
    async with shown_log(log) as (pilot, view):
        assert "step 002999" in picture(view)[-2] and "following" in picture(view)[0]
        steps(log, 5, 3000)
        await look(pilot, view)
        assert "step 003004" in picture(view)[-2]
        await press(pilot, "up", "up")
        steps(log, 5, 3005)
        await look(pilot, view)
        assert "step 003002" in picture(view)[-2] and "following" not in picture(view)[0]
        await press(pilot, "end")
        assert "step 003009" in picture(view)[-2] and "following" in picture(view)[0]
        await press(pilot, "f")
        steps(log, 1, 3010)
        await look(pilot, view)
        assert "step 003009" in picture(view)[-2]


async def test_a_long_run_is_held_to_its_last_lines_and_what_one_reads_stays(log: Path) -> None:
    steps(log, TAIL_LINES)
    async with shown_log(log) as (pilot, view):
        await press(pilot, "pageup", "pageup")
        before = picture(view)[1:-1]
        steps(log, 50, TAIL_LINES)
        await look(pilot, view)
        assert len(view.lines) == TAIL_LINES and texts(view)[0].startswith("step 000050")
        assert picture(view)[1:-1] == before
        await press(pilot, "home")
        assert "step 000050" in picture(view)[1]


async def test_search_goes_up_then_on_and_back(log: Path) -> None:
    steps(log, 2500)
    with log.open("a") as file:
        file.write("Evaluation: 3.1\n")
    steps(log, 2500, 2500)
    async with shown_log(log) as (pilot, view):
        for keys, current, foot in (
            (("slash", *"004444", "enter"), "step 004444/100000 | loss 3.2", "line"),
            (("slash", *"evalX", "backspace", "enter"), "Evaluation: 3.1", "line"),
            (("n",), "Evaluation: 3.1", "not found above"),
            (("N",), "Evaluation: 3.1", "not found below"),
            (("escape", "slash", *"step", "enter", "n"), "step 002498/100000 | loss 3.2", "line"),
            (("N", "N"), "step 002500/100000 | loss 3.2", "line"),
        ):
            await press(pilot, *keys)
            assert view.current == current
            assert foot in picture(view)[-1] and any(current[:11] in row for row in picture(view))
        assert "/step" in picture(view)[0]


async def test_letters_typed_into_a_search_are_seen_and_are_no_commands(log: Path) -> None:
    steps(log, 10)
    async with shown_log(log) as (pilot, view):
        await press(pilot, "slash", *"fyenNo")
        assert "/fyenNo" in picture(view)[-1]
        assert view.following and view.level == "all"
        await press(pilot, "escape", "f")
        assert not view.following and view.searched is None


async def test_a_search_is_a_regular_expression_and_its_lines_are_counted_as_they_come(log: Path) -> None:
    steps(log, 300)
    async with shown_log(log) as (pilot, view):
        await press(pilot, "slash", *"STEP 0*(17|118)/", "enter")
        assert view.current.startswith("step 000118/") and "2/2" in picture(view)[0]
        await press(pilot, "n")
        assert view.current.startswith("step 000017/") and "1/2" in picture(view)[0]
        with log.open("a") as file:
            file.write("another step 17/300\n")
        await look(pilot, view)
        assert "1/3" in picture(view)[0]
        await press(pilot, "escape", "slash", *"step (", "enter")
        assert "is no regular expression" in picture(view)[-1]


async def test_what_was_found_is_counted_while_old_lines_go(log: Path) -> None:
    steps(log, TAIL_LINES)
    async with shown_log(log) as (pilot, view):
        await press(pilot, "slash", *"step 0*(5|9000)/", "enter")
        assert "2/2" in picture(view)[0]
        steps(log, 100, TAIL_LINES)
        await look(pilot, view)
        assert view.current.startswith("step 009000/") and "1/1" in picture(view)[0]


async def test_a_step_is_gone_to_or_the_next_one_that_is_there(log: Path) -> None:
    steps(log, 300)
    with log.open("a") as file:
        file.write("step 400/100000 | loss 3.2\n")
    async with shown_log(log) as (pilot, view):
        for typed, current, foot in (
            ("120", "step 000120/", "line"),
            ("350", "step 400/", "line"),
            ("401", "step 400/", "no step 401 or later"),
            ("x", "step 400/", "type the number of a step"),
        ):
            await press(pilot, "g", *typed, "enter")
            assert view.current.startswith(current) and foot in picture(view)[-1]


async def test_levels_show_warnings_and_errors_alone(log: Path) -> None:
    log.write_text("workbench: warning: slow disk\n")
    steps(log, 3000)
    with log.open("a") as file:
        file.write("RuntimeError: CUDA error\n")
    steps(log, 3000)
    async with shown_log(log) as (pilot, view):
        await press(pilot, "e")
        assert texts(view) == ["workbench: warning: slow disk", "RuntimeError: CUDA error"]
        rows = picture(view)
        assert "warnings and errors" in rows[0] and "!workbench" in rows[1] and "✗RuntimeError" in rows[2]
        with log.open("a") as file:
            file.write("step 1\nwarning: swap\n")
        await look(pilot, view)
        assert texts(view)[2:] == ["warning: swap"]
        await press(pilot, "e")
        assert texts(view) == ["RuntimeError: CUDA error"]
        await press(pilot, "e")
        assert view.level == "all" and len(view.lines) == 6004


async def test_a_level_without_lines_says_so(log: Path) -> None:
    steps(log, 10)
    async with shown_log(log) as (pilot, view):
        await press(pilot, "e", "e")
        assert "No errors in the log." in picture(view)[1]


async def test_a_line_is_chosen_by_the_pointer_and_copied_whole(log: Path) -> None:
    log.write_text("first\n" + "long " * 40 + "\nlast\n")
    async with shown_log(log) as (pilot, view):
        await press(pilot, "y")
        assert pilot.app.clipboard == "last" and "copied" in picture(view)[-1]
        await pilot.click(view, offset=(5, 2))
        assert picture(view)[2].startswith("│▸") and not view.following
        await press(pilot, "y")
        assert pilot.app.clipboard == "long " * 40


async def test_a_log_that_is_cut_off_replaced_or_gone_is_survived(log: Path) -> None:
    steps(log, 100)
    async with shown_log(log) as (pilot, view):
        log.write_text("anew\n")
        await look(pilot, view)
        assert texts(view) == ["anew"]
        log.unlink()
        await look(pilot, view)
        assert "no train.log" in picture(view)[-1] and texts(view) == ["anew"]
        log.write_text("another\n")
        await look(pilot, view)
        assert texts(view) == ["another"]


async def test_a_log_that_is_not_there_yet_is_waited_for(log: Path) -> None:
    async with shown_log(log) as (pilot, view):
        assert "There is no train.log yet." in picture(view)[1]
        steps(log, 1)
        await look(pilot, view)
        assert "step 000000" in picture(view)[1]


async def test_the_whole_file_is_opened_in_the_pager_or_a_sentence_says_why_not(
    log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps(log, 1)
    monkeypatch.setenv("PAGER", "true")
    async with shown_log(log) as (pilot, view):
        await press(pilot, "o")  # a test lends no terminal
        assert "a pager cannot run" in picture(view)[-1]


@BOXES
async def test_the_log_fills_its_box_and_no_more(log: Path, size: tuple[int, int], glyphs: Glyphs) -> None:
    log.write_bytes(
        "naïve 名前\t\x1b[31mred\x1b[0m\n".encode() * 50 + b"\xff\xfe\x00\n" + b"x" * 9000 + b"\n"
    )
    async with shown_log(log, size, glyphs) as (pilot, view):
        check_box(picture(view), size, ascii_only=glyphs.ascii)
        await press(pilot, "up", "up", "right", "slash", *"red", "enter")
        check_box(picture(view), size, ascii_only=glyphs.ascii)


# The file.

TAIL_BYTES = 1 << 16


@pytest.fixture
def short_tail(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workbench.tui.panels.log.TAIL_BYTES", TAIL_BYTES)


def test_only_whole_lines_are_given_until_nothing_more_comes(log: Path) -> None:
    log.write_bytes(b"one\n\ntwo\r\nthr")
    tail = LogTail(log)
    for append, lines in (
        (b"", ["one", "", "two"]),
        (b"ee\nfo", ["three"]),
        (b"ur", []),
        (b"", ["four"]),  # a process that died leaves its last line without an end
        (b"", []),
    ):
        with log.open("ab") as file:
            file.write(append)
        assert [line.text for line in tail.read().lines] == lines


@pytest.mark.usefixtures("short_tail")
@pytest.mark.parametrize("how", ["cut off", "replaced", "far ahead"])
def test_a_file_that_is_another_one_now_is_read_anew(log: Path, how: str) -> None:
    steps(log, 50)
    tail = LogTail(log)
    assert tail.read().anew and not tail.read().anew
    if how == "replaced":
        log.rename(log.with_suffix(".1"))
        log.write_text("first\nsecond\n" * 500)
    elif how == "cut off":
        log.write_text("first\nsecond\n")
    else:
        log.write_bytes(log.read_bytes() + b"first\nsecond\n" * (TAIL_BYTES // 12))
    found = tail.read()
    assert found.anew and [line.text for line in found.lines[-2:]] == ["first", "second"]


@pytest.mark.usefixtures("short_tail")
def test_of_a_huge_file_the_end_alone_is_read(log: Path) -> None:
    with log.open("wb") as file:
        file.truncate(500 << 20)
        file.seek(0, 2)
        file.write(b"\n" + b"".join(b"step %05d\n" % i for i in range(10_000)))
    found = LogTail(log).read()
    assert found.lines[-1].text == "step 09999"
    assert sum(len(line.text) for line in found.lines) <= TAIL_BYTES


@pytest.mark.usefixtures("short_tail")
def test_a_line_without_end_comes_in_parts(log: Path) -> None:
    log.write_bytes(b"y" * (2 * TAIL_BYTES))
    tail = LogTail(log)
    tail.read()
    lines = tail.read().lines
    assert lines and all(len(line.text) <= LONGEST_LINE for line in lines)


@pytest.mark.parametrize(
    ("text", "level"),
    [
        ("step 00120/10000 | loss 3.2145", "all"),
        ("workbench: warning: the disk failed once", "warning"),
        ("workbench: runs: cannot be written", "error"),
        ("torch.OutOfMemoryError: CUDA out of memory", "error"),
        ("Traceback (most recent call last):", "error"),
    ],
)
def test_lines_have_the_level_of_their_words(text: str, level: str) -> None:
    assert level_of(text) == level
