"""Runs that are killed at random moments, or at the very moment of touching a file, and resumed until they end.

Each history has a configuration of its own (placement, overlap, state format, precision, clipping, accumulation).
What it ends with has to be, bit for bit, what the same run without a kill ends with: losses, state, weights.

A run is a fork of this process, which has imported torch once: a run of a few steps then takes a second.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import struct
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from workbench import cli
from workbench.runs import RunDirectory, read_run_metrics, read_status

STEPS = 8
MOST_KILLS = 12
PATIENCE_S = 120.0
TOUCHES = (
    "open",
    "os.rename",
    "os.remove",
    "os.mkdir",
    "os.rmdir",
    "os.link",
    "os.symlink",
    "os.truncate",
    "fcntl.flock",
)
"""Python's audit events of calls that touch files."""

PRESET = """
[model]
architecture = "gpt2"
[model.config]
n_layer = 2
n_embd = 32
n_head = 2
n_positions = 32
vocab_size = 257
[data]
source = "{text}"
sequence_length = 32
validation_fraction = 0.1
[train]
device = "cpu"
steps = {steps}
micro_batch_size = 2
precision = "{precision}"
gradient_accumulation = {accumulation}
gradient_clipping = {clipping}
[offload]
weights = "{weights}"
state = "{state}"
state_format = "{state_format}"
overlap = "{overlap}"
delay_warmup = 2
disk_path = "{disk}"
chunk_mib = 1
threads = 1
[schedule]
warmup_steps = 0
[evaluate]
every = 3
tokens = 64
[checkpoint]
every = {every}
keep = 2
"""
PLACES = (
    ("device", "device"),
    ("device", "host"),
    ("host", "host"),
    ("device", "disk"),
    ("host", "disk"),
    ("disk", "disk"),
)


@dataclass(frozen=True)
class History:
    """A configuration, and the moments of its kills: shares of a whole run's time, or numbers of touches of files."""

    settings: dict[str, Any]
    kills: tuple[float | int, ...]


def history(seed: int) -> History:
    chance = random.Random(f"kills {seed}")
    weights, state = chance.choice(PLACES)
    overlaps = ("serial", "exact") if "disk" in (weights, state) else ("serial", "exact", "delayed")
    settings = {
        "weights": weights,
        "state": state,
        "state_format": "exact" if state == "device" else chance.choice(("exact", "half", "compact")),
        "overlap": chance.choice(overlaps),
        "precision": chance.choice(("fp32", "fp32", "bf16")),
        "accumulation": chance.choice((1, 2)),
        "clipping": chance.choice((0.0, 0.5)),
        "every": chance.choice((1, 2, 3)),
    }
    kills = tuple(
        chance.randrange(1, 400) if chance.random() < 0.5 else chance.uniform(0.0, 1.1)
        for _ in range(chance.randrange(1, MOST_KILLS))
    )
    return History(settings, kills)


