"""Starting a trainer in a process of its own: seen at once, owing nothing to its parent, collected and heard."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from stored_checkpoints import store_checkpoint

from workbench.errors import ConfigurationError, WorkbenchError
from workbench.presets import shipped_folder
from workbench.runs import RunDirectory, Status, launch, liveness, read_status, write_status
from workbench.runs.status import process_started

QUICKSTART = shipped_folder() / "quickstart.toml"
PRESET = QUICKSTART.read_text(encoding="utf-8")
SLEEPER = "import time; print('awake', flush=True); time.sleep(600)"
DYING = "import sys; print('one'); print('no room', file=sys.stderr); sys.exit(3)"


def wait_for(met: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not met():
        assert time.monotonic() < deadline, "it did not happen within 30 s"
        time.sleep(0.005)


@pytest.fixture
def trainer(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """Lets a short program stand for the trainer; what still lives at the end is ended."""
    before = {child.pid for child in psutil.Process().children()}

    def stands_for(program: str) -> None:
        monkeypatch.setattr(launch, "trainer_command", lambda *_, **__: [sys.executable, "-c", program])

    yield stands_for
    for child in psutil.Process().children():
        if child.pid not in before:
            child.kill()
    wait_for(lambda: {child.pid for child in psutil.Process().children()} <= before)


def test_a_started_run_is_starting_from_the_first_moment(
    tmp_path: Path, trainer: Callable[[str], None]
) -> None:
    trainer(SLEEPER)
    run = launch.start(PRESET, "quick start", tmp_path / "runs", ["train.steps=7"])
    status = read_status(run)
    assert (status.phase, status.step, status.total_steps, liveness(status)) == ("starting", 0, 7, "running")
    assert run.path.parent == tmp_path / "runs" and run.is_of_preset("quick start")
    assert "steps = 7" in run.config.read_text()
    assert os.getsid(status.pid) == status.pid
    assert Path(f"/proc/{status.pid}/fd/0").readlink() == Path("/dev/null")
    assert Path(f"/proc/{status.pid}/fd/1").readlink() == run.log
    assert launch.exit_reason(run).exit_code is None
    wait_for(lambda: launch.exit_reason(run).lines == ("awake",))


def test_a_trainer_that_dies_leaves_its_last_words_its_exit_code_and_no_zombie(
    tmp_path: Path, trainer: Callable[[str], None]
) -> None:
    trainer(DYING)
    run = launch.start(PRESET, "quickstart", tmp_path)
    pid = read_status(run).pid
    wait_for(lambda: read_status(run).exit_code is not None)
    words = launch.exit_reason(run)
    assert (words.exit_code, set(words.lines)) == (3, {"one", "no room"})
    assert "exit code 3" in words.message
    assert liveness(read_status(run)) == "died"
    assert not psutil.pid_exists(pid)


def test_a_trainer_that_was_killed_is_told_with_its_signal(
    tmp_path: Path, trainer: Callable[[str], None]
) -> None:
    trainer(SLEEPER)
    run = launch.start(PRESET, "quickstart", tmp_path)
    os.kill(read_status(run).pid, signal.SIGKILL)
    wait_for(lambda: read_status(run).exit_code is not None)
    assert read_status(run).exit_code == 137
    assert "SIGKILL" in read_status(run).message and "memory" in read_status(run).message


def test_a_run_that_somebody_took_over_is_not_written_by_who_started_the_one_before(
    tmp_path: Path, trainer: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    collected = []
    collect = launch._collect
    monkeypatch.setattr(launch, "_collect", lambda *arguments: collected.append(collect(*arguments)))
    trainer(SLEEPER)
    run = launch.start(PRESET, "quickstart", tmp_path)
    first = read_status(run).pid
    run.acquire()
    os.kill(first, signal.SIGKILL)
    wait_for(lambda: bool(collected))
    assert read_status(run).exit_code is None
    run.release()


PARENT = """
import signal, sys, time
from pathlib import Path
from workbench.runs import launch
for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
    signal.signal(number, signal.SIG_DFL)  # which nohup and shells have ignored for all that they start
