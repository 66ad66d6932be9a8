"""The checks of `workbench verify`, each a function of a trial that yields rows, one for each promise.

Most compare the engine's training with plain torch's, from the first gradient to the last weights; the last two compare
the engine with itself, bit by bit. Any error inside a check is a row that failed: an engine that raises, stops or gets
stuck has not kept its promise either.
"""

from __future__ import annotations

import copy
import math
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from workbench.data.tokenizers import ByteTokenizer
from workbench.engine import AdamW, OffloadEngine
from workbench.engine.blocks.discovery import FoundUnit
from workbench.model.build import UnitInitializer, build_on_meta
from workbench.model.freezing import freeze
from workbench.runs.checkpoints import Progress, find_checkpoints
from workbench.training.checkpoints.load import load_state
from workbench.training.checkpoints.save import Removal, save_checkpoint
from workbench.verify.comparison import FP32_EPSILON, Verdict, compare_tensors, sizes_of, worst_of
from workbench.verify.plain_torch import Recipe, rounded, train_plain
from workbench.verify.trial import (
    EngineOutcome,
    Trial,
    differing_tensor,
    read_outcome,
    slow_device,
    tied_names,
)

POISONED = frozenset((1, 2))
"""Two in a row: fp16 lowers its scale at the second, and no training ends before the third."""
BITES = 2.0
"""How many times the largest norm a gradient has that is to be clipped."""
SEEDS = (1, 2)
"""Of the delays that lanes are held up by."""


