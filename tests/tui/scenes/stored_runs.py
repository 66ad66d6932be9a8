"""A folder of runs, one in every state, with fixed times and with what a trainer would have written."""

from __future__ import annotations

import json
import math
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

from form_host import LARGE, SMALL, shipped_model_profile
from sampled_machines import TRAINER, step_lanes

from workbench.config import load_config, to_toml
from workbench.monitor.recording import SYSTEM_COLUMNS
from workbench.plan.machine import planned_machine
from workbench.plan.planner import Planner
from workbench.profiles.named_machines import load_profile
from workbench.runs import (
    MetricsWriter,
    RunDirectory,
    Status,
    write_config,
    write_lanes,
    write_plan,
    write_sample,
)
from workbench.runs.records import append_line, write_json

ELSEWHERE = "trainer.invalid"
"""The machine of living runs: here nobody could ask for their processes."""
GONE = 2**22 + 1
"""No process has this number."""
HALF = ("offload.state_format=half",)
"""What makes the large preset fit a desktop with 128 GB."""
GIB = 1 << 30


def make_runs(root: Path, now: float) -> None:
    """Fill `root`; the newest run is the one that trains."""
    for path, data in _files(now):
        target = root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        if data is None:
            target.mkdir(exist_ok=True)
        else:
            target.write_bytes(data)


@cache
def _files(now: float) -> tuple[tuple[Path, bytes | None], ...]:
    """All that is in the folder, made once: a path and what is in that file; None: it is a folder."""
    with tempfile.TemporaryDirectory(prefix="workbench-runs-") as folder:
        root = Path(folder)
        _write_runs(root, now)
        return tuple(
            (path.relative_to(root), None if path.is_dir() else path.read_bytes())
            for path in sorted(root.rglob("*"))
        )


def _write_runs(root: Path, now: float) -> None:
    quick = ("optimizer.learning_rate=1e-3", "train.seed=7")
    _failed(_new(root, "20260312-164010-gpt2-10b-04be11", LARGE, ()), now)
    _ended(_new(root, "20260313-091205-quickstart-5e0c9a", SMALL, ()), now, steps=750, level=1.42, seed=1)
    _ended(_new(root, "20260313-093350-quickstart-81d2f7", SMALL, quick), now, steps=750, level=1.63, seed=2)
    _ended(
        _new(root, "20260313-110121-quickstart-b3a640", SMALL, ("schedule.type=linear",)), now, 420, 2.05, 3
    )
    _died(_new(root, "20260314-081530-quickstart-long-2f96c8", SMALL, ("train.steps=20000",)), now)
    _paused(_new(root, "20260314-090144-quickstart-long-c7d013", SMALL, ("train.steps=20000",)), now)
    _running(_new(root, "20260314-140301-gpt2-10b-half-9a41d5", LARGE, HALF), now)
    (root / "notes").mkdir()
    (root / "notes" / "todo.txt").write_text("compare the formats\n")
    newer = _new(root, "20260312-120000-quickstart-77aa01", SMALL, ())
    newer.status.write_text(json.dumps({"version": 99, "phase": "finished", "step": 750}))


def _new(root: Path, name: str, preset: Path, overrides: Sequence[str]) -> RunDirectory:
    run = RunDirectory(root / name)
    run.path.mkdir()
    run.samples.mkdir()
    run.checkpoints.mkdir()
    config, plan = _planned(preset, tuple(overrides))
    write_config(run, config)
    write_plan(run, plan)
    run.events.touch()
    return run


@cache
def _planned(preset: Path, overrides: tuple[str, ...]) -> tuple[str, dict[str, Any]]:
    """The configuration as TOML, and its plan on a desktop."""
    config = load_config(preset, overrides)
    machine = planned_machine(load_profile(Path("desktop-32gb")))
    return to_toml(config), Planner(shipped_model_profile(preset), machine).plan(config).as_dict()


def _status(run: RunDirectory, now: float, **values: Any) -> None:
    """Write a status that says when it was written."""
    status = Status(
        **{"host": ELSEWHERE, "pid": TRAINER, "pid_started": now - 3985.0, "heartbeat": now - 0.4, **values}
    )
    record = asdict(status)
    del record["problem"]
    write_json(run.status, record, durable=False)


def _event(run: RunDirectory, at: float, kind: str, **fields: object) -> None:
    append_line(run.events, {"version": 1, "time": at, "kind": kind, **fields})


def _begun(run: RunDirectory) -> float:
    """When the run was begun, unix seconds, by its name."""
    return time.mktime(time.strptime(run.name[:15], "%Y%m%d-%H%M%S"))


