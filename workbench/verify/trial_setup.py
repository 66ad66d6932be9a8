"""From a run's configuration to what its checks need: model, device, folder, recipe.

Invariant: whatever a run would refuse is refused here, in the same words, before anything is trained.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import torch

from workbench.config import RunConfig
from workbench.engine import AdamW
from workbench.engine.devices.device import Device, open_device
from workbench.errors import ConfigurationError
from workbench.model.build import build_on_meta
from workbench.runs import runs_root
from workbench.training.engine_options import engine_options, learning_rate_schedule
from workbench.training.fitting import check_disk_folder, disk_folder, fit, free_bytes
from workbench.training.prepare import stored_precision
from workbench.verify.engine_training import Bench
from workbench.verify.plain_torch import Numbers
from workbench.verify.recipe import Recipe, make_steps
from workbench.verify.room import check_room
from workbench.verify.rows import Trial
from workbench.verify.shrink import Subject, configured_shape, full_subject, shrunken_subject

DELAY_WARMUP = 2
"""Steps before delayed updates begin, at most: so that both kinds come up."""


@contextlib.contextmanager
def open_trial(
    config: RunConfig, steps: int, *, full: bool = False, tell: Callable[[str], None] = lambda message: None
) -> Iterator[Trial]:
    """What the checks of `config` share, with trainings of `steps` steps; the random state is as before at the end.

    `full`: of the model itself instead of a smaller one. `tell` hears of a placement that was chosen.

    Raises:
        ConfigurationError: model, device, disk folder or options cannot be had as configured.
        DoesNotFitError: `full`, and the model does not fit beside what it is verified by; or no placement fits.
    """
    device = _open(config)
    try:
        with (
            _deterministic(device),
            _disk_folder(config) as disk,
            torch.random.fork_rng(),
            _threads(None if full else 1),
        ):
            config = _placed(config, device, tell)
            storage = stored_precision(config, device).storage
            subject = _full(config, device, storage) if full else shrunken_subject(config, storage)
            yield _trial(config, subject, steps, device, disk)
    finally:
        device.close()


def _trial(config: RunConfig, subject: Subject, steps: int, device: Device, disk: Path | None) -> Trial:
    precision = stored_precision(config, device)
    storage = precision.storage
    numbers = Numbers(storage, precision.computed_in.get(storage, storage))
    bench = Bench(config, subject, lambda: _open(config), disk)
    options = engine_options(config, device=device)
    settings = options["optimizer"]
    assert isinstance(settings, AdamW)
    delayed = config.offload.overlap == "delayed"
    recipe = Recipe(
        steps=make_steps(subject, steps, subject.accumulation),
        settings=settings,
        learning_rates=_learning_rates(config, steps),
        accumulation=subject.accumulation,
        gradient_clipping=config.train.gradient_clipping,
        delay_warmup=min(DELAY_WARMUP, config.offload.delay_warmup) if delayed else None,
        loss_scaling=options["loss_scale"],
    )
    try:
        with bench.engine(recipe):
            pass
    except ValueError as error:
        # What the engine refuses is the configuration's mistake; a run says the same.
        raise ConfigurationError(str(error)) from error
    return Trial(bench, numbers, device, recipe)


def _open(config: RunConfig) -> Device:
    try:
        return open_device(config.train.device)
    except ValueError as error:
        raise ConfigurationError(f"train.device = {config.train.device!r}: {error}") from error


def _placed(config: RunConfig, device: Device, tell: Callable[[str], None]) -> RunConfig:
    """The configuration with the placement that a run would choose where "auto" is asked for."""
    if "auto" not in (config.offload.weights, config.offload.state):
        return config
    shape = configured_shape(config)[2]
    free = free_bytes(config, device, runs_root(None), None)
    return fit(config, build_on_meta(shape), device, free, tell).config


def _full(config: RunConfig, device: Device, storage: torch.dtype) -> Subject:
    shape = configured_shape(config)[2]
    check_room(config, shape, build_on_meta(shape), device)
    return full_subject(config, storage)


def _learning_rates(config: RunConfig, steps: int) -> tuple[float, ...]:
    """The run's schedule in so many steps."""
    schedule = learning_rate_schedule(config)
    warmup_steps = min(schedule.warmup_steps, steps // 3)
    return tuple(map(replace(schedule, warmup_steps=warmup_steps, total_steps=steps).at, range(steps)))


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


@contextlib.contextmanager
def _threads(count: int | None) -> Iterator[None]:
    """torch on so many threads: for a small model, one is faster than the agreement of several."""
    before = torch.get_num_threads()
    torch.set_num_threads(before if count is None else count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