@dataclass(frozen=True)
class Row:
    """One promise. `worst` and `allowed` are None where nothing was measured; `note` says where it was, or what went
    wrong."""

    name: str
    compared: str
    holds: bool
    worst: float | None = None
    allowed: float | None = None
    note: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Return the row for JSON, which has no infinity."""
        return {
            key: str(value) if isinstance(value, float) and not math.isfinite(value) else value
            for key, value in asdict(self).items()
        }


Check = Callable[[Trial], Iterator[Row]]


def measured(name: str, compared: str, verdicts: dict[str, Verdict]) -> Row:
    """Return the row of several comparisons by label: they hold if all do, and the worst is shown."""
    label = max(verdicts, key=lambda each: verdicts[each].excess)
    verdict = verdicts[label]
    holds = all(v.holds for v in verdicts.values())
    return Row(name, compared, holds, verdict.worst, verdict.allowed, f"{label}, {verdict.where}")


def stated(name: str, compared: str, wrong: str | None, note: str = "") -> Row:
    """Return the row of something that is so or not; `wrong` says what is not."""
    return Row(name, compared, wrong is None, note=note if wrong is None else wrong)


def guarded(name: str, check: Check, trial: Trial) -> Iterator[Row]:
    """Yield a check's rows; an exception is a row of its own. Memory that runs out is nobody's broken promise."""
    try:
        yield from check(trial)
    except (MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        note = " ".join(f"{type(error).__name__}: {error}".split()).removesuffix(":")
        yield Row(name, "that it continues", False, note=note)


# Beside plain torch


def check_first_step(trial: Trial) -> Iterator[Row]:
    """Compare loss and gradient at the first weights.

    The gradient is read where the optimizer left it: exp_avg is a fixed share of it after one step.
    """
    recipe = trial.recipe.first(1)
    ours, comparison = trial.train(recipe), trial.compare(recipe)
    yield measured("first step", "loss of each micro-batch", comparison.verdicts(ours, "losses"))
    verdicts = comparison.verdicts(ours, "norms", "exp_avg")
    yield measured("first step", "gradient of each parameter, and its norm", verdicts)


def check_accumulation(trial: Trial) -> Iterator[Row]:
    """Check that the loss is the mean over all tokens of a step, whose micro-batches differ in length.

    The second step has one micro-batch less, as at the end of the data.
    """
    configured = trial.recipe.accumulation
    several = max(2, configured)
    steps = trial.subject.token_steps(3, several)
    recipe = replace(trial.recipe.first(3), steps=(steps[0], steps[1][1:], steps[2]), accumulation=several)
    verdicts = trial.compare(recipe).verdicts(trial.train(recipe), "losses", "norms", "exp_avg", "masters")
    here = "" if configured > 1 else " (the preset has 1)"
    yield measured("accumulation", f"{several} micro-batches a step, by their tokens{here}", verdicts)


def check_clipping(trial: Trial) -> Iterator[Row]:
    """Check the configured clipping on a loss that is large enough for it; where there is none, one of its own."""
    configured = trial.recipe.gradient_clipping
    smallest = min(trial.comparison.plain.norms)
    if smallest == 0:
        wrong = "a whole gradient of plain torch's is zero: nothing is trained"
        yield stated("clipping", "norm before clipping", wrong)
        return
    if configured:
        factor = max(1.0, BITES * configured / smallest)
        recipe = replace(trial.recipe, loss_factor=factor)
        compared = f"at {configured:g}, on a loss {factor:.3g} times as large"
    else:
        recipe = replace(trial.recipe, gradient_clipping=smallest / BITES)
        compared = f"at {smallest / BITES:.3g} (the preset has none)"
    ours, comparison = trial.train(recipe), trial.compare(recipe)
    bites = [n > recipe.gradient_clipping for n in comparison.plain.norms if n < float("inf")]
    yield measured("clipping", f"norm before clipping {compared}", comparison.verdicts(ours, "norms"))
    verdicts = comparison.verdicts(ours, "exp_avg", "exp_avg_sq", "masters")
    row = measured("clipping", "clipped steps", verdicts)
    yield row if any(bites) else replace(row, holds=False, note="no gradient was large enough to be clipped")


def check_overflow(trial: Trial) -> Iterator[Row]:
    """Check that two steps with an infinity in a gradient are left out, and training goes on as without them."""
    updated = trial.comparison.plain.counts  # a parameter may have no gradient
    poison = next(name for name, _ in trial.subject.start.named_parameters() if updated.get(name))
    recipe = replace(trial.recipe.first(5), poison=poison, poisoned=POISONED)
    ours = trial.train(recipe)
    left_out = "steps with an infinity: nothing is written"
    if ours.stopped:
        yield _stopped(trial, left_out, ours.stopped, poison)
        return
    comparison = trial.compare(recipe)
    for field in ("losses", "norms"):  # a few steps show less of their rounding
        known, longer = comparison.errors[field], trial.comparison.errors[field]
        known[""] = max(known[""], longer[""])
    yield stated("overflow", left_out, _not_left_out(ours, comparison.plain.skipped, comparison.plain.counts))
    if trial.numbers.storage == torch.float16:
        scales, wanted = ours.loss_scales, comparison.plain.loss_scales
        wrong = None if scales == wanted else f"{scales} instead of {wanted}"
        moved = "is lowered" if wanted[-1] < wanted[0] else "stays"
        yield stated("overflow", f"the loss scale {moved}", wrong, f"from {wanted[0]:g} to {wanted[-1]:g}")
    verdicts = comparison.verdicts(ours, "losses", "norms", "exp_avg", "masters")
    yield measured("overflow", "the steps after it", verdicts)


def _stopped(trial: Trial, compared: str, message: str, poison: str) -> Row:
    """Return the row of an engine that stopped; right if updates ran before the verdict and it names the parameter."""
    updates_early = (
        not trial.recipe.gradient_clipping
        and trial.numbers.storage != torch.float16
        and trial.config.offload.overlap == "exact"
    )
    if updates_early and poison in message:
        note = f"without clipping units update before that is known: it stopped and named {poison}"
        return stated("overflow", compared, None, note)
    return stated("overflow", compared, f"it stopped: {message}")


def _not_left_out(ours: EngineOutcome, skipped: list[bool], counts: dict[str, int]) -> str | None:
    if ours.skipped != skipped:
        here, there = (
            [n for n, flag in enumerate(flags, start=1) if flag] for flags in (ours.skipped, skipped)
        )
        return f"left out were the steps {here} instead of {there}"
    return _other_counts(ours, counts) if ours.untouched else "the state was written"


def _other_counts(ours: EngineOutcome, counts: dict[str, int]) -> str | None:
    odd = next((name for name, count in counts.items() if ours.counts.get(name) != count), None)
    return odd and f"{odd} counts {ours.counts.get(odd)} updates instead of {counts[odd]}"


def check_ties(trial: Trial) -> Iterator[Row]:
    """Check that tied weights stay one, and get the sum of the gradients that they get in plain torch as two."""
    model = trial.subject.start
    groups = [sorted(names) for names in tied_names(model) if model.get_parameter(min(names)).requires_grad]
    compared = "they stay one, and get the sum of both gradients"
    if not groups:
        yield stated("tied weights", compared, None, "this model trains none")
        return
    recipe = trial.recipe.first(1)
    ours, comparison = trial.train(recipe), trial.compare(recipe)
    settings = recipe.settings
    bare = replace(recipe, settings=replace(settings, weight_decay=0.0))
    start = _untied(model)
    apart = train_plain(start, bare, trial.numbers, trial.device.torch_device)
    rescaled = _clipped_by(recipe, comparison.plain.norms[0]) / _clipped_by(recipe, apart.norms[0])
    wanted: dict[str, Tensor] = {}
    for names in groups:
        known = next(name for name in names if name in ours.exp_avg)
        wanted[known] = torch.stack([apart.exp_avg[name] * rescaled for name in names]).sum(0)
        if settings.coupled_decay and settings.decays(known, wanted[known].dim()):
            # Decay is part of such a gradient, and the one weight has one.
            decay = rounded(start.get_parameter(known).detach(), trial.numbers.storage)
            wanted[known] += (1 - settings.betas[0]) * settings.weight_decay * decay
    mine = {name: ours.exp_avg[name] for name in wanted}
    errors = {name: comparison.errors["exp_avg"][name] for name in wanted}
    verdict = compare_tensors(mine, wanted, sizes_of(wanted), errors)
    row = measured("tied weights", compared, {"gradient": verdict})
    yield row if ours.tied else replace(row, holds=False, note="they are no longer shared")


def _clipped_by(recipe: Recipe, norm: float) -> float:
    return min(1.0, recipe.gradient_clipping / (norm + 1e-6)) if recipe.gradient_clipping else 1.0


def _untied(start: nn.Module) -> nn.Module:
    """Return a copy in which every name has a parameter of its own."""
    model = copy.deepcopy(start)
    seen: set[int] = set()
    for module in model.modules():
        for name, parameter in list(module.named_parameters(recurse=False, remove_duplicate=False)):
            if id(parameter) in seen:
                own = nn.Parameter(parameter.detach().clone(), parameter.requires_grad)
                module.register_parameter(name, own)
            seen.add(id(parameter))
    return model


def check_training(trial: Trial) -> Iterator[Row]:
    """Compare the run's own recipe, to its end."""
    ours, comparison = trial.ours, trial.comparison
    steps = f"{len(trial.recipe.steps)} steps"
    for field, compared in (
        ("losses", "loss of each micro-batch"),
        ("norms", "norm of each gradient"),
        ("masters", "weights, relative to their change"),
        ("exp_avg", "exp_avg, relative to its size"),
        ("exp_avg_sq", "exp_avg_sq, relative to its size"),
    ):
        yield measured(steps, compared, comparison.verdicts(ours, field))
    wrong = _other_counts(ours, comparison.plain.counts)
    yield stated(steps, "how often each parameter was updated", wrong)
    subject, storage = trial.subject, trial.numbers.storage
    stored = {name: rounded(master, subject.storage(name, storage)) for name, master in ours.masters.items()}
    odd = differing_tensor({name: ours.weights[name] for name in stored if name in ours.weights}, stored)
    wrong = f"{odd} is not its state, rounded" if odd else None
    yield stated(steps, "weights as they are saved: bits of the state", wrong)


