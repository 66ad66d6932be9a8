"""Detached runs, and the commands that see and steer them through their directories."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import pytest
from trainers import Trainers, at_step, events, in_phase, wait_for

from workbench.runs import RunDirectory, liveness, read_run_metrics, read_status, send_control

pytestmark = pytest.mark.slow


def last_step(run: RunDirectory) -> int:
    return int(read_run_metrics(run).last().get("step", 0))


def listed(trainers: Trainers, run: RunDirectory) -> dict[str, object]:
    ended = trainers.call("runs", "--json")
    assert ended.returncode == 0
    [row] = [row for row in json.loads(ended.stdout) if row["name"] == run.name]
    return dict(row)


def ended(run: RunDirectory) -> bool:
    return liveness(read_status(run)) in ("finished", "stopped", "failed", "died")


def test_a_detached_run_is_seen_steered_stopped_killed_and_resumed(trainers: Trainers) -> None:
    forever = ("--set", "train.steps=1000000", "--set", "log.every=1000000")
    started = trainers.call("run", trainers.preset("detached"), "--detach", *forever)
    assert started.returncode == 0, started.stderr
    run = RunDirectory.open(Path(started.stdout.removesuffix("\n")))
    assert run.path.parent == trainers.runs

    # Named at once, and in a session of its own that no terminal and no parent can end.
    assert listed(trainers, run)["state"] == "running"
    pid = read_status(run).pid
    assert f"training in process {pid}; its log is {run.log}" in started.stderr
    assert os.getsid(pid) == pid != os.getsid(0)
    assert Path(f"/proc/{pid}/fd/0").readlink() == Path("/dev/null")
    assert Path(f"/proc/{pid}/fd/1").readlink() == Path(f"/proc/{pid}/fd/2").readlink() == run.log
    wait_for(at_step(run, 3), "steps")

    paused = trainers.call("pause", run.name)
    assert (paused.returncode, paused.stderr) == (0, "")
    step = last_step(run)
    assert paused.stdout == f"run {run.name}: paused after step {read_status(run).step}\n"
    wait_for(in_phase(run, "paused"), "the pause")
    assert listed(trainers, run)["state"] == "paused"
    step = last_step(run)

    second = trainers.call("run", "--resume", run.path)
    assert second.returncode == 1
    assert f"run {run.name}: process {pid} is training it already" in second.stderr
    automatic = trainers.call("run", trainers.folder / "detached.toml", "--resume")
    assert automatic.returncode == 1 and f"run {run.name} is paused already" in automatic.stderr

    saved = trainers.call("save", run.name)
    assert saved.stdout == f"run {run.name}: saved {run.checkpoints / f'step-{step:08}'}\n"
    assert [event.fields["step"] for event in events(run, "checkpoint")] == [step]
    assert last_step(run) == step

    assert trainers.call("resume", run.name).stdout == f"run {run.name}: continuing after step {step}\n"
    wait_for(at_step(run, step + 3), "steps after the pause")

    # A line that anybody may write, and one of nonsense.
    identity = send_control(run, "save")
    with run.control.open("a") as file:
        file.write('{"id": "x", "verb": "dance"}\nnonsense\n')
    wait_for(lambda: [e for e in events(run, "control") if e.fields["id"] == identity], "an answer")
    wait_for(lambda: len(events(run, "warning")) == 2, "warnings")

    stopped = trainers.call("stop")
    assert (stopped.returncode, "then saving" in stopped.stdout) == (0, True)
    wait_for(lambda: ended(run), "the end")
    row = listed(trainers, run)
    assert (row["state"], row["exit_code"], row["step"]) == ("stopped", 143, last_step(run))
    assert [e.fields["verb"] for e in events(run, "control")] == ["pause", "save", "resume", "save", "stop"]
    wait_for(lambda: not Path(f"/proc/{pid}").exists() or is_zombie(pid), "the end of the process")
    refused = trainers.call("save", run.name)
    assert refused.returncode == 1 and "cannot save: it was stopped at step" in refused.stderr

    # Started again and killed, it is known to have died.
    step = last_step(run)
    again = trainers.call("resume", run.name)
    assert (again.returncode, again.stdout) == (0, f"{run.path}\n")
    wait_for(at_step(run, step + 3), "steps")
    os.kill(read_status(run).pid, signal.SIGKILL)
    wait_for(lambda: liveness(read_status(run)) == "died", "death")
    assert listed(trainers, run)["state"] == "died"
    assert "died" in trainers.call("runs").stdout
    died = trainers.call("stop", run.name)
    assert died.returncode == 1 and "is gone; " in died.stderr

    # Started once more, and stopped long before it can train: it obeys as soon as it can.
    assert trainers.call("resume", run.name).returncode == 0
    assert trainers.call("stop", run.name).returncode == 0
    wait_for(lambda: ended(run), "the end")
    assert (read_status(run).phase, read_status(run).exit_code) == ("stopped", 143)
    assert last_step(run) == step + 1


def is_zombie(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except OSError:
        return True


def test_a_bad_configuration_is_told_by_the_parent_of_a_detached_run(trainers: Trainers) -> None:
    path = trainers.preset("detached-bad")
    for change in ("train.steps=0", "data.sequence_length=33"):
        refused = trainers.call("run", path, "--detach", "--set", change)
        assert (refused.returncode, refused.stdout) == (2, "")
        assert change.split("=")[0] in refused.stderr and "Traceback" not in refused.stderr
    assert trainers.run_of("detached-bad") is None


def test_overrides_of_a_detached_resumption_reach_it_and_are_kept_only_if_they_fit(
    trainers: Trainers,
) -> None:
    process, run = trainers.train("overridden", "train.steps=3")
    assert process.wait(timeout=60) == 0
    finished = trainers.call("run", "--resume", run.path)
    assert finished.returncode == 1
    assert (
        "is finished: all 3 steps are done (--set train.steps=N or train.epochs=N adds steps"
        in finished.stderr
    )
    assert trainers.call("resume").returncode == 1  # the latest
    planned = run.plan.read_text()

    # Settings that the saved cursor does not fit are refused, and do not stay in the way.
    refused = trainers.call(*("run", "--resume", run.path, "--set", "train.seed=5", "--set", "train.steps=5"))
    assert refused.returncode == 2 and "seed = 1234, and now it is 5" in refused.stderr
    assert "seed = 1234" in run.config.read_text()
    assert "steps = 3" in run.config.read_text()
    status = read_status(run)
    assert (status.phase, status.step, status.total_steps, status.exit_code) == ("finished", 3, 3, 0)
    assert status.message == "3 steps", "what is refused before it is begun leaves the run as it was"
    assert run.plan.read_text() == planned

    detached = trainers.call("run", "--resume", run.path, "--set", "train.steps=6", "--detach")
    assert detached.returncode == 0
    wait_for(lambda: read_status(run).phase == "finished", "the end")
    assert last_step(run) == 6
    assert "steps = 6" in run.config.read_text()
    assert read_status(run).heartbeat <= time.time()
