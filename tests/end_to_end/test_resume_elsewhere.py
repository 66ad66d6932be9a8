"""A run that was stopped goes on under another placement, overlap, format and precision, and says what became of its
state; the best and every Mth of its checkpoints stay."""

from __future__ import annotations

import json

import pytest
from trainers import Trainers, events, exit_code, losses, wait_for

from workbench.config import load_config
from workbench.runs import RunDirectory, read_run_metrics, read_status
from workbench.runs.checkpoints import read_best

CHANGES = (
    "train.gradient_accumulation=2",
    "train.activation_checkpointing=true",
    "schedule.type=wsd",
    "schedule.warmup_steps=3",
    "schedule.warmup_type=log",
    "schedule.warmup_ratio=0.1",
    "schedule.total_steps=20",
    "checkpoint.every=3",
    "checkpoint.keep=1",
    "checkpoint.keep_every=4",
    "checkpoint.keep_best=true",
    "evaluate.every=5",
    "log.tensorboard=true",
)


@pytest.fixture(scope="module")
def whole(trainers: Trainers) -> RunDirectory:
    process, run = trainers.train("whole", *CHANGES, "train.steps=14")
    assert exit_code(process) == 0, run.log.read_text()
    return run


@pytest.mark.slow
def test_it_goes_on_to_the_bit_in_another_placement_and_then_nearly_in_another_precision_and_format(
    trainers: Trainers, whole: RunDirectory
) -> None:
    pytest.importorskip("tensorboard")
    process, run = trainers.train("moved", *CHANGES, "train.steps=7")
    assert exit_code(process) == 0
    disk = trainers.folder / "fast"
    disk.mkdir()
    moved = ("train.steps=14", "offload.state=disk", f"offload.disk_path={disk}", "offload.overlap=serial")
    resumed = trainers.call("run", "--resume", run.path, *(f"--set={change}" for change in moved))
    assert resumed.returncode == 0, resumed.stderr
    [line] = [line for line in resumed.stdout.splitlines() if line.startswith("resuming from step-00000007")]
    assert 'offload.state = "disk" (saved under "host")' in line
    assert 'offload.overlap = "serial" (saved under "exact")' in line
    assert line.endswith(": the state is taken over bit for bit")
    assert losses(run) == losses(whole)
    [event] = events(run, "resume")
    assert event.fields["changed"]["offload.state"] == ["host", "disk"] and event.fields["converted"] == []

    names = sorted(path.name for path in run.checkpoints.iterdir())
    best = read_best(run.checkpoints)
    assert best == read_best(whole.checkpoints) and best is not None
    assert {"best.json", f"step-{best.step:08}", "step-00000004", "step-00000008", "step-00000014"} <= set(
        names
    )
    lowest = min(events(run, "evaluation"), key=lambda event: event.fields["loss"])
    assert best.step == lowest.fields["step"]

    sets = ("train.steps=18", "offload.state_format=half", "train.precision=bf16", "offload.state=host")
    ended = trainers.call("resume", run.name, *(f"--set={change}" for change in sets))
    assert ended.returncode == 0, ended.stderr
    wait_for(lambda: read_status(run).phase in ("finished", "failed"), "the end")
    log = run.log.read_text()
    assert read_status(run).phase == "finished", log
    assert "working weights are bfloat16 instead of float32, their masters the same to the bit" in log
    assert "exp_avg and exp_avg_sq are converted from exact to half, rounded once" in log
    assert len(events(run, "resume")[-1].fields["converted"]) == 2
    assert load_config(run.config).offload.state_format == "half"
    metrics = read_run_metrics(run)
    assert list(metrics.column("step")) == list(range(1, 19))
    assert list(metrics.column("loss"))[14] == pytest.approx(list(metrics.column("loss"))[13], abs=0.5)
    manifest = json.loads((run.checkpoints / "step-00000018" / "state" / "manifest.json").read_text())
    assert manifest["weights_dtype"] == "bfloat16"

    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    board = EventAccumulator(str(run.path / "tensorboard"))
    board.Reload()
    assert [event.step for event in board.Scalars("training/grad_norm")] == list(range(1, 19))

    refused = trainers.call("resume", run.name, "--set", "train.steps=20", "--set", "offload.state=nowhere")
    assert refused.returncode == 2 and "offload.state" in refused.stderr
    another = trainers.call(
        "run", "--resume", run.path, "--set=train.steps=20", "--set=model.config.n_embd=16"
    )
    assert another.returncode == 2, another.stderr
    assert "is a checkpoint of another model: " in another.stderr and "Traceback" not in another.stderr
    assert load_config(run.config).model.config["n_embd"] == 32