def check_update(trial: Trial) -> Iterator[Row]:
    """Compare the last update of each weight with AdamW's formula in float64, from the engine's own moments.

    Whatever the precision of forward and backward, only the roundings of one update are allowed. Moments that are kept
    short were not short yet when the update read them: their parameters are left to the other rows.
    """
    recipe, last = trial.recipe, len(trial.recipe.steps) - 1
    before, after = EngineOutcome(), EngineOutcome()
    with trial.engine(recipe) as engine:
        trial.take_steps(engine, recipe, before, 0, last)
        read_outcome(engine, before)
        after.skipped += before.skipped
        trial.take_steps(engine, recipe, after, last)
        read_outcome(engine, after)
    settings = replace(recipe.settings, lr=recipe.learning_rates[last - sum(before.skipped)])
    verdicts = [
        _updated(name, before, after, settings)
        for name, kept in trial.formats.items()
        if kept == "exact" and after.counts[name] > before.counts[name]
    ]
    compared = f"step {last + 1} of each weight by AdamW's formula"
    if verdicts:
        yield measured("update", compared, {"weight": worst_of(verdicts)})
    else:
        yield stated("update", compared, "no parameter was updated")


def _updated(name: str, before: EngineOutcome, after: EngineOutcome, settings: AdamW) -> Verdict:
    old, new = before.masters[name].double(), after.masters[name].double()
    exp_avg, exp_avg_sq = after.exp_avg[name].double(), after.exp_avg_sq[name].double()
    beta1, beta2 = settings.betas
    count = after.counts[name]
    decays = settings.decays(name, old.dim()) and not settings.coupled_decay
    learning_rate = settings.lr * settings.learning_rate_scale(name)
    kept = old * (1 - learning_rate * settings.weight_decay) if decays else old
    root = (exp_avg_sq / (1 - beta2**count)).sqrt() + settings.eps
    step = learning_rate * exp_avg / (1 - beta1**count) / root
    allowed = FP32_EPSILON * (2 * old.abs() + 8 * step.abs())
    apart = (kept - step - new).abs()
    worst = int((apart / allowed.clamp_min(torch.finfo(torch.float64).tiny)).argmax())
    size = float(old.view(-1)[worst].abs()) or 1.0
    return Verdict(float(apart.view(-1)[worst]) / size, float(allowed.view(-1)[worst]) / size, name)


