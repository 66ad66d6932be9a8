"""status.json: always whole, always readable, and honest about the process behind it."""

import errno
import json
import math
import os
import subprocess
import sys
import time
from dataclasses import replace

import pytest

from workbench.errors import WorkbenchError
from workbench.runs import RunDirectory, Status, liveness, read_status, status, write_status


def test_what_is_written_is_read_with_a_heartbeat_and_this_process(run: RunDirectory) -> None:
    before = time.time()
    write_status(run, Status(phase="training", step=7, total_steps=9, loss=2.5, message="on its way"))
    there = read_status(run)
    assert (there.phase, there.step, there.total_steps, there.loss) == ("training", 7, 9, 2.5)
    assert there.message == "on its way"
    assert there.pid == os.getpid()
    assert before <= there.heartbeat <= time.time()
    assert there.problem == ""
    assert liveness(there) == "running"


def test_a_loss_that_is_not_finite_stays_valid_json(run: RunDirectory) -> None:
    write_status(run, Status(phase="diverged", loss=math.nan, tokens_per_s=math.inf))
    json.loads(run.status.read_text(), parse_constant=pytest.fail)
    assert read_status(run).loss is None


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (None, "missing"),
        ("", "damaged"),
        ('{"phase": "train', "damaged"),
        ("[1, 2]", "expected a JSON object"),
        ("[" * 100_000, "damaged"),
        ('{"version": 99, "phase": "training", "step": 3, "new": {"a": 1}}', "version 99"),
        ('{"version": 1, "phase": "training", "step": "3"}', "step = '3'"),
        ('{"version": 1, "phase": 5, "step": 3}', "phase = 5"),
    ],
)
def test_a_status_that_cannot_be_read_says_what_is_wrong(
    run: RunDirectory, content: str | None, problem: str
) -> None:
    if content is not None:
        run.status.write_text(content)
    there = read_status(run)
    assert problem in there.problem
    if content is None or "training" not in content:
        assert liveness(there) == "unknown"
    else:
        assert there.phase == "training"


WRITE_FOREVER = """
import sys
from pathlib import Path
from workbench.runs import RunDirectory, Status, write_status
run = RunDirectory.open(Path(sys.argv[1]))
step = 0
while True:
    step += 1
    write_status(run, Status(phase="training", step=step, message="x" * (step % 5000)), durable=False)
    if step == 1:
        print("begun", flush=True)
"""


def test_a_reader_never_sees_half_a_status_also_when_the_writer_is_killed(run: RunDirectory) -> None:
    command = [sys.executable, "-c", WRITE_FOREVER, str(run.path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        writer.stdout.readline()
        steps = []
        while len(set(steps)) < 100:
            there = read_status(run)
            assert there.problem == ""
            steps.append(there.step)
        assert steps == sorted(steps)
        writer.kill()
        writer.wait()
    there = read_status(run)
    assert there.problem == ""
    assert liveness(there) == "died"


def test_a_disk_that_is_full_leaves_the_old_status_and_no_litter(
    run: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_status(run, Status(phase="training", step=1))

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(WorkbenchError, match=r"status\.json: cannot be written: No space left"):
        write_status(run, Status(phase="training", step=2))
    assert read_status(run).step == 1
    assert [path.name for path in run.path.iterdir() if path.name.startswith(".")] == []


def test_a_process_that_ended_is_dead_before_anybody_collects_it(run: RunDirectory) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        started = status.process_started(process.pid)
        assert started is not None
        there = Status(phase="training", pid=process.pid, pid_started=started, heartbeat=time.time())
        assert liveness(there) == "running"
        assert liveness(replace(there, phase="paused")) == "paused"
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert liveness(there) == "died"
        assert liveness(replace(there, phase="paused")) == "died"


def test_a_pid_that_belongs_to_another_process_now_means_dead() -> None:
    started = status.process_started(os.getpid())
    assert started is not None
    there = Status(phase="training", pid=os.getpid(), pid_started=started, heartbeat=time.time())
    assert liveness(there) == "running"
    assert liveness(replace(there, pid_started=started - 60)) == "died"


def test_an_old_heartbeat_is_stale_here_and_on_a_machine_that_cannot_be_asked() -> None:
    started = status.process_started(os.getpid())
    assert started is not None
    there = Status(phase="training", pid=os.getpid(), pid_started=started, heartbeat=1000.0)
    assert liveness(there, now=1001.0) == "running"
    assert liveness(there, now=1000.0 + status.STALE_AFTER_S + 1) == "stale"
    elsewhere = replace(there, host="another-machine", pid=2**22 + 1)
    assert liveness(elsewhere, now=1001.0) == "running"
    assert liveness(elsewhere, now=1000.0 + status.STALE_AFTER_S + 1) == "stale"
