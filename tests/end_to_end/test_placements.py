"""`workbench run` with weights and state in every tier: it trains, resumes after a kill, and clears up its disk."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from trainers import Trainers, at_step, events, exit_code, losses, wait_for

from workbench.config import load_config
from workbench.runs import read_lanes, read_plan, read_run_metrics

pytestmark = pytest.mark.slow

STEPS = 14
CHANGES = (
    f"train.steps={STEPS}",
    "train.gradient_accumulation=2",
    "train.activation_checkpointing=true",
    "checkpoint.every=4",
    "evaluate.every=6",
    "offload.chunk_mib=1",
)

ALL_ON_DISK = ("offload.weights=disk", "offload.state=disk")
PLACEMENTS = {
    "bf16-on-disk-compact": (
        *(*ALL_ON_DISK, "offload.state_format=compact", "train.precision=bf16"),
        *("train.gradient_accumulation=1", "train.gradient_clipping=0"),
    ),
    "fp16-state-on-disk": ("offload.weights=host", "offload.state=disk", "train.precision=fp16"),
    "delayed-bf16": (
        *("offload.weights=host", "offload.overlap=delayed", "offload.delay_warmup=3"),
        *("train.precision=bf16", "offload.state_format=half"),
    ),
    "all-on-disk": ALL_ON_DISK,
    "all-on-device": ("offload.state=device",),
    "half-of-the-state-on-disk": ("offload.state=disk", "offload.device_fraction=0.5"),
    "fp16-in-memory": ("train.precision=fp16",),
    "delayed-on-disk": ("offload.state=disk", "offload.overlap=delayed", "offload.delay_warmup=3"),
    "serial-on-disk": (*ALL_ON_DISK, "offload.overlap=serial"),
    "activations-on-host": ("offload.weights=host", "offload.activations=host"),
}


@pytest.fixture(scope="module")
def fast_disk(trainers: Trainers) -> Path:
    folder = trainers.folder / "fast"
    folder.mkdir(exist_ok=True)
    return folder


def changes_of(changes: tuple[str, ...], disk: Path) -> tuple[str, ...]:
    # What comes later counts.
    return (*CHANGES, *changes, *([f"offload.disk_path={disk}"] if "offload.state=disk" in changes else []))


@pytest.mark.parametrize("name", PLACEMENTS)
def test_a_killed_run_resumes_to_the_same_bits_wherever_its_bytes_are(
    trainers: Trainers, fast_disk: Path, name: str
) -> None:
    changes = changes_of(PLACEMENTS[name], fast_disk)
    process, whole = trainers.train(f"whole-{name}", *changes)
    assert exit_code(process) == 0, whole.log.read_text()
    process, run = trainers.train(name, *changes)
    wait_for(at_step(run, 9), "step 9")
    process.send_signal(signal.SIGKILL)
    process.wait()
    resumed = trainers.call("run", "--resume", run.path)
    assert resumed.returncode == 0, resumed.stderr
    assert losses(run) == losses(whole) and len(losses(run)) == STEPS
    last = whole.checkpoints / f"step-{STEPS:08}"
    for path in (last / "state").iterdir():
        if path.name != "manifest.json":
            other = run.checkpoints / last.name / "state" / path.name
            assert other.read_bytes() == path.read_bytes(), path.name
    assert len(events(run, "resume")) == 1
    assert not list(fast_disk.iterdir())


def test_weights_and_state_on_disk_train_as_in_memory_and_say_what_they_wrote(
    trainers: Trainers, fast_disk: Path
) -> None:
    process, memory = trainers.train("in-memory", *CHANGES)
    assert exit_code(process) == 0
    path = trainers.preset("on-disk")
    sets = [f"--set={c}" for c in changes_of(ALL_ON_DISK, fast_disk)]
    ended = trainers.call("run", path, *sets)
    assert ended.returncode == 0, ended.stderr
    disk = trainers.run_of("on-disk")
    assert disk is not None
    assert losses(disk) == losses(memory)

    assert ended.stdout.count(" written a day") == 1
    [written] = events(disk, "disk")
    assert written.fields["written_per_day"] > 0
    assert not events(memory, "disk")

    metrics = read_run_metrics(disk)
    assert all(seconds > 0 for lane in ("read", "write") for seconds in metrics.column(f"{lane}_s"))
    for lane in ("download", "update", "upload", "read", "write"):
        exposed, busy = metrics.column(f"{lane}_exposed_s"), metrics.column(f"{lane}_s")
        assert all(0 <= e <= b + 1e-9 for e, b in zip(exposed, busy, strict=True)), lane
    assert {"read", "write", "update"} <= {span.lane for span in read_lanes(disk).spans}
    plan, problem = read_plan(disk)
    assert not problem
    foretold = {tier["tier"]: tier["needs"] for tier in plan["memory"]["tiers"]}["disk"]
    held = plan["measured"]["engine"]["disk"]
    assert held and {name: foretold[name] for name in held} == held


def test_auto_is_resolved_in_the_runs_configuration_and_kept_when_it_is_resumed(
    trainers: Trainers, fast_disk: Path
) -> None:
    wanted = ("offload.weights=auto", "offload.state=auto", f"offload.disk_path={fast_disk}")
    process, run = trainers.train("auto", *CHANGES, *wanted, "train.steps=2")
    assert exit_code(process) == 0
    offload = load_config(run.config).offload
    assert (offload.weights, offload.state, offload.device_fraction) == ("device", "host", 0.0)
    resumed = trainers.call("run", "--resume", run.path, "--set", "train.steps=4")
    assert resumed.returncode == 0, resumed.stderr
    assert "placement:" not in resumed.stderr
    assert load_config(run.config).offload == offload
