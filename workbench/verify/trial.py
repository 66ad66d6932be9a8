"""A trial: what the checks of a configuration share, its model, its recipe, and trainings of both by the engine.

Whatever a run would refuse is refused here, in the same words, before anything is trained. Invariant: the engine is
used as a run uses it: `backward`, `step`, and nothing that would make it wait in between.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import os
import random
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from workbench.config import RunConfig
from workbench.engine import AdamW, NonFiniteGradientsError, OffloadEngine, StepReport
from workbench.engine.blocks.discovery import find_units, lay_out
from workbench.engine.devices.cuda_device import CudaDevice
from workbench.engine.devices.device import CpuDevice, Device, open_device
from workbench.engine.loss.chunked_loss import ChunkedLoss
from workbench.errors import ConfigurationError
from workbench.layout import BLOCK, Region, Segment, StateFormat
from workbench.model.build import build_on_meta
from workbench.optimizer.reference import join_float32
from workbench.runs import runs_root
from workbench.timeline import Lane
from workbench.training.fitting import check_disk_folder, disk_folder, fit, free_bytes
from workbench.training.prepare import engine_options, learning_rate_schedule, stored_precision
from workbench.verify.comparison import Comparison, Tensors, compare_with_plain
from workbench.verify.plain_torch import (
    Numbers,
    Outcome,
    Recipe,
    counted_tokens,
    infinite,
    seed_micro_batch,
    train_plain,
)
from workbench.verify.shrunken_model import (
    Subject,
    check_room,
    configured_shape,
    full_subject,
    shrunken_subject,
)

DELAY_WARMUP = 2
"""Steps before delayed updates begin, at most: so that both kinds come up."""
SMALLEST_CHUNK = 1
"""Bytes: the engine makes it one block of the norm, so that a small model has several chunks as well."""
WATCHDOG_S = 60.0
LOSS_CHUNK = 10
"""Tokens, so that every micro-batch of a small model is several chunks of the loss."""
LONGEST_DELAY_S = 0.004


@dataclass
class EngineOutcome(Outcome):
    """The outcome of an engine's training.

    `raw`: the state bit by bit. `weights`: the newest ones as the engine hands them out. `tied`: parameters that were
    one are one still. `stopped`: the error by which gradients that were not finite ended it. `untouched`: the state was
    the same before and after the poisoned steps.
    """

    raw: Tensors = field(default_factory=dict)
    weights: Tensors = field(default_factory=dict)
    tied: bool = True
    stopped: str = ""
    untouched: bool = True


@dataclass(frozen=True)
class Trial:
    """A configuration with a placement, the model `subject`, and the run's own `recipe` and `device`.

    `numbers`: the precisions of plain torch beside it. `disk`: the folder of the disk tier. `ranks`: those that train
    together in this trial, of which this process is number `rank`; each takes every so many-th micro-batch of `recipe`.
    """

    config: RunConfig
    subject: Subject
    numbers: Numbers
    device: Device
    disk: Path | None
    recipe: Recipe
    rank: int = 0
    ranks: int = 1

    @cached_property
    def ours(self) -> EngineOutcome:
        """The run's own recipe by the engine, on the run's own device."""
        return self.train(self.recipe)

    @cached_property
    def comparison(self) -> Comparison:
        """The run's own recipe by plain torch."""
        return self.compare(self.recipe)

    def compare(self, recipe: Recipe) -> Comparison:
        """Train another recipe by plain torch."""
        device = self.device.torch_device
        return compare_with_plain(
            self.subject.start, recipe, self.numbers, device, self.formats, exact=self._runs_exactly
        )

    @cached_property
    def _runs_exactly(self) -> bool:
        """True where the model runs in float64 and draws the same numbers for dropout there."""
        device = self.device.torch_device
        if device.type != "cpu" and self.subject.has_dropout:
            return False
        try:
            train_plain(self.subject.start, self.recipe.first(1), self.numbers.exact(), device)
        except (RuntimeError, TypeError):
            return False
        return True

    @cached_property
    def formats(self) -> dict[str, StateFormat]:
        """The state format of each parameter's moments."""
        found = find_units(self.subject.start)
        layout = lay_out(found, self.numbers.storage, 1, self.config.offload.state_format)
        return {s.name: unit.regions[s.region].state_format for unit in layout.units for s in unit.segments}

    @contextlib.contextmanager
    def engine(
        self, recipe: Recipe, device: Device | None = None, model: Any = None, **changes: Any
    ) -> Iterator[OffloadEngine]:
        """Open an engine for `recipe` around `model`, by default a copy of the subject's first weights."""
        if self.subject.shrunken:
            changes = {"chunk_bytes": SMALLEST_CHUNK, "watchdog_s": WATCHDOG_S, **changes}
        if recipe.delay_warmup is not None:
            changes["delay_warmup"] = recipe.delay_warmup
        options = engine_options(
            self.config,
            device=_open(self.config) if device is None else device,
            optimizer=recipe.settings,
            gradient_accumulation=recipe.accumulation // self.ranks,
            micro_batch_tokens=max(counted_tokens(ids) for step in recipe.steps for ids in step),
            gradient_clipping=recipe.gradient_clipping,
            disk_path=self.disk,
            **changes,
        )
        model = copy.deepcopy(self.subject.start) if model is None else model
        with OffloadEngine(model, **options) as engine:
            yield engine

    def train(self, recipe: Recipe, device: Device | None = None, **changes: Any) -> EngineOutcome:
        """Train the subject from its first weights, to the end or until the engine stops it."""
        outcome = EngineOutcome()
        with self.engine(recipe, device, **changes) as engine:
            try:
                self.take_steps(engine, recipe, outcome)
            except NonFiniteGradientsError as error:
                outcome.stopped = str(error)
                return outcome
            read_outcome(engine, outcome)
            outcome.tied = tied_names(engine.model) == tied_names(self.subject.start)
        return outcome

    def take_steps(
        self, engine: OffloadEngine, recipe: Recipe, outcome: Outcome, start: int = 0, stop: int | None = None
    ) -> None:
        """Train steps `start` to `stop` of `recipe`, adding to `outcome`, which knows those left out before `start`.

        Around poisoned steps the engine is waited for and its state compared.
        """
        device = engine.device.torch_device
        loss_of = ChunkedLoss(engine.model, chunk_tokens=LOSS_CHUNK if self.subject.shrunken else None)
        loss_of.check(recipe.steps[0][0].to(device), use_cache=False)
        reports: list[StepReport] = []
        losses: list[Tensor] = []
        before: Tensors | None = None
        updates = start - sum(outcome.skipped)
        for number in range(start, len(recipe.steps) if stop is None else stop):
            poisoned = number in recipe.poisoned
            if poisoned and before is None:
                before = _decisive_state(engine)
            micro_batches = recipe.steps[number][self.rank :: self.ranks]
            for micro, ids in enumerate(micro_batches):
                spoils = poisoned and micro == len(micro_batches) - 1
                hook = engine.model.get_parameter(recipe.poison).register_hook(infinite) if spoils else None
                seed_micro_batch(number, self.rank + self.ranks * micro)
                loss = loss_of(ids.to(device), ids.to(device), use_cache=False)
                losses.append(loss.detach())
                if not micro:
                    updates += bool(reports) and not reports[-1].is_skipped()
                    engine.learning_rate = recipe.learning_rates[updates]
                factor = recipe.loss_factor
                engine.backward(loss if factor == 1.0 else loss * factor, tokens=counted_tokens(ids))
                if hook is not None:
                    hook.remove()
            reports.append(engine.step())
            if poisoned:
                assert isinstance(outcome, EngineOutcome) and before is not None
                outcome.untouched &= differing_tensor(before, _decisive_state(engine)) is None
        outcome.losses += self._of_all(list(map(float, losses)))
        results = [report.result() for report in reports]
        outcome.norms += [result.grad_norm for result in results]
        outcome.skipped += [result.skipped for result in results]
        outcome.loss_scales += [result.loss_scale for result in results]

    def _of_all(self, losses: list[float]) -> list[float]:
        """Return the losses of all ranks in the order of one rank's micro-batches."""
        if self.ranks == 1:
            return losses
        all_losses = torch.zeros(len(losses), self.ranks, dtype=torch.float64)
        all_losses[:, self.rank] = torch.tensor(losses, dtype=torch.float64)
        torch.distributed.all_reduce(all_losses)
        return list(map(float, all_losses.flatten()))


