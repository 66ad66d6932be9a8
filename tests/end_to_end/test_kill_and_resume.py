"""A run that is killed at any moment and resumed has, bit for bit, the losses of one that never stopped."""

from __future__ import annotations

import random
import shutil
import signal
import subprocess
import time

import pytest
from trainers import PATIENCE_S, Trainers, events, exit_code, losses, wait_for

from workbench.runs import RunDirectory, liveness, read_run_metrics, read_status
from workbench.runs.checkpoints import read_best

STEPS = 30
CHANGES = (
    f"train.steps={STEPS}",
    "train.gradient_accumulation=2",
    "checkpoint.every=3",
    "evaluate.every=7",
    "sample.every=11",
    "checkpoint.keep_best=true",
    "checkpoint.keep_every=12",
)
"""GPT-2 has dropout of 0.1 unless told otherwise, so every step also depends on torch's random numbers."""


@pytest.fixture(scope="module")
def uninterrupted(trainers: Trainers) -> RunDirectory:
    process, run = trainers.train("whole", *CHANGES)
    assert exit_code(process) == 0
    return run


def moments(run: RunDirectory, generator: random.Random) -> str:
    """Wait for a random moment of a living run; says which."""
    kind = generator.choice(["step", "save", "time"])
    done = read_run_metrics(run).last().get("step", 0)
    if kind == "step":
        step = min(done + generator.randint(1, 12), STEPS - 2)
        wait_for(lambda: read_run_metrics(run).last().get("step", 0) >= step, f"step {step}")
    elif kind == "save":
        saves = generator.randint(1, 3)
        partial = set()

        def saving() -> bool:
            partial.update(path.name for path in run.checkpoints.glob(".step-*.partial"))
            return len(partial) >= saves or not_alive(run)

        wait_for(saving, "a save")
    else:
        wait_for(lambda: read_run_metrics(run).last().get("step", 0) > done or not_alive(run), "a step")
        until = time.monotonic() + generator.random()
        wait_for(lambda: time.monotonic() > until, "a moment")
    return kind


def not_alive(run: RunDirectory) -> bool:
    return liveness(read_status(run)) not in ("running", "paused", "stale")


def kill_and_resume(trainers: Trainers, name: str, kills: int, seed: int) -> RunDirectory:
    generator = random.Random(seed)
    process, run = trainers.train(name, *CHANGES)
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
    for number in range(kills):
        moments(run, generator)
        process.send_signal(signal.SIGKILL)
        process.wait(timeout=PATIENCE_S)
        if read_status(run).phase == "finished":
            return run
        last = number == kills - 1
        process = trainers.start("run", trainers.folder / f"{name}.toml", "--resume", "auto", **quiet)
        if not last:
            resumes = number + 1
            wait_for(lambda: len(events(run, "resume")) >= resumes or process.poll() is not None, "a resume")  # noqa: B023
    assert process.wait(timeout=PATIENCE_S) == 0
    return run


def assert_equal_to(run: RunDirectory, whole: RunDirectory) -> None:
    assert losses(run) == losses(whole)
    assert list(losses(run)) == list(range(1, STEPS + 1))
    mine, theirs = events(run, "evaluation"), events(whole, "evaluation")
    by_step = {event.fields["step"]: event.fields["loss"] for event in mine}
    assert by_step == {event.fields["step"]: event.fields["loss"] for event in theirs}
    for sample in whole.samples.iterdir():
        assert (run.samples / sample.name).read_bytes() == sample.read_bytes()
    names = sorted(path.name for path in run.checkpoints.iterdir())
    assert names == sorted(path.name for path in whole.checkpoints.iterdir())
    assert {f"step-{step:08}" for step in (12, 24, 30)} <= set(names)
    assert read_best(whole.checkpoints) is not None
    for path in (whole.checkpoints / names[-1] / "state").iterdir():
        if path.name != "manifest.json":
            other = run.checkpoints / names[-1] / "state" / path.name
            assert other.read_bytes() == path.read_bytes(), path.name
    assert read_best(run.checkpoints) == read_best(whole.checkpoints)
    status = read_status(run)
    assert (status.phase, status.step, status.exit_code) == ("finished", STEPS, 0)