def start(
    words: list[str],
    folder: Path,
    at_touch: int | None,
    touched_in: str = "",
    environment: Mapping[str, str] = MappingProxyType({}),
) -> int:
    """Fork a process that runs the command line `words`; it kills itself at touch `at_touch` of a file in `folder`, of
    one whose path has `touched_in`."""
    sys.stdout.flush()
    child = os.fork()
    if child:
        return child
    code = 70
    try:
        os.setsid()
        log = os.open(folder / "output.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.chdir(folder)
        os.environ.update(environment)
        left = at_touch or 0
        inside = str(folder)

        def touched(event: str, arguments: tuple[Any, ...]) -> None:
            nonlocal left
            paths = str(arguments[:2])
            if left and event in TOUCHES and inside in paths and touched_in in paths:
                left -= 1
                if not left:
                    os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(touched)
        code = cli.main(words)
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def ended(child: int, until: float) -> int | None:
    """Return the exit status of `child`, negative for a signal; None where it still runs at `until`."""
    while True:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() >= until:
            return None
        time.sleep(0.002)


def kill(child: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)


def finished(runs: Path) -> list[RunDirectory]:
    return [run for run in RunDirectory.list(runs) if read_status(run).phase == "finished"]


def outcome_of(runs: Path) -> dict[str, bytes]:
    """Return everything that has to be equal: the losses by step, and the newest checkpoint's state and weights."""
    found = finished(runs)
    assert len(found) == 1, f"{len(found)} finished runs in {[run.name for run in RunDirectory.list(runs)]}"
    (run,) = found
    metrics = read_run_metrics(run)
    kept = {
        f"loss of step {int(step)}": struct.pack("<d", loss)
        for step, loss in zip(metrics.column("step"), metrics.column("loss"), strict=True)
    }
    saved = run.checkpoints / f"step-{STEPS:08}"
    for path in (*sorted((saved / "state").iterdir()), *sorted(saved.glob("*.safetensors"))):
        if path.name != "manifest.json":
            kept[path.name] = path.read_bytes()
    return kept


def left_over(folder: Path) -> list[str]:
    """Return the files that a process that was killed has left, and none that ended would."""
    names = (path.name for path in folder.rglob("*"))
    return sorted(
        name for name in names if name.endswith(".partial") or (name[0] == "." and name != ".gitignore")
    )


def train(case: History, folder: Path, text: Path, whole_s: float = 1.0) -> dict[str, bytes]:
    """Run `case`, a whole run of which takes `whole_s`, in `folder` until it has ended, with all its kills.

    Raises AssertionError where it does not get there, or leaves something behind.
    """
    disk, runs = folder / "disk", folder / "runs"
    disk.mkdir(parents=True)
    preset = folder / "tiny.toml"
    preset.write_text(PRESET.format(text=text, disk=disk, steps=STEPS, **case.settings))
    for moment in (*case.kills, None):
        at_touch = moment if isinstance(moment, int) else None
        child = start(["run", str(preset), "--runs", str(runs), "--resume", "auto"], folder, at_touch)
        patience = moment * whole_s if isinstance(moment, float) else PATIENCE_S
        code = ended(child, time.monotonic() + patience)
        if code is None:
            kill(child)
            assert moment is not None and at_touch is None, "it did not end: " + tail(folder)
        elif code != 0:
            assert code == -signal.SIGKILL, f"exit status {code}: {tail(folder)}"
        if code == 0 or finished(runs):  # killed after its last word, or on its way out
            break
    found = outcome_of(runs)
    assert not list(disk.iterdir()), f"on the disk tier is left {[path.name for path in disk.iterdir()]}"
    assert not left_over(runs), f"left over: {left_over(runs)}"
    return found


def tail(folder: Path) -> str:
    lines = (folder / "output.txt").read_text(errors="replace").splitlines()
    return " | ".join(lines[-3:])


def try_kills(seeds: Iterator[int], until: float, report: Callable[[str], None]) -> Counter[str]:
    """Run histories until `until`. Returns kills tried, and histories that ended equal ("taken") and otherwise."""
    import torch  # noqa: F401  # once, before the forks

    import workbench.training.command  # noqa: F401

    counts: Counter[str] = Counter()
    with tempfile.TemporaryDirectory(prefix="soak-kills-") as name:
        root = Path(name)
        text = root / "text.txt"
        text.write_text("".join(random.Random(0).choices("abcdefgh ,.\n", k=20_000)))
        while time.monotonic() < until:
            seed = next(seeds)
            case = history(seed)
            try:
                began = time.monotonic()
                whole = train(History(case.settings, ()), root / f"{seed}-whole", text)
                killed = train(case, root / f"{seed}-killed", text, time.monotonic() - began)
                other = sorted(
                    name for name in whole.keys() | killed.keys() if whole.get(name) != killed.get(name)
                )
                assert not other, f"other bits: {', '.join(other[:4])}"
                counts["taken"] += 1
            except AssertionError as error:
                counts["wrong"] += 1
                report(f"kills, seed {seed}: {case.settings}, killed at {case.kills}: {error}")
            counts["tried"] += len(case.kills)
            for folder in root.glob(f"{seed}-*"):
                shutil.rmtree(folder)
    return counts