# From a configuration to its trial


@contextlib.contextmanager
def open_trial(
    config: RunConfig, steps: int, *, full: bool = False, report: Callable[[str], None] = lambda message: None
) -> Iterator[Trial]:
    """Open the trial of `config`, with trainings of `steps` steps; the random state is as before at the end.

    `full`: of the model itself instead of a smaller one. `report` gets a placement that was chosen.

    Raises:
        ConfigurationError: model, device, disk folder or options cannot be had as configured.
        DoesNotFitError: `full`, and the model does not fit beside what it is verified by; or no placement fits.
    """
    threads = torch.get_num_threads()
    with contextlib.ExitStack() as stack:
        device = stack.enter_context(contextlib.closing(_open(config)))
        stack.enter_context(torch.random.fork_rng())
        stack.callback(torch.set_num_threads, threads)
        if not full:
            torch.set_num_threads(1)  # for a small model faster than the agreement of several
        disk = disk_folder(config)
        if disk is not None:  # a folder of this verification's own, so that it leaves nothing
            check_disk_folder(disk)
            disk = Path(
                stack.enter_context(tempfile.TemporaryDirectory(prefix="workbench-verify-", dir=disk))
            )
        shape = configured_shape(config)[2]
        if "auto" in (config.offload.weights, config.offload.state):
            free = free_bytes(config, device, runs_root(None), None)
            config = fit(config, build_on_meta(shape), device, free, report).config
        storage, computed = stored_precision(config, device)
        gpus = config.parallel.gpus
        if full:
            check_room(config, shape, build_on_meta(shape), device)
        subject = (full_subject if full else shrunken_subject)(config, storage)
        numbers = Numbers(storage, computed)
        recipe = _recipe(config, subject, device, steps, 1 if gpus == "auto" else gpus)
        trial = Trial(config, subject, numbers, device, disk, recipe)
        where = device.torch_device
        try_out = functools.partial(train_plain, subject.start, recipe.first(1), numbers, where)
        stack.enter_context(deterministic(where, try_out, report))
        try:
            with trial.engine(trial.recipe):
                pass
        except (
            ValueError
        ) as error:  # what the engine refuses is the configuration's mistake; a run says the same
            raise ConfigurationError(str(error)) from error
        yield trial