def _record(
    run: RunDirectory, steps: int, total: int, level: float, step_s: float, tokens: int, seed: int
) -> float:
    """Write metrics and evaluations of `steps` steps; the last loss. The loss falls from ln 257 towards `level`."""
    random = Random(seed)
    begun, loss = _begun(run), math.log(257)
    with MetricsWriter(run.metrics) as writer:
        for step in range(1, steps + 1):
            done = step / total
            noise = random.gauss(0, 0.05 + 0.1 * math.exp(-20 * done))
            loss = round(level + (5.549 - level) * math.exp(-14 * done) + 0.25 * (1 - done) + noise, 4)
            warm = min(1.0, step / (0.08 * total))
            took = step_s * (1 + 0.03 * random.random())
            validated = step % (total // 10) == 0
            writer.append(
                step=step,
                time=begun + 30 + step * step_s,
                loss=loss,
                grad_norm=round(0.4 + 3 * math.exp(-10 * done) + 0.15 * random.random(), 4),
                learning_rate=1.5e-4 * warm * (0.1 + 0.45 * (1 + math.cos(math.pi * done))),
                tokens=tokens,
                tokens_total=tokens * step,
                step_s=took,
                tokens_per_s=tokens / took,
                mfu=round(0.41 * step_s / took, 4),
                device_bytes=28 * GIB,
                host_bytes=97 * GIB,
                compute_s=0.83 * took,
                download_s=0.2 * took,
                download_exposed_s=0.0,
                update_s=0.36 * took,
                update_exposed_s=0.15 * took,
                upload_s=0.2 * took,
                upload_exposed_s=0.02 * took,
                exposed_s=0.17 * took,
                validation_loss=round(loss + 0.06 - 0.1 * (noise > 0), 4) if validated else None,
                skipped=0,
                loss_scale=1,
                update_threads=8,
            )
            if validated:
                _event(
                    run,
                    begun + 30 + step * step_s,
                    "evaluation",
                    step=step,
                    loss=loss,
                    perplexity=round(math.exp(loss), 2),
                    seconds=4.2,
                )
    return loss


def _log(
    run: RunDirectory, steps: int, total: int, tokens: int, step_s: float, last: Sequence[str] = ()
) -> None:
    """A log as the trainer writes it: its beginning, a line a step, and `last`."""
    lines = [f"run {run.name}", "building the model, unit by unit", "reserving the host's memory"]
    for step in range(1, steps + 1):
        loss = 1.5 + 4 * math.exp(-14 * step / total)
        left = step_s * (total - step)
        lines.append(
            f"step {step:05d}/{total:05d} | loss {loss:.4f} | gnorm {0.4 + 0.01 * (step % 7):.2f} | lr 1.5e-04 | "
            f"{tokens / step_s:,.0f} tok/s | {step_s:.2f}s | eta {int(left // 3600)}h{int(left % 3600 // 60):02d}m"
        )
        if step % max(1, total // 5) == 0:
            lines.append(f"saved checkpoints/step-{step:08d}")
    run.log.write_text("\n".join([*lines, *last]) + "\n")


def _running(run: RunDirectory, now: float) -> None:
    begun, step_s, tokens, steps, total = _begun(run), 9.45, 10240, 412, 1000
    for after, phase in ((0.0, "loading"), (11.0, "allocating"), (30.0, "training")):
        _event(run, begun + after, "phase", phase=phase, step=0)
    loss = _record(run, steps, total, 1.31, step_s, tokens, 4)
    for step in (200, 400):
        _checkpoint(run, begun + 30 + step * step_s, step)
    _event(
        run, begun + 2000, "warning", message="the learning rate's warm-up is longer than a tenth of the run"
    )
    _system(run, begun, 300)
    write_lanes(run, steps, step_lanes(240).spans)
    _log(run, steps, total, tokens, step_s)
    _status(
        run,
        now,
        phase="training",
        step=steps,
        total_steps=total,
        loss=loss,
        validation_loss=round(loss + 0.05, 4),
        tokens_per_s=tokens / step_s,
        elapsed_s=now - begun,
        eta_s=step_s * (total - steps),
    )


def _paused(run: RunDirectory, now: float) -> None:
    loss = _record(run, 800, 20000, 1.4, 0.21, 2048, 5)
    _log(run, 800, 20000, 2048, 0.21)
    _status(
        run,
        now,
        phase="paused",
        step=800,
        total_steps=20000,
        loss=loss,
        tokens_per_s=9752.0,
        elapsed_s=171.0,
        eta_s=4032.0,
        message="paused on request",
    )


def _ended(run: RunDirectory, now: float, steps: int, level: float, seed: int) -> None:
    """Finished, or stopped where there were more steps to do."""
    begun, total, step_s, tokens = _begun(run), 750, 0.2, 2048
    loss = _record(run, steps, total, level, step_s, tokens, seed)
    saved = [step for step in (250, 500, 750) if step <= steps]
    for step in saved:
        _checkpoint(run, begun + 30 + step * step_s, step)
    done = steps == total
    message = f"{steps} steps" if done else f"stopped after step {steps} of {total} and saved"
    if not done:
        _checkpoint(run, begun + 30 + steps * step_s, steps)
    _event(
        run,
        begun + 32 + steps * step_s,
        "finished",
        step=steps,
        exit_code=0 if done else 130,
        message=message,
    )
    _system(run, begun, 20)
    _log(run, steps, total, tokens, step_s, (message,))
    path = write_sample(
        run,
        steps,
        'def read(self, size=-1):\n    if self.closed:\n        raise ValueError("closed")\n    return self._buffer\n',
    )
    _event(run, begun + 31 + steps * step_s, "sample", step=steps, path=str(path.relative_to(run.path)))
    write_lanes(run, steps, step_lanes(60, seed).spans)
    plan = json.loads(run.plan.read_text())
    needed = {tier["tier"]: tier["needed_bytes"] for tier in plan["memory"]["tiers"]}
    plan["measured"] = {
        "host_peak_bytes": round(needed["host"] * 0.94),
        "device_peak_bytes": round(needed["device"] * 1.02),
        "step_s": plan["time"]["step_s"] * 1.08,
        "tokens_per_s": plan["time"]["tokens_per_s"] / 1.08,
    }
    write_plan(run, plan)
    _status(
        run,
        begun + 33 + steps * step_s,
        phase="finished" if done else "stopped",
        step=steps,
        total_steps=total,
        loss=loss,
        validation_loss=round(loss + 0.04, 4),
        tokens_per_s=tokens / step_s,
        elapsed_s=30 + steps * step_s,
        exit_code=0 if done else 130,
        message=message,
    )


def _failed(run: RunDirectory, now: float) -> None:
    message = 'does not fit: 14.25 GiB of host memory are missing; offload.state_format = "half" would fit'
    _event(run, _begun(run) + 2, "finished", step=0, exit_code=3, message=message)
    run.log.write_text(f"run {run.name}\n{message}\n")
    _status(
        run, _begun(run) + 2, phase="failed", total_steps=1000, elapsed_s=2.0, exit_code=3, message=message
    )


def _died(run: RunDirectory, now: float) -> None:
    loss = _record(run, 2600, 20000, 1.4, 0.21, 2048, 6)
    _log(run, 300, 20000, 2048, 0.21, ("Killed",))
    _status(
        run,
        _begun(run) + 570,
        host="",
        pid=GONE,
        phase="training",
        step=2600,
        total_steps=20000,
        loss=loss,
        tokens_per_s=9752.0,
        elapsed_s=566.0,
    )


def _checkpoint(run: RunDirectory, at: float, step: int) -> None:
    folder = run.checkpoints / f"step-{step:08d}"
    folder.mkdir()
    (folder / "DONE").touch()
    _event(run, at, "checkpoint", step=step, path=f"checkpoints/{folder.name}", seconds=12.5)


def _system(run: RunDirectory, begun: float, records: int) -> None:
    with MetricsWriter(run.system, SYSTEM_COLUMNS) as writer:
        for number in range(records):
            wave = math.sin(number / 9)
            writer.append(
                step=number,
                time=begun + 10 * (number + 1),
                gpu_busy=0.8 + 0.15 * wave,
                gpu_memory_bytes=28 * GIB,
                gpu_power_w=360 + 60 * wave,
                gpu_temperature_c=64 + 4 * wave,
                gpu_received_bytes_per_s=(14 + 5 * wave) * GIB,
                gpu_sent_bytes_per_s=(6 + 3 * wave) * GIB,
                host_busy=0.45 + 0.1 * wave,
                host_memory_bytes=103 * GIB,
                swap_bytes=GIB // 4,
                trainer_busy=6 + wave,
                trainer_memory_bytes=97 * GIB,
                disk_read_bytes_per_s=1.5e6,
                disk_written_bytes_per_s=20e6,
            )
