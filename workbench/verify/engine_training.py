"""Training by the engine under a recipe, and its state read back parameter by parameter.

Invariant: the engine is used as a run uses it: `backward`, `step`, and nothing that would make it wait in between.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from workbench.config import RunConfig
from workbench.engine import NonFiniteGradientsError, OffloadEngine, StepReport
from workbench.engine.devices.device import Device
from workbench.engine.loss.chunked_loss import ChunkedLoss
from workbench.layout import BLOCK, Region, Segment
from workbench.optimizer.reference import join_float32
from workbench.training.engine_options import engine_options
from workbench.verify.recipe import Outcome, Recipe, infinite, seed_micro_batch
from workbench.verify.shrink import Subject, counted_tokens

SMALLEST_CHUNK = 1
"""Bytes: the engine makes it one block of the norm, so that a small model has several chunks as well."""
WATCHDOG_S = 60.0
LOSS_CHUNK = 10
"""Tokens, so that every micro-batch of a small model is several chunks of the loss."""


@dataclass
class EngineOutcome(Outcome):
    """The same, and what only an engine has.

    `raw`: the state bit by bit. `weights`: the newest ones as the engine hands them out. `tied`: whether parameters
    that were one are one still. `stopped`: the error by which gradients that were not finite ended it. `untouched`:
    whether the state was the same before and after the poisoned steps.
    """

    raw: dict[str, Tensor] = field(default_factory=dict)
    weights: dict[str, Tensor] = field(default_factory=dict)
    tied: bool = True
    stopped: str = ""
    untouched: bool = True


@dataclass(frozen=True)
class Bench:
    """Where engines are made: the run's configuration, its subject, and a folder for the disk tier."""

    config: RunConfig
    subject: Subject
    open_device: Callable[[], Device]
    disk: Path | None

    @contextmanager
    def engine(
        self, recipe: Recipe, device: Device | None = None, model: Any = None, **changes: Any
    ) -> Iterator[OffloadEngine]:
        """An engine for `recipe` around `model`, by default a copy of the subject's first weights."""
        if self.subject.shrunken:
            changes = {"chunk_bytes": SMALLEST_CHUNK, "watchdog_s": WATCHDOG_S, **changes}
        options = engine_options(
            self.config,
            device=self.open_device() if device is None else device,
            optimizer=recipe.settings,
            gradient_accumulation=recipe.accumulation,
            gradient_clipping=recipe.gradient_clipping,
            disk_path=self.disk,
            **({} if recipe.delay_warmup is None else {"delay_warmup": recipe.delay_warmup}),
            **changes,
        )
        with OffloadEngine(
            copy.deepcopy(self.subject.start) if model is None else model, **options
        ) as engine:
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
            conclude(engine, outcome)
            outcome.tied = tied_names(engine.model) == tied_names(self.subject.start)
        return outcome

    def take_steps(
        self,
        engine: OffloadEngine,
        recipe: Recipe,
        outcome: Outcome,
        start: int = 0,
        stop: int | None = None,
    ) -> None:
        """Train steps `start` to `stop` of `recipe`, adding to `outcome`, which knows those left out before `start`.

        Around poisoned steps the engine is waited for and its state compared.
        """
        model: Any = engine.model
        loss_in_chunks = self._loss(engine, recipe)
        device = engine.device.torch_device
        parameters = dict(model.named_parameters())
        reports: list[StepReport] = []
        losses: list[Tensor] = []
        before: dict[str, Tensor] | None = None
        updates = start - sum(outcome.skipped)
        for number in range(start, len(recipe.steps) if stop is None else stop):
            if number in recipe.poisoned and before is None:
                before = decisive_state(engine)
            micro_batches = recipe.steps[number]
            for micro, ids in enumerate(micro_batches):
                spoils = number in recipe.poisoned and micro == len(micro_batches) - 1
                hook = parameters[recipe.poison].register_hook(infinite) if spoils else None
                seed_micro_batch(number, micro)
                on_device = ids.to(device)
                loss = loss_in_chunks(on_device, on_device, use_cache=False)
                losses.append(loss.detach())
                if not micro:
                    updates += bool(reports) and not reports[-1].is_skipped()
                    engine.learning_rate = recipe.learning_rates[updates]
                factor = recipe.loss_factor
                engine.backward(loss if factor == 1.0 else loss * factor, tokens=counted_tokens(ids))
                if hook is not None:
                    hook.remove()
            reports.append(engine.step())
            if number in recipe.poisoned:
                assert isinstance(outcome, EngineOutcome) and before is not None
                outcome.untouched &= same_bits(before, decisive_state(engine)) is None
        outcome.losses += map(float, losses)
        results = [report.result() for report in reports]
        outcome.norms += [result.grad_norm for result in results]
        outcome.skipped += [result.skipped for result in results]
        outcome.loss_scales += [result.loss_scale for result in results]

    def _loss(self, engine: OffloadEngine, recipe: Recipe) -> ChunkedLoss:
        """The loss as a run has it: in chunks of tokens, where the model's own comes out the same so."""
        model: Any = engine.model
        loss = ChunkedLoss(model, chunk_tokens=LOSS_CHUNK if self.subject.shrunken else None)
        loss.check(recipe.steps[0][0].to(engine.device.torch_device), use_cache=False)
        return loss