def _recipe(config: RunConfig, subject: Subject, device: Device, steps: int, ranks: int) -> Recipe:
    """Return the run's own optimizer and schedule, in so many steps of the micro-batches of all ranks."""
    options = engine_options(config, device=device)
    settings = options["optimizer"]
    assert isinstance(settings, AdamW)
    schedule = learning_rate_schedule(config)
    warmup_steps = min(schedule.warmup_steps, steps // 3)
    schedule = replace(schedule, warmup_steps=warmup_steps, total_steps=steps)
    delayed = config.offload.overlap == "delayed"
    return Recipe(
        steps=subject.token_steps(steps, ranks * subject.accumulation),
        settings=settings,
        learning_rates=tuple(map(schedule.at, range(steps))),
        accumulation=ranks * subject.accumulation,
        gradient_clipping=config.train.gradient_clipping,
        delay_warmup=min(DELAY_WARMUP, config.offload.delay_warmup) if delayed else None,
        loss_scaling=options["loss_scale"],
    )


def _open(config: RunConfig) -> Device:
    try:
        return open_device(config.train.device)
    except ValueError as error:
        raise ConfigurationError(f"train.device = {config.train.device!r}: {error}") from error


@contextlib.contextmanager
def deterministic(
    device: torch.device, try_out: Callable[[], object], report: Callable[[str], None]
) -> Iterator[None]:
    """Use deterministic kernels on a GPU, where other ones do not give the same bits twice.

    Attention has them in torch's strict mode alone. Where something in `try_out` has none, only a warning is left of
    that mode, so that attention is computed by plain products, and `report` gets the reason.
    """
    if device.type != "cuda":
        yield
        return
    before = torch.are_deterministic_algorithms_enabled()
    warned_only = torch.is_deterministic_algorithms_warn_only_enabled()
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read before the first kernel
    with contextlib.ExitStack() as stack:
        stack.callback(torch.use_deterministic_algorithms, before, warn_only=warned_only)
        torch.use_deterministic_algorithms(True)
        try:
            try_out()
        except RuntimeError as error:
            if "deterministic" not in str(error):
                raise
            torch.use_deterministic_algorithms(True, warn_only=True)
            stack.enter_context(sdpa_kernel(SDPBackend.MATH))
            reason = str(error).split(", but ")[0]
            report(
                f"warning: {reason}: differences in bits may come from that; attention is computed by plain products"
            )
        yield


def slow_device(like: Device, seed: int | None) -> Device:
    """Return a device of the kind of `like` whose lanes are held up at random, so that races show.

    It has memory of its own: a CPU then plays a device to which everything is copied. Without a `seed` nothing waits.
    """
    device = (
        CudaDevice(like.torch_device) if like.torch_device.type == "cuda" else CpuDevice(shared_memory=False)
    )
    before_task = device.before_task
    draws = {lane: random.Random(f"{seed}/{lane.value}") for lane in Lane}

    def hold_up(lane: Lane) -> None:
        before_task(lane)
        # Mostly short, now and then long: both orders of every pair of lanes come up.
        time.sleep(draws[lane].random() ** 4 * LONGEST_DELAY_S)

    if seed is not None:
        device.before_task = hold_up  # type: ignore[method-assign]
    return device


# Reading an engine's state


def read_outcome(engine: OffloadEngine, outcome: EngineOutcome) -> None:
    """Read weights, state and counts into `outcome`, bit by bit and by parameter."""
    outcome.weights = {name: w.clone() for unit in engine.weights() for name, w in unit.items()}
    outcome.raw = _raw_state(engine)
    outcome.counts = dict(engine.counters()["parameter_steps"])
    for unit in engine.layout.units:
        several_dtypes = len({region.dtype for region in unit.regions}) > 1
        several_formats = len({region.state_format for region in unit.regions}) > 1
        for segment in unit.segments:
            region = unit.regions[segment.region]
            suffix = f".{region.dtype}" * several_dtypes + f".{region.state_format}" * several_formats
            start = f"{unit.index:04d}-{unit.name}/"
            kinds = {
                name.removeprefix(start).removesuffix(suffix): tensor
                for name, tensor in outcome.raw.items()
                if name.startswith(start) and name.endswith(suffix)
            }
            outcome.masters[segment.name] = _master(kinds, region, segment)
            outcome.exp_avg[segment.name] = _moment("exp_avg", kinds, region, segment)
            outcome.exp_avg_sq[segment.name] = _moment("exp_avg_sq", kinds, region, segment)


def _raw_state(engine: OffloadEngine) -> Tensors:
    """Return copies on the CPU of every tensor of the engine's state, of all ranks together."""
    state = {
        name: kept.detach().cpu().clone() if isinstance(kept, Tensor) else kept.read(0, kept.numel())
        for name, kept in engine.state()
    }
    if torch.distributed.is_initialized():
        for tensor in state.values():  # zeros where another rank owns it
            torch.distributed.all_reduce(tensor.view(torch.uint8))
    return state


def _decisive_state(engine: OffloadEngine) -> Tensors:
    """Return the state and the step counts, without the older weights that delayed updates keep for the forward."""
    state = {name: tensor for name, tensor in _raw_state(engine).items() if "/published" not in name}
    counts = engine.counters()["parameter_steps"]
    return {**state, "counts": torch.tensor([counts[name] for name in sorted(counts)])}


def differing_tensor(one: Tensors, other: Tensors) -> str | None:
    """Return the first tensor that differs in name, dtype, shape or any bit; None where all are equal."""
    for name in sorted({*one, *other}):
        if name not in one or name not in other:
            return name
        mine, theirs = one[name], other[name]
        if mine.dtype != theirs.dtype or mine.shape != theirs.shape:
            return name
        # By bytes: NaN equals itself then, and zeros differ by sign.
        if not torch.equal(*(each.contiguous().view(-1).view(torch.uint8) for each in (mine, theirs))):
            return name
    return None


def tied_names(model: Any) -> set[frozenset[str]]:
    """Return the names of each parameter that has several."""
    names: dict[int, set[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), set()).add(name)
    return {frozenset(group) for group in names.values() if len(group) > 1}


def _cut(tensor: Tensor, region: Region, segment: Segment, elements: int = 1) -> Tensor:
    """Return a segment's part of a region's tensor, of which each element stands for `elements` of the region."""
    start = (segment.offset - region.start) // elements
    return tensor[start : start - (-segment.numel // elements)]


def _master(kinds: Tensors, region: Region, segment: Segment) -> Tensor:
    if "master" in kinds:
        values = _cut(kinds["master"], region, segment)
    else:
        values = join_float32(*(_cut(kinds[kind], region, segment) for kind in ("high", "low")))
    return values.view(segment.shape)


def _moment(kind: str, kinds: Tensors, region: Region, segment: Segment) -> Tensor:
    values = _cut(kinds[kind], region, segment).float()
    if region.state_format == "compact":
        scales = _cut(kinds[f"{kind}_scale"], region, segment, BLOCK)
        values = values * values.abs() * scales.repeat_interleave(BLOCK)[: segment.numel]
    return values.view(segment.shape)
