"""A child process answers one question after the other, is replaced when it is gone, and never outlives its parent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import workbench
from workbench.errors import ConfigurationError, WorkbenchError
from workbench.system import child_process
from workbench.system.child_process import (
    CancelledError,
    ChildError,
    ChildProcess,
    module_arguments,
    package_environment,
    run_lines,
)

SERVER = """
    import os, sys, time
    from workbench.errors import ConfigurationError
    from workbench.system.child_process import serve

    def answer(question, report):
        print("a library's remark")
        for sentence in question.get("reports", ()):
            report(sentence)
        if question.get("dies"):
            print("the last line", file=sys.stderr)
            os.kill(os.getpid(), question["dies"])
        time.sleep(question.get("lasts_s", 0))
        if "refused" in question:
            raise ConfigurationError(question["refused"])
        return [os.getpid(), 1 / question.get("divisor", 1)]

    serve(answer)
    """


def is_alive(pid: int) -> bool:
    """Return True for a process that runs, False for one that is gone or only not yet collected."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_for_end(pid: int, limit_s: float = 20.0) -> bool:
    until = time.monotonic() + limit_s
    while is_alive(pid) and time.monotonic() < until:
        time.sleep(0.01)
    return not is_alive(pid)


@pytest.fixture
def child() -> Iterator[ChildProcess]:
    with ChildProcess("-c", textwrap.dedent(SERVER)) as child:
        yield child


def test_one_process_answers_several_questions_and_reports_on_the_way(child: ChildProcess) -> None:
    assert child.pid is None and child.held_bytes == 0
    child.start()
    reports: list[str] = []
    for number in (1, 2):
        assert child.ask({"reports": [f"on {number}"], "divisor": number}, reports.append) == [
            child.pid,
            1 / number,
        ]
    assert reports == ["on 1", "on 2"]
    assert child.held_bytes > 1 << 20


def test_a_refused_question_has_the_childs_message_and_the_next_one_is_answered(child: ChildProcess) -> None:
    with pytest.raises(ConfigurationError, match=r"^no such model$"):
        child.ask({"refused": "no such model"})
    with pytest.raises(ChildError, match=r"^ZeroDivisionError: "):
        child.ask({"divisor": 0})
    assert child.ask({}) == [child.pid, 1]


@pytest.mark.parametrize(
    ("number", "words"),
    [(signal.SIGKILL, "memory ran out"), (signal.SIGTERM, "was ended by signal 15: the last line")],
)
def test_a_process_that_dies_is_reported_and_replaced(child: ChildProcess, number: int, words: str) -> None:
    with pytest.raises(ChildError, match=words):
        child.ask({"dies": number})
    pid, _ = child.ask({})
    os.kill(pid, signal.SIGKILL)
    while child.pid is not None:
        time.sleep(0.01)
    assert child.ask({})[0] != pid


def test_a_process_that_cannot_be_started_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    child = ChildProcess("-c", "")
    child.start()
    with pytest.raises(WorkbenchError, match="could not be started"):
        child.ask({})


@pytest.mark.parametrize(("lasts_s", "patience_s", "same"), [(0.2, 60, True), (60, 0.1, False)])
def test_the_answer_to_a_cancelled_question_is_never_the_next_ones(
    child: ChildProcess, monkeypatch: pytest.MonkeyPatch, lasts_s: float, patience_s: float, same: bool
) -> None:
    """The process is kept where it soon finishes the cancelled question, and replaced where it does not."""
    monkeypatch.setattr(child_process, "PATIENCE_S", patience_s)
    cancelled = threading.Event()
    with pytest.raises(CancelledError):
        child.ask({"reports": ["at it"], "lasts_s": lasts_s}, lambda _: cancelled.set(), cancelled)
    before = child.pid
    pid, answer = child.ask({"divisor": 4})
    assert answer == 0.25 and (pid == before) == same
    assert before is not None and is_alive(before) == same


def test_questions_of_several_threads_take_turns(child: ChildProcess) -> None:
    answers: list[float] = []
    threads = [
        threading.Thread(target=lambda n=n: answers.append(child.ask({"divisor": n, "lasts_s": 0.05})[1]))  # type: ignore[misc]
        for n in (1, 2, 4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(answers) == [0.25, 0.5, 1]


def test_stopping_it_cancels_the_question_and_leaves_no_process(child: ChildProcess) -> None:
    child.start()
    pid = child.pid
    with pytest.raises(CancelledError):
        child.ask({"reports": ["at it"], "lasts_s": 60}, lambda _: child.stop())
    assert pid is not None and not is_alive(pid) and child.pid is None


# Lines

PRINTS = 'import os, sys\nprint(os.getpid())\nprint(sys.argv[1:])\nprint("on stderr", file=sys.stderr)\n'
WAITS = "import os, time\nprint(os.getpid())\ntime.sleep(60)\n"


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "child_prints.py").write_text(PRINTS)
    (tmp_path / "child_waits.py").write_text(WAITS)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))


def test_lines_are_stdout_and_stderr_of_a_module(modules: None) -> None:
    pid, *lines = run_lines(("child_prints", "--of", "it"), threading.Event())
    assert [line.strip() for line in lines] == ["['--of', 'it']", "on stderr"]
    assert not is_alive(int(pid))


def test_lines_that_are_cancelled_or_no_longer_read_end_the_process(modules: None) -> None:
    cancelled = threading.Event()
    lines, other = (run_lines(("child_waits",), cancelled) for _ in range(2))
    pid, other_pid = int(next(lines)), int(next(other))
    other.close()  # type: ignore[attr-defined]
    assert is_alive(pid) and not is_alive(other_pid)
    threading.Thread(target=cancelled.set).start()
    with pytest.raises(CancelledError):
        next(lines)
    assert not is_alive(pid)
    with pytest.raises(CancelledError):
        next(run_lines(("child_waits",), cancelled))


@pytest.mark.parametrize(
    "start",
    [
        f"child = ChildProcess('-c', {textwrap.dedent(SERVER)!r}); child.start(); print(child.pid, flush=True)",
        "lines = run_lines(('child_waits',), threading.Event()); print(next(lines), flush=True)",
    ],
    ids=["questions", "lines"],
)
def test_a_child_ends_with_its_parent_however_that_ends(modules: None, start: str) -> None:
    program = "import threading, time\nfrom workbench.system.child_process import ChildProcess, run_lines\n"
    parent = subprocess.Popen(
        [sys.executable, "-c", f"{program}{start}\ntime.sleep(60)"], stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    with parent.stdout:
        pid = int(parent.stdout.readline())
    assert is_alive(pid)
    parent.kill()
    parent.wait()
    assert wait_for_end(pid)


@pytest.mark.parametrize("safe_path", [False, True])
def test_a_child_runs_nothing_that_lies_in_the_current_folder(tmp_path: Path, safe_path: bool) -> None:
    for name in ("runpy", "json", "torch", "types"):
        (tmp_path / f"{name}.py").write_text(f"open('{name} was here', 'w')")
    environment = package_environment()
    if not safe_path:
        del environment["PYTHONSAFEPATH"]  # as Python 3.10, which does not know it
    arguments = module_arguments("workbench", safe_path=safe_path)
    command = [sys.executable, *arguments, "--version"]
    found = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60)
    assert (found.returncode, found.stdout) == (0, f"workbench {workbench.__version__}\n"), found.stderr
    assert not [path.name for path in tmp_path.glob("* was here")]