launch.trainer_command = lambda *_, **__: [sys.executable, "-c", sys.argv[2]]
run = launch.start(Path(sys.argv[3]).read_text(), "quickstart", Path(sys.argv[1]))
print(run.path, flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGKILL])
def test_a_trainer_survives_what_ends_its_parent_and_the_group_of_its_parent(
    tmp_path: Path, number: signal.Signals
) -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, str(tmp_path), SLEEPER, str(QUICKSTART)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    assert parent.stdin is not None and parent.stdout is not None
    run = RunDirectory.open(Path(parent.stdout.readline().strip()))
    pid = read_status(run).pid
    try:
        wait_for(lambda: launch.exit_reason(run).lines == ("awake",))
        assert Path(f"/proc/{pid}/fd/0").readlink() == Path("/dev/null")
        os.killpg(parent.pid, number)
        parent.wait(timeout=30)
        assert process_started(pid) is not None
        assert liveness(read_status(run)) == "running"
    finally:
        parent.kill()
        os.kill(pid, signal.SIGKILL)
        parent.stdin.close()
        parent.stdout.close()
        wait_for(lambda: process_started(pid) is None)


def test_a_stopped_run_is_resumed_in_place_with_what_it_had(
    tmp_path: Path, trainer: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer(DYING)
    run = launch.start(PRESET, "quickstart", tmp_path)
    wait_for(lambda: read_status(run).exit_code is not None)
    write_status(
        run, Status(phase="stopped", step=5, total_steps=9, loss=2.5, exit_code=143, message="stopped")
    )
    trainer(SLEEPER)
    launch.resume(run, ["train.steps=11"])
    status = read_status(run)
    assert (status.phase, status.step, status.total_steps, status.loss) == ("starting", 5, 11, 2.5)
    assert (status.exit_code, status.message) == (None, "")
    with pytest.raises(WorkbenchError, match="running already"):
        launch.resume(run)


@pytest.mark.parametrize("more", ["train.steps=751", "train.epochs=2"])
def test_a_finished_run_goes_on_where_more_is_asked_for(
    tmp_path: Path, trainer: Callable[[str], None], more: str
) -> None:
    trainer(SLEEPER)
    run = RunDirectory.create(tmp_path, "p")
    run.config.write_text(PRESET)
    write_status(run, Status(phase="finished", step=750, total_steps=750, exit_code=0))
    with pytest.raises(WorkbenchError, match="no checkpoint to continue from is left"):
        launch.resume(run, [more])
    store_checkpoint(run, 750, {})
    launch.resume(run, [more])
    assert read_status(run).phase == "starting"


def test_a_run_that_cannot_be_resumed_says_why_and_stays_as_it_is(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path, "p")
    write_status(run, Status(phase="stopped", step=5, total_steps=9, exit_code=143))
    with pytest.raises(ConfigurationError, match=r"config\.toml cannot be read"):
        launch.resume(run)
    run.config.write_text(PRESET)
    run.acquire()
    with pytest.raises(WorkbenchError, match="is training it already"):
        launch.resume(RunDirectory(run.path))
    run.release()
    (run.checkpoints / "step-00000005").mkdir()
    with pytest.raises(WorkbenchError, match="step-00000005: DONE is missing"):
        launch.resume(run)
    write_status(run, Status(phase="finished", step=750, total_steps=750, exit_code=0))
    with pytest.raises(WorkbenchError, match="all its 750 steps are done"):
        launch.resume(run)
    assert read_status(run).phase == "finished"
    assert not run.log.exists()


def test_the_command_is_that_of_a_detached_run(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path, "p")
    begin = [sys.executable, "-m", "workbench", "run", "--run-directory", str(run.path)]
    assert launch.trainer_command(run, resuming=False) == begin
    resumed = launch.trainer_command(run, resuming=True, overrides=["train.steps=9"])
    assert resumed == [*begin, "--resume", "auto", "--set=train.steps=9"]


def test_the_last_lines_of_a_log_of_any_length_are_read(tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert launch.tail(log, 5) == ()
    log.write_bytes(b"a\n\xff b\nhalf")
    assert launch.tail(log, 2) == ("\ufffd b", "half")
    assert launch.tail(log, 0) == ()
    log.write_text("".join(f"line {number}\n" for number in range(100_000)))
    assert launch.tail(log, 3) == ("line 99997", "line 99998", "line 99999")
    assert all(line.startswith("line ") for line in launch.tail(log, 100_000))


def test_it_brings_neither_torch_nor_textual_into_the_process_that_starts_runs(tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from workbench.runs import launch;"
        "launch.trainer_command = lambda *_, **__: [sys.executable, '-c', ''];"
        f"launch.start(Path({str(QUICKSTART)!r}).read_text(), 'quickstart', Path({str(tmp_path)!r}));"
        "print(*{name.partition('.')[0] for name in sys.modules})"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert not {"torch", "transformers", "textual"} & set(done.stdout.split())