def conclude(engine: OffloadEngine, outcome: EngineOutcome) -> None:
    """Read weights, state and counts into `outcome`."""
    read_state(engine, outcome)
    outcome.weights = {name: w.clone() for unit in engine.weights() for name, w in unit.items()}


def read_state(engine: OffloadEngine, outcome: EngineOutcome) -> None:
    """Read state and counts into `outcome`, bit by bit and by parameter."""
    outcome.raw = raw_state(engine)
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


def raw_state(engine: OffloadEngine) -> dict[str, Tensor]:
    """Copies on the CPU of every tensor of the engine's state."""
    return {
        name: kept.detach().cpu().clone() if isinstance(kept, Tensor) else kept.read(0, kept.numel())
        for name, kept in engine.state()
    }


def decisive_state(engine: OffloadEngine) -> dict[str, Tensor]:
    """The state, without the copy of older weights that delayed updates keep for the forward; and the step counts."""
    state = {name: t for name, t in raw_state(engine).items() if "/published" not in name}
    counts = engine.counters()["parameter_steps"]
    return {**state, "counts": torch.tensor([counts[name] for name in sorted(counts)])}


def same_bits(one: dict[str, Tensor], other: dict[str, Tensor]) -> str | None:
    """The first tensor that differs in name, dtype, shape or any bit; None where all are equal."""
    for name in sorted({*one, *other}):
        if name not in one or name not in other:
            return name
        mine, theirs = one[name], other[name]
        if mine.dtype != theirs.dtype or mine.shape != theirs.shape or not _equal_bits(mine, theirs):
            return name
    return None


def _equal_bits(one: Tensor, other: Tensor) -> bool:
    # By bytes: NaN equals itself then, and zeros differ by sign.
    return torch.equal(
        one.contiguous().view(-1).view(torch.uint8), other.contiguous().view(-1).view(torch.uint8)
    )


def tied_names(model: Any) -> set[frozenset[str]]:
    """The names of each parameter that has several."""
    names: dict[int, set[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), set()).add(name)
    return {frozenset(group) for group in names.values() if len(group) > 1}


def _cut(tensor: Tensor, region: Region, segment: Segment, elements: int = 1) -> Tensor:
    """A segment's part of a region's tensor, of which each element stands for `elements` of the region."""
    start = (segment.offset - region.start) // elements
    return tensor[start : start - (-segment.numel // elements)]


def _master(kinds: dict[str, Tensor], region: Region, segment: Segment) -> Tensor:
    if "master" in kinds:
        values = _cut(kinds["master"], region, segment)
    else:
        high, low = (_cut(kinds[kind], region, segment) for kind in ("high", "low"))
        values = join_float32(high, low)
    return values.view(segment.shape)


def _moment(kind: str, kinds: dict[str, Tensor], region: Region, segment: Segment) -> Tensor:
    values = _cut(kinds[kind], region, segment).float()
    if region.state_format == "compact":
        scales = _cut(kinds[f"{kind}_scale"], region, segment, BLOCK)
        values = values * values.abs() * scales.repeat_interleave(BLOCK)[: segment.numel]
    return values.view(segment.shape)
