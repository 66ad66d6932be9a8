"""`workbench verify`: train a preset's own configuration beside plain torch, and say row by row what holds."""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from workbench.config import RunConfig, load_config
from workbench.engine import AdamW
from workbench.engine.device import Device, open_device
from workbench.engine.precision import compute_dtypes, working_precision
from workbench.errors import EXIT_DONE, EXIT_ERROR, ConfigurationError, DoesNotFitError
from workbench.model.build import build_on_meta, model_config
from workbench.optimizer.schedules import LearningRateSchedule
from workbench.presets import find_preset
from workbench.runs import runs_root
from workbench.training.disk_folder import check_disk_folder, disk_folder
from workbench.training.engine_options import engine_options
from workbench.training.fitting import StoredPrecision, fit, free_bytes
from workbench.verify.engine_training import Bench
from workbench.verify.plain_torch import Numbers
from workbench.verify.recipe import Recipe, make_steps
from workbench.verify.room import check_room
from workbench.verify.rows import Check, Row, Trial, guarded
from workbench.verify.shrink import Subject, full_subject, shrunken_subject
from workbench.verify.table import as_json, lines
from workbench.verify.timing_checks import check_resume, check_timing
from workbench.verify.training_checks import (
    check_accumulation,
    check_clipping,
    check_first_step,
    check_overflow,
    check_ties,
    check_training,
    check_update,
)

STEPS = 6
FEWEST_STEPS = 5
DELAY_WARMUP = 2
"""Steps before delayed updates begin, at most: so that both kinds come up."""

CHECKS: dict[str, Check] = {
    "first step": check_first_step,
    "accumulation": check_accumulation,
    "clipping": check_clipping,
    "overflow": check_overflow,
    "tied weights": check_ties,
    "training": check_training,
    "update": check_update,
    "lanes held up": check_timing,
    "save and resume": check_resume,
}
"""The checks by name, in the order of their rows."""


def verify(
    *, preset: str, overrides: Sequence[str] = (), full: bool = False, steps: int = STEPS, json: bool = False
) -> int:
    """Verify `preset` and print its rows; the exit code is 0 only if every row holds.

    `full`: with the model itself instead of a smaller one.

    Raises:
        ConfigurationError: the preset, its model, device or disk folder is wrong, or `steps` are too few.
        DoesNotFitError: `full`, and the model does not fit beside what it is verified by.
    """
    if steps < FEWEST_STEPS:
        raise ConfigurationError(
            f"--steps {steps}: at least {FEWEST_STEPS} are needed to stop and go on in between"
        )
    path = find_preset(preset)
    config = load_config(path, overrides)
    _quiet_transformers()
    device = _open(config)
    try:
        with _deterministic(device), _disk_folder(config) as disk, torch.random.fork_rng():
            config = _placed(config, device)
            subject = _subject(config, device, full=full)
            trial = _trial(config, subject, steps, device, disk)
            _tell(
                f"{path.stem}: {subject}; {steps} steps of {subject.accumulation} micro-batch(es) on {_name(device)}"
            )
            rows = list(_rows(trial))
    except (MemoryError, torch.OutOfMemoryError) as error:
        raise DoesNotFitError(f"out of memory while verifying: {error}") from error
    finally:
        device.close()
    about = {
        "preset": path.stem,
        "model": str(subject),
        "parameters": subject.parameters,
        "full": full,
        "steps": steps,
        "device": _name(device),
    }
    print(as_json(rows, about) if json else "\n".join(lines(rows)))
    return EXIT_DONE if all(row.holds for row in rows) else EXIT_ERROR


def _rows(trial: Trial) -> Iterator[Row]:
    for number, (name, check) in enumerate(CHECKS.items(), start=1):
        _tell(f"{number}/{len(CHECKS)} {name}")
        yield from guarded(name, check, trial)


def _open(config: RunConfig) -> Device:
    try:
        return open_device(config.train.device)
    except ValueError as error:
        raise ConfigurationError(f"train.device = {config.train.device!r}: {error}") from error


def _placed(config: RunConfig, device: Device) -> RunConfig:
    """The configuration with the placement that a run would choose where "auto" is asked for."""
    if "auto" not in (config.offload.weights, config.offload.state):
        return config
    shape = model_config(config.model.architecture, dict(config.model.config))
    storage = working_precision(config.train.precision, device)
    precision = StoredPrecision(storage, compute_dtypes("auto", device))
    free = free_bytes(config, device, runs_root(None), None)
    return fit(config, build_on_meta(shape), shape, device, precision, free, _tell)[0]


def _subject(config: RunConfig, device: Device, *, full: bool) -> Subject:
    if full:
        shape = model_config(config.model.architecture, dict(config.model.config))
        check_room(config, shape, build_on_meta(shape), device)
        return full_subject(config)
    return shrunken_subject(config)


def _trial(config: RunConfig, subject: Subject, steps: int, device: Device, disk: Path | None) -> Trial:
    storage = working_precision(config.train.precision, device)
    numbers = Numbers(storage, compute_dtypes("auto", device).get(storage, storage))
    bench = Bench(config, subject, lambda: _open(config), disk)
    settings = engine_options(config, device=device)["optimizer"]
    assert isinstance(settings, AdamW)
    recipe = Recipe(
        steps=make_steps(subject, steps, subject.accumulation),
        settings=settings,
        learning_rates=_learning_rates(config, steps),
        accumulation=subject.accumulation,
        gradient_clipping=config.train.gradient_clipping,
        delay_warmup=(
            min(DELAY_WARMUP, config.offload.delay_warmup) if config.offload.overlap == "delayed" else None
        ),
    )
    try:
        with bench.engine(recipe):
            pass
    except ValueError as error:
        # What the engine refuses is the configuration's mistake; a run says the same.
        raise ConfigurationError(str(error)) from error
    return Trial(bench, numbers, device, recipe)


def _learning_rates(config: RunConfig, steps: int) -> tuple[float, ...]:
    """The run's schedule in so many steps."""
    kind = config.schedule.type
    assert kind != "wsd", "refused by the configuration"
    schedule = LearningRateSchedule(
        kind=kind,
        learning_rate=config.optimizer.learning_rate,
        warmup_steps=min(config.schedule.warmup_steps, steps // 3),
        total_steps=steps,
        min_ratio=config.schedule.min_ratio,
    )
    return tuple(map(schedule.at, range(steps)))


@contextlib.contextmanager
def _disk_folder(config: RunConfig) -> Iterator[Path | None]:
    """A folder of this verification's own where the configuration has its disk tier, so that it leaves nothing."""
    folder = disk_folder(config)
    if folder is None:
        yield None
        return
    check_disk_folder(folder)
    with tempfile.TemporaryDirectory(prefix="workbench-verify-", dir=folder) as own:
        yield Path(own)


@contextlib.contextmanager
def _deterministic(device: Device) -> Iterator[None]:
    """On a GPU the same bits come twice only from deterministic kernels, whose workspace is fixed before the first."""
    if device.torch_device.type != "cuda":
        yield
        return
    before = (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
    )
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])


def _quiet_transformers() -> None:
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()


def _name(device: Device) -> str:
    name: Any = device.torch_device
    return str(name)


def _tell(message: str) -> None:
    with contextlib.suppress(OSError, ValueError):
        print(f"workbench: verify: {message}", file=sys.stderr, flush=True)