def test_killed_at_a_random_moment_it_ends_as_if_nothing_had_been(
    trainers: Trainers, uninterrupted: RunDirectory
) -> None:
    assert_equal_to(kill_and_resume(trainers, "killed", kills=1, seed=1), uninterrupted)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2, 14))
def test_killed_at_many_more_random_moments_it_ends_as_if_nothing_had_been(
    trainers: Trainers, uninterrupted: RunDirectory, seed: int
) -> None:
    assert_equal_to(kill_and_resume(trainers, f"killed-{seed}", kills=8, seed=seed), uninterrupted)


def test_validation_losses_are_in_the_records_of_their_steps(uninterrupted: RunDirectory) -> None:
    metrics = read_run_metrics(uninterrupted)
    recorded = {
        int(step): loss
        for step, loss in zip(metrics.column("step"), metrics.column("validation_loss"), strict=True)
        if loss == loss
    }
    told = {event.fields["step"]: event.fields["loss"] for event in events(uninterrupted, "evaluation")}
    assert recorded == told
    assert list(told) == [*range(7, STEPS, 7), STEPS]
    assert read_status(uninterrupted).validation_loss == told[STEPS]


@pytest.mark.slow
def test_a_run_killed_before_its_configuration_was_written_is_passed_over(trainers: Trainers) -> None:
    path = trainers.preset("early")
    RunDirectory.create(trainers.runs, "early")
    ended = trainers.call("run", path, "--resume", "auto", "--set", "train.steps=1")
    assert ended.returncode == 0 and "no unfinished run of early" in ended.stderr
    finished = RunDirectory.list(trainers.runs)[-1].name
    again = trainers.call("run", path, "--resume", "auto", "--set=train.steps=2", "--set=data.source=none")
    assert f"workbench resume {finished} --set train.steps=N" in again.stderr


def copied(run: RunDirectory, name: str) -> RunDirectory:
    """A copy of a run, as if it had been killed just before its end."""
    copy = run.path.with_name(run.name.replace("whole", name))
    shutil.copytree(run.path, copy)
    (copy / "status.json").unlink()
    return RunDirectory.open(copy)


@pytest.mark.slow
def test_a_run_whose_newest_checkpoint_is_damaged_goes_on_from_the_one_before(
    trainers: Trainers, uninterrupted: RunDirectory
) -> None:
    run = copied(uninterrupted, "damaged")
    newest = run.checkpoints / "step-00000030"
    state = next(path for path in (newest / "state").iterdir() if path.name.endswith("exp_avg"))
    data = bytearray(state.read_bytes())
    data[7] ^= 16
    state.write_bytes(data)
    ended = trainers.call("run", "--resume", run.path)
    assert ended.returncode == 0, ended.stderr
    file = state.relative_to(newest)
    assert f"{newest.name}: {file} is damaged" in ended.stderr
    before = sorted(path.name for path in uninterrupted.checkpoints.glob("step-*"))[-2]
    assert f"resuming from {before}" in ended.stdout
    assert losses(run) == losses(uninterrupted)
    assert (run.checkpoints / f"damaged-{newest.name}").is_dir()
    assert (run.checkpoints / newest.name / "DONE").exists()


def test_without_any_whole_checkpoint_nothing_is_begun_again_and_nothing_lost(
    trainers: Trainers, uninterrupted: RunDirectory
) -> None:
    run = copied(uninterrupted, "all-damaged")
    for path in run.checkpoints.glob("step-*/state/manifest.json"):
        path.write_text("{}")
    before = sorted(str(path) for path in run.checkpoints.rglob("*"))
    ended = trainers.call("run", "--resume", run.path)  # refused before torch is imported
    assert ended.returncode == 1
    assert f"run {run.name} cannot be resumed: all its" in ended.stderr
    assert sorted(str(path) for path in run.checkpoints.rglob("*")) == before
    assert not run.status.exists(), "what is refused before it is begun leaves the run as it was"
    assert losses(run) == losses(uninterrupted)
