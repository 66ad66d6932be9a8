"""train.log: all that was printed, whatever becomes of the terminal."""

import contextlib
import io
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from workbench.errors import WorkbenchError
from workbench.runs import LogTee


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "train.log"


@contextlib.contextmanager
def stdout_into(descriptor: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with os.fdopen(descriptor, "w", encoding="utf-8") as stream, monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", stream)
        yield


def test_both_streams_are_shown_and_kept(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = sys.stdout, sys.stderr
    with LogTee(log):
        print("to out")
        print("to err", file=sys.stderr)
        print("no newline", end="")
    assert (sys.stdout, sys.stderr) == before
    print("afterwards")
    shown = capsys.readouterr()
    assert shown.out == "to out\nno newlineafterwards\n"
    assert shown.err == "to err\n"
    assert log.read_text() == "to out\nto err\nno newline\n"


def test_a_line_that_is_redrawn_is_kept_in_its_last_state(
    log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with LogTee(log):
        for percent in range(100):
            print(f"\rpreparing {percent}%", end="")
        print("\rprepared      \r\nnext")
    assert log.read_text() == "prepared      \nnext\n"
    assert "preparing 50%" in capsys.readouterr().out


def test_lines_of_both_streams_do_not_mix(log: Path) -> None:
    with LogTee(log):
        print("half ", end="")
        print("error", file=sys.stderr)
        print("whole")
    assert log.read_text() == "error\nhalf whole\n"


def test_a_terminal_that_hangs_up_is_dropped_and_the_log_goes_on(
    log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    master, slave = os.openpty()
    with stdout_into(slave, monkeypatch), LogTee(log):
        assert sys.stdout.isatty()
        print("before")
        os.close(master)
        print("after")
        print("long after", flush=True)
        assert not sys.stdout.isatty()
    assert log.read_text() == "before\nafter\nlong after\n"


def test_a_pipe_without_a_reader_is_dropped_and_the_log_goes_on(
    log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reading, writing = os.pipe()
    with stdout_into(writing, monkeypatch), LogTee(log):
        print("before")
        os.close(reading)
        print("after")
    assert log.read_text() == "before\nafter\n"


def test_a_terminal_that_cannot_say_a_character_shows_a_stand_in(
    log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = io.BytesIO()
    with monkeypatch.context() as patch:
        terminal = io.TextIOWrapper(shown, encoding="ascii", newline="\n")
        patch.setattr(sys, "stdout", terminal)
        with LogTee(log):
            print("5 µs")
    assert shown.getvalue() == b"5 ?s\n"
    assert log.read_text(encoding="utf-8") == "5 µs\n"


PRINT = """
import sys
from pathlib import Path
from workbench.runs import LogTee
with LogTee(Path(sys.argv[1])):
    print("out")
    print("err", file=sys.stderr)
    if sys.argv[2:]:
        sys.stdin.readline()
        for _ in range(3):
            print("into nothing")
        print("last words", end="")
"""


def test_a_detached_run_whose_output_is_the_log_has_each_line_once(log: Path) -> None:
    with log.open("a") as file:
        subprocess.run([sys.executable, "-c", PRINT, str(log)], stdout=file, stderr=file, check=True)
    assert log.read_text() == "out\nerr\n"


def test_a_run_whose_reader_is_gone_still_ends_with_its_own_exit_code(log: Path) -> None:
    command = [sys.executable, "-c", PRINT, str(log), "more"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as process:
        assert process.stdin and process.stdout and process.stderr
        assert process.stdout.readline() == "out\n"
        process.stdout.close()
        process.stdin.write("go\n")
        process.stdin.flush()
        assert process.stderr.read() == "err\n"
        process.wait()
    assert process.returncode == 0
    assert log.read_text() == "out\nerr\n" + "into nothing\n" * 3 + "last words\n"


def test_a_log_that_fills_the_disk_does_not_end_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with LogTee(Path("/dev/full")):
        print("shown all the same")
    assert capsys.readouterr().out == "shown all the same\n"
    with pytest.raises(WorkbenchError, match="cannot be written"), LogTee(tmp_path / "nowhere" / "train.log"):
        pass