# Bit by bit


def check_timing(trial: Trial) -> Iterator[Row]:
    """Check that lanes that are held up at random change no bit, in memory apart from the host's."""
    overlap = trial.config.offload.overlap
    delayed = overlap == "delayed"

    def train(overlap: str, seed: int | None) -> EngineOutcome:
        return trial.train(trial.recipe, slow_device(trial.device, seed), overlap=overlap)

    in_order = train("delayed" if delayed else "serial", None)
    compared = f"{len(trial.recipe.steps)} steps against plain torch"
    yield measured("separate memory", compared, trial.comparison.verdicts(in_order))
    wrong = None
    for seed in SEEDS:
        wrong = wrong or difference(train(overlap, seed), in_order)
    compared = f"{overlap}: the bits of {'delayed again' if delayed else 'serial'}"
    yield stated("delayed lanes", compared, wrong, f"{len(SEEDS)} timings")


def check_resume(trial: Trial) -> Iterator[Row]:
    """Check that what one engine saved goes on with the same bits in another, around a model of other weights."""
    recipe, steps = trial.recipe, len(trial.recipe.steps)
    middle = max(1, steps - 2)
    resumed = EngineOutcome()
    with tempfile.TemporaryDirectory(prefix="workbench-verify-") as name:
        folder = Path(name)
        with trial.engine(recipe) as engine:
            trial.take_steps(engine, recipe, resumed, 0, middle)
            tokenizer = ByteTokenizer()  # any will do
            save_checkpoint(
                folder,
                middle,
                engine=engine,
                model=engine.model,
                tokenizer=tokenizer,
                progress=Progress(),
                removal=Removal(),
                keep=1,
            )
        with _other_engine(trial) as engine:
            load_state(next(find_checkpoints(folder, _raise)), engine)
            trial.take_steps(engine, recipe, resumed, middle)
            read_outcome(engine, resumed)
    compared = f"saved after step {middle}: same bits as a run that never stopped"
    yield stated("save and resume", compared, difference(resumed, trial.ours), f"{steps} steps")


@contextmanager
def _other_engine(trial: Trial) -> Iterator[OffloadEngine]:
    """Open an engine around a model of other trainable weights; what is frozen is no part of a checkpoint."""
    subject, seed = trial.subject, trial.subject.seed + 1
    if subject.is_adapted:
        model = copy.deepcopy(subject.start)
        generator = torch.Generator().manual_seed(seed)
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.data = torch.randn(parameter.shape, generator=generator)
        with trial.engine(trial.recipe, model=model) as engine:
            yield engine
        return
    model = build_on_meta(subject.shape)
    freeze(model, trial.config.model.freeze)
    initialize = UnitInitializer(model, seed)

    def materialize(unit: FoundUnit) -> None:
        initialize(unit)
        for name, parameter in unit.parameters.items():
            if not parameter.requires_grad:
                parameter.data.copy_(subject.start.get_parameter(name))

    with trial.engine(trial.recipe, model=model, materialize=materialize) as engine:
        yield engine


def difference(one: EngineOutcome, other: EngineOutcome) -> str | None:
    """Return the first thing in which two trainings are not the same to the last bit."""
    for field in ("losses", "norms", "skipped", "loss_scales"):
        pairs = zip(getattr(one, field), getattr(other, field), strict=True)
        for number, (mine, theirs) in enumerate(pairs, start=1):
            if mine != theirs:
                return f"other {field.replace('_', ' ')}: number {number} is {mine!r}, not {theirs!r}"
    odd = differing_tensor(one.raw, other.raw) or differing_tensor(one.weights, other.weights)
    return _other_counts(one, other.counts) or (f"other bits in {odd}" if odd else None)


def _raise(message: str) -> None:
    raise ValueError(message)
