"""Reading a log in pieces: any window of any size equals that part of all lines, and what changes is noticed."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from workbench.tui.panels.log import log_file
from workbench.tui.panels.log.log_file import (
    LONGEST_LINE,
    LogLine,
    Piece,
    find,
    level_of,
    read_after,
    read_before,
    read_end,
    read_new,
)


def never() -> bool:
    return False


def write_log(path: Path, seed: int, count: int) -> list[LogLine]:
    """Lines of random lengths, some empty, some warnings and errors; gives what reading all of it must give."""
    source = random.Random(seed)
    lines: list[LogLine] = []
    data = b""
    for i in range(count):
        word = source.choice(["", "", "", "warning: slow", "ValueError: no", "naïve"])
        text = source.choice([f"step {i:05} {word} {'x' * source.randrange(60)}", ""]).rstrip()
        lines.append(LogLine(len(data), text, level_of(text.encode())))
        data += text.encode() + b"\n"
    path.write_bytes(data)
    return lines


@pytest.fixture(params=[200, 1000, 256 * 1024], ids=lambda size: f"chunks of {size}")
def chunk(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(log_file, "CHUNK_BYTES", request.param)
    return int(request.param)


@pytest.mark.parametrize("level", log_file.LEVELS)
@pytest.mark.parametrize("seed", range(3))
def test_the_end_and_what_comes_before_and_after_are_those_of_the_whole_file(
    tmp_path: Path, chunk: int, seed: int, level: log_file.Level
) -> None:
    path = tmp_path / "train.log"
    lines = [line for line in write_log(path, seed, 1600) if log_file.passes(line.level, level)]
    end = read_end(path, level, 40, never)
    assert end.lines == tuple(lines[-40:])
    before = read_before(path, end.start, level, 40, never)
    assert before.lines == tuple(lines[-80:-40]) and before.end == end.start
    after = read_after(path, before.start, level, 40, never)
    assert after.lines[:40] == tuple(lines[-80:-40]) and after.start == before.start
    assert read_after(path, 0, level, 10**6, never).lines == tuple(lines)


def test_a_line_that_is_not_finished_waits_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    path.write_bytes(b"one\ntwo\nthr")
    end = read_end(path, "all", 10, never)
    assert [line.text for line in end.lines] == ["one", "two"] and end.tail == "thr"
    with path.open("ab") as file:
        file.write(b"ee\nfo")
    new = read_new(path, end, "all", 10, never)
    assert new is not None and [line.text for line in new.lines] == ["three"]
    assert new.start == end.end and new.tail == "fo"


def test_nothing_is_read_while_nothing_has_come(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    write_log(path, 0, 20)
    assert read_new(path, read_end(path, "all", 10, never), "all", 10, never) is None


@pytest.mark.parametrize("how", ["cut off", "replaced", "written anew and longer"])
def test_a_file_that_is_another_one_now_is_read_from_its_end_anew(tmp_path: Path, how: str) -> None:
    path = tmp_path / "train.log"
    write_log(path, 0, 50)
    known = read_end(path, "all", 10, never)
    if how == "cut off":
        path.write_text("first\nsecond\n")
    elif how == "replaced":
        path.rename(tmp_path / "train.log.1")
        path.write_text("first\nsecond\n" * 500)
    else:
        with path.open("r+b") as file:
            file.write(b"first\nsecond\n" * 500)
    new = read_new(path, known, "all", 2, never)
    assert new is not None and [line.text for line in new.lines] == ["first", "second"]


def test_a_missing_file_is_a_sentence_and_not_an_exception(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    assert read_end(path, "all", 10, never).problem == "There is no train.log yet."
    known = Piece(identity=(1, 1), size=5, end=5)
    gone = read_new(path, known, "all", 10, never)
    assert gone is not None and gone.problem
    assert find(path, "x", 0, down=True, wanted="all", stopped=never) is None


@pytest.mark.parametrize("seed", range(3))
def test_searching_finds_the_nearest_line_either_way(tmp_path: Path, seed: int) -> None:
    path = tmp_path / "train.log"
    lines = write_log(path, seed, 200)
    hits = [line.offset for line in lines if "SLOW" in line.text.upper()]
    for line in lines[::17]:
        above = max((hit for hit in hits if hit < line.offset), default=None)
        below = min((hit for hit in hits if hit > line.offset), default=None)
        assert find(path, "Slow", line.offset, down=False, wanted="all", stopped=never) == above
        assert find(path, "Slow", line.offset, down=True, wanted="all", stopped=never) == below


def test_a_search_in_one_level_passes_over_lines_of_others(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    path.write_text("warning: disk\ndisk is fine\nerror: none\n")
    assert find(path, "disk", 99, down=False, wanted="all", stopped=never) == 14
    assert find(path, "disk", 99, down=False, wanted="warning", stopped=never) == 0


def test_the_end_of_a_huge_file_takes_one_chunk(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    with path.open("wb") as file:
        file.truncate(500 << 20)
        file.seek(0, 2)
        file.write(b"\n" + b"".join(b"step %05d\n" % i for i in range(100_000)))
    end = read_end(path, "all", 1000, never)
    assert len(end.lines) == 1000 and end.lines[-1].text == "step 99999"
    assert end.start > (500 << 20)


def test_a_line_without_end_takes_no_more_memory_than_a_chunk(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    path.write_bytes(b"y" * (2 << 20))
    end = read_end(path, "all", 50, never)
    assert 0 < len(end.lines) <= 64 and all(len(line.text) <= LONGEST_LINE for line in end.lines)


def test_a_task_that_is_stopped_ends_at_the_next_chunk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "train.log"
    write_log(path, 0, 500)
    monkeypatch.setattr(log_file, "CHUNK_BYTES", 1000)
    asked = iter([False, False, True])
    assert len(read_end(path, "all", 10**6, lambda: next(asked)).lines) < 120


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
    assert level_of(text.encode()) == level
