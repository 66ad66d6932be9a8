"""The helper process answers one question after the other, belongs to whoever asks, and is replaced when it is gone."""

from __future__ import annotations

import json
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

from workbench.errors import ConfigurationError, WorkbenchError
from workbench.profiles.model import helper_process
from workbench.profiles.model.helper_process import GivenUpError, HelperProcess

ECHO = """
    import json, os, sys, time
    print(json.dumps({"idle_bytes": 4096}), flush=True)
    for line in sys.stdin:
        question = json.loads(line)
        for sentence in question.get("says", ()):
            print(json.dumps({"tell": sentence}), flush=True)
        if question.get("dies"):
            os.kill(os.getpid(), 9)
        time.sleep(question.get("lasts_s", 0))
        if "wrong" in question:
            print(json.dumps({"error": question["wrong"], "exit_code": 2}), flush=True)
        else:
            message = {"answer": [os.getpid(), question["ask"]]}
            print(json.dumps({**message, "leaves": True} if question.get("leaves") else message), flush=True)
    """


def silent(_: str) -> None:
    pass


def is_there(pid: int) -> bool:
    """Whether the process lives, and is not only still to be collected."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.fixture
def helper(monkeypatch: pytest.MonkeyPatch) -> Iterator[HelperProcess]:
    monkeypatch.setattr(helper_process, "COMMAND", (sys.executable, "-c", textwrap.dedent(ECHO)))
    with HelperProcess() as helper:
        yield helper


def test_several_questions_are_answered_by_one_process(helper: HelperProcess) -> None:
    assert helper.pid is None
    helper.start()
    said: list[str] = []
    for number in range(3):
        question = {"ask": f"question {number}", "says": [f"on {number}"]}
        assert helper.ask(question, said.append) == [helper.pid, f"question {number}"]
    assert said == ["on 0", "on 1", "on 2"]
    assert helper.idle_bytes == 4096


def test_a_wrong_question_is_told_and_the_next_one_is_answered(helper: HelperProcess) -> None:
    pid, _ = helper.ask({"ask": "first"}, silent)
    with pytest.raises(ConfigurationError, match=r"^no such model$"):
        helper.ask({"ask": "second", "wrong": "no such model"}, silent)
    assert helper.ask({"ask": "third"}, silent) == [pid, "third"]


def test_one_that_dies_over_a_question_says_so_and_is_started_anew_for_the_next(
    helper: HelperProcess,
) -> None:
    with pytest.raises(WorkbenchError, match="memory runs out"):
        helper.ask({"ask": "model_profile", "dies": True}, silent)
    pid, said = helper.ask({"ask": "again"}, silent)
    assert said == "again"
    os.kill(pid, signal.SIGKILL)
    while is_there(pid):
        time.sleep(0.001)
    other, _ = helper.ask({"ask": "and again"}, silent)
    assert other != pid


def test_one_that_has_grown_too_large_to_wait_is_started_anew(helper: HelperProcess) -> None:
    first, _ = helper.ask({"ask": "large", "leaves": True}, silent)
    second, _ = helper.ask({"ask": "small"}, silent)
    assert second != first and not is_there(first)


def test_an_answer_that_nobody_waits_for_is_never_that_of_the_next_question(helper: HelperProcess) -> None:
    said: list[str] = []
    with pytest.raises(GivenUpError):
        helper.ask({"ask": "old", "says": ["at it"], "lasts_s": 0.2}, said.append, lambda: bool(said))
    pid = helper.pid
    assert helper.ask({"ask": "new"}, silent) == [pid, "new"]


def test_a_process_that_goes_on_too_long_with_what_nobody_wants_is_replaced(
    helper: HelperProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(helper_process, "PATIENCE_S", 0.1)
    said: list[str] = []
    with pytest.raises(GivenUpError):
        helper.ask({"ask": "old", "says": ["at it"], "lasts_s": 60}, said.append, lambda: bool(said))
    pid = helper.pid
    assert pid is not None
    other, answer = helper.ask({"ask": "new"}, silent)
    assert answer == "new" and other != pid and not is_there(pid)


def test_two_that_ask_at_once_take_turns(helper: HelperProcess) -> None:
    answers: list[str] = []

    def ask(name: str) -> None:
        answers.append(helper.ask({"ask": name, "lasts_s": 0.05}, silent)[1])

    threads = [threading.Thread(target=ask, args=(name,)) for name in "abc"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(answers) == ["a", "b", "c"]


def test_stopping_it_gives_up_what_it_is_asked_and_leaves_no_process(helper: HelperProcess) -> None:
    pids: list[int] = []

    def stop(_: str) -> None:
        assert helper.pid is not None
        pids.append(helper.pid)
        helper.stop()

    with pytest.raises(GivenUpError):
        helper.ask({"ask": "long", "says": ["at it"], "lasts_s": 60}, stop)
    assert not is_there(pids[0]) and helper.pid is None


def test_it_ends_with_whoever_asks_however_that_ends(tmp_path: Path) -> None:
    """Also by SIGKILL, and while it still imports what questions need."""
    program = """
        import time
        from workbench.profiles.model.helper_process import HelperProcess
        helper = HelperProcess()
        helper.start()
        print(helper.pid, flush=True)
        time.sleep(60)
        """
    asker = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program)], stdout=subprocess.PIPE, text=True
    )
    assert asker.stdout is not None
    with asker.stdout:
        pid = int(asker.stdout.readline())
    assert is_there(pid)
    asker.kill()
    asker.wait()
    until = time.monotonic() + 20
    while is_there(pid) and time.monotonic() < until:
        time.sleep(0.01)
    assert not is_there(pid)


@pytest.mark.slow
def test_a_real_one_that_is_warm_answers_at_once_and_says_what_it_holds() -> None:
    table = {
        "architecture": "gpt2",
        "config": {"n_layer": 2, "n_embd": 64, "n_head": 2, "n_positions": 64, "vocab_size": 256},
    }
    with HelperProcess() as helper:
        helper.start()
        while helper.idle_bytes is None:
            time.sleep(0.01)
        assert 50 << 20 < helper.idle_bytes < 1 << 30
        pid = helper.pid
        for layers in (2, 3):
            model = {**table, "config": {**table["config"], "n_layer": layers}}
            answer = helper.ask({"ask": "model_profile", "model": model}, silent)
            assert json.dumps(answer) and helper.pid == pid
