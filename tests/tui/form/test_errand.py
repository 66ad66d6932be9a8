"""An errand's process is gone when it has ended, by whatever way."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from workbench.tui.form.errand import CalledOffError, Errand

ANSWERS = """\
import os, sys
print(os.getpid(), flush=True)
print(sys.stdin.read().upper(), flush=True)
print("on stderr", file=sys.stderr, flush=True)
"""
WAITS = "import os, time\nprint(os.getpid(), flush=True)\ntime.sleep(60)\n"


@pytest.fixture(autouse=True)
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "errand_answers.py").write_text(ANSWERS)
    (tmp_path / "errand_waits.py").write_text(WAITS)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))


def is_there(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_it_gives_what_is_printed_line_by_line() -> None:
    pid, *said = Errand().lines(("errand_answers",), "a question")
    assert [line.strip() for line in said] == ["A QUESTION", "on stderr"]
    assert not is_there(int(pid))


def test_called_off_from_another_thread_it_ends_at_once() -> None:
    errand = Errand()
    lines = errand.lines(("errand_waits",))
    pid = int(next(lines))
    assert is_there(pid)
    threading.Thread(target=errand.call_off).start()
    with pytest.raises(CalledOffError):
        next(lines)
    assert not is_there(pid)


def test_called_off_before_it_began_nothing_is_started() -> None:
    errand = Errand()
    errand.call_off()
    with pytest.raises(CalledOffError):
        next(errand.lines(("errand_waits",)))


def test_whoever_stops_listening_ends_it() -> None:
    lines = Errand().lines(("errand_waits",))
    pid = int(next(lines))
    lines.close()
    assert not is_there(pid)
