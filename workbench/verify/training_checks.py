"""The checks that hold the engine's training to plain torch's, from the first gradient to the last weights."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor, nn

from workbench.engine import AdamW
from workbench.verify.distances import FP32_EPSILON, Verdict, compare_tensors, sizes_of, worst_of
from workbench.verify.engine_training import EngineOutcome, read_state, same_bits, tied_names
from workbench.verify.plain_torch import rounded, train_plain
from workbench.verify.recipe import Recipe, make_steps
from workbench.verify.rows import Row, Trial, measured, stated

POISONED = frozenset((1, 2))
"""Two in a row: fp16 lowers its scale at the second, and no training ends before the third."""
BITES = 2.0
"""How many times the largest norm a gradient has that is to be clipped."""


def check_first_step(trial: Trial) -> Iterator[Row]:
    """Loss and gradient at the first weights.

    The gradient is read where the optimizer left it: exp_avg is a fixed share of it after one step.
    """
    recipe = trial.recipe.first(1)
    ours, comparison = trial.bench.train(recipe), trial.compare(recipe)
    yield measured("first step", "loss of each micro-batch", {"loss": comparison.losses(ours)})
    verdicts = {"norm": comparison.norms(ours), "gradient": comparison.exp_avg(ours)}
    yield measured("first step", "gradient of each parameter, and its norm", verdicts)


def check_accumulation(trial: Trial) -> Iterator[Row]:
    """The loss is the mean over all tokens of a step, whose micro-batches differ in length; the second step has one
    less, as at the end of the data."""
    configured = trial.recipe.accumulation
    several = max(2, configured)
    steps = make_steps(trial.bench.subject, 3, several)
    recipe = replace(
        trial.recipe,
        steps=(steps[0], steps[1][1:], steps[2]),
        learning_rates=trial.recipe.learning_rates[:3],
        accumulation=several,
    )
    ours, comparison = trial.bench.train(recipe), trial.compare(recipe)
    what = f"{several} micro-batches a step, by their tokens"
    yield measured(
        "accumulation",
        what if configured > 1 else f"{what} (the preset has 1)",
        {
            "loss": comparison.losses(ours),
            "norm": comparison.norms(ours),
            "gradients": comparison.exp_avg(ours),
            "weights": comparison.weights(ours),
        },
    )


def check_clipping(trial: Trial) -> Iterator[Row]:
    """The configured clipping, on a loss that is large enough for it; one of its own where none is configured."""
    configured = trial.recipe.gradient_clipping
    smallest = min(trial.comparison.plain.norms)
    if smallest == 0:
        yield stated(
            "clipping",
            "norm before clipping",
            "a whole gradient of plain torch's is zero: nothing is trained",
        )
        return
    if configured:
        factor = max(1.0, BITES * configured / smallest)
        recipe = replace(trial.recipe, loss_factor=factor)
        compared = f"at {configured:g}, on a loss {factor:.3g} times as large"
    else:
        recipe = replace(trial.recipe, gradient_clipping=smallest / BITES)
        compared = f"at {smallest / BITES:.3g} (the preset has none)"
    ours, comparison = trial.bench.train(recipe), trial.compare(recipe)
    bites = [n > recipe.gradient_clipping for n in comparison.plain.norms if n < float("inf")]
    yield measured("clipping", f"norm before clipping {compared}", {"norm": comparison.norms(ours)})
    row = measured(
        "clipping",
        "the steps that were clipped",
        {
            "gradients": comparison.exp_avg(ours),
            "their squares": comparison.exp_avg_sq(ours),
            "weights": comparison.weights(ours),
        },
    )
    yield row if any(bites) else replace(row, holds=False, note="no gradient was large enough to be clipped")


def check_overflow(trial: Trial) -> Iterator[Row]:
    """An infinity in one gradient, twice: those steps are left out, and training goes on as without them."""
    poison = next(n for n, p in trial.bench.subject.start.named_parameters() if p.requires_grad)
    recipe = replace(trial.recipe.first(5), poison=poison, poisoned=POISONED)
    ours = trial.bench.train(recipe)
    left_out = "steps with an infinity: nothing is written"
    if ours.stopped:
        yield stated("overflow", left_out, *_stopped_rightly(trial, ours.stopped, poison))
        return
    comparison = trial.compare(recipe).as_rounded_as(trial.comparison)
    yield stated("overflow", left_out, _not_left_out(ours, comparison.plain.skipped, comparison.plain.counts))
    if trial.numbers.storage == torch.float16:
        scales, wanted = ours.loss_scales, comparison.plain.loss_scales
        wrong = None if scales == wanted else f"{scales} instead of {wanted}"
        moved = "is lowered" if wanted[-1] < wanted[0] else "stays"
        yield stated("overflow", f"the loss scale {moved}", wrong, f"from {wanted[0]:g} to {wanted[-1]:g}")
    yield measured(
        "overflow",
        "the steps after it",
        {
            "loss": comparison.losses(ours),
            "norm": comparison.norms(ours),
            "exp_avg": comparison.exp_avg(ours),
            "weights": comparison.weights(ours),
        },
    )


def _stopped_rightly(trial: Trial, message: str, poison: str) -> tuple[str | None, str]:
    """Where updates run before the verdict, an engine may only stop at once, and name the parameter."""
    updates_early = (
        not trial.recipe.gradient_clipping
        and trial.numbers.storage != torch.float16
        and trial.bench.config.offload.overlap == "exact"
    )
    if updates_early and poison in message:
        return None, f"without clipping units update before that is known: it stopped and named {poison}"
    return f"it stopped: {message}", ""


def _not_left_out(ours: EngineOutcome, skipped: list[bool], counts: dict[str, int]) -> str | None:
    if ours.skipped != skipped:
        return f"left out were the steps {_numbers(ours.skipped)} instead of {_numbers(skipped)}"
    if not ours.untouched:
        return "the state was written"
    odd = [name for name, count in counts.items() if ours.counts.get(name) != count]
    return f"{odd[0]} counts {ours.counts.get(odd[0])} steps instead of {counts[odd[0]]}" if odd else None


def _numbers(flags: list[bool]) -> list[int]:
    return [number for number, flag in enumerate(flags, start=1) if flag]


def check_ties(trial: Trial) -> Iterator[Row]:
    """Weights that are one stay one, and get the sum of the gradients that plain torch gives each when they are two."""
    model = trial.bench.subject.start
    groups = [sorted(names) for names in tied_names(model) if model.get_parameter(min(names)).requires_grad]
    compared = "they stay one, and get the sum of both gradients"
    if not groups:
        yield stated("tied weights", compared, None, "this model trains none")
        return
    recipe = trial.recipe.first(1)
    ours, comparison = trial.bench.train(recipe), trial.compare(recipe)
    settings = recipe.settings
    bare = replace(recipe, settings=replace(settings, weight_decay=0.0))
    start = _untied(trial.bench.subject.start)
    apart = train_plain(start, bare, trial.numbers, trial.device)
    rescaled = _clipped_by(recipe, comparison.plain.norms[0]) / _clipped_by(recipe, apart.norms[0])
    wanted: dict[str, Tensor] = {}
    for names in groups:
        known = next(name for name in names if name in ours.exp_avg)
        parts = [apart.exp_avg[name] * rescaled for name in names]
        wanted[known] = torch.stack(parts).sum(0)
        if settings.coupled_decay and wanted[known].dim() >= 2:
            # Decay is part of such a gradient, and the one weight has one.
            decay = rounded(start.get_parameter(known).detach(), trial.numbers.storage)
            wanted[known] += (1 - settings.betas[0]) * settings.weight_decay * decay
    verdict = compare_tensors(
        {name: ours.exp_avg[name] for name in wanted},
        wanted,
        sizes_of(wanted),
        {name: comparison.roundings.exp_avg[name] for name in wanted},
    )
    row = measured("tied weights", compared, {"gradient": verdict})
    yield row if ours.tied else replace(row, holds=False, note="they are not one any more")


def _clipped_by(recipe: Recipe, norm: float) -> float:
    return min(1.0, recipe.gradient_clipping / (norm + 1e-6)) if recipe.gradient_clipping else 1.0


def _untied(start: nn.Module) -> nn.Module:
    """A copy in which every name has a parameter of its own."""
    model = copy.deepcopy(start)
    seen: set[int] = set()
    for module in model.modules():
        for attribute, parameter in module._parameters.items():
            if parameter is None:
                continue
            if id(parameter) in seen:
                module._parameters[attribute] = nn.Parameter(
                    parameter.detach().clone(), parameter.requires_grad
                )
            seen.add(id(parameter))
    return model


def check_training(trial: Trial) -> Iterator[Row]:
    """The run's own recipe, to its end."""
    ours, comparison = trial.ours, trial.comparison
    steps = f"{len(trial.recipe.steps)} steps"
    yield measured(steps, "loss of each micro-batch", {"loss": comparison.losses(ours)})
    yield measured(steps, "norm of each gradient", {"norm": comparison.norms(ours)})
    yield measured(steps, "weights, as a share of the way they went", {"weights": comparison.weights(ours)})
    yield measured(steps, "exp_avg, as a share of its size", {"exp_avg": comparison.exp_avg(ours)})
    yield measured(steps, "exp_avg_sq, as a share of its size", {"exp_avg_sq": comparison.exp_avg_sq(ours)})
    plain = comparison.plain.counts
    odd = [name for name, count in plain.items() if ours.counts.get(name) != count]
    wrong = f"{odd[0]} counts {ours.counts.get(odd[0])} instead of {plain[odd[0]]}" if odd else None
    yield stated(steps, "how often each parameter was updated", wrong)
    subject, storage = trial.bench.subject, trial.numbers.storage
    stored = {name: rounded(master, subject.storage(name, storage)) for name, master in ours.masters.items()}
    handed = {name: ours.weights[name] for name in stored if name in ours.weights}
    odd_weights = same_bits(handed, stored)
    wrong = f"{odd_weights} is not its state, rounded" if odd_weights else None
    yield stated(steps, "weights as they are saved: bits of the state", wrong)


def check_update(trial: Trial) -> Iterator[Row]:
    """What the last step made of each weight, by AdamW's formula in float64 from the engine's own moments.

    Whatever the precision of forward and backward, only the roundings of one update are allowed. Moments that are kept
    short were not short yet when the update read them: their parameters are left to the other rows.
    """
    recipe, last = trial.recipe, len(trial.recipe.steps) - 1
    before, after = EngineOutcome(), EngineOutcome()
    with trial.bench.engine(recipe) as engine:
        trial.bench.take_steps(engine, recipe, before, 0, last)
        read_state(engine, before)
        after.skipped += before.skipped
        trial.bench.take_steps(engine, recipe, after, last)
        read_state(engine, after)
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
    decays = old.dim() >= 2 and not settings.coupled_decay
    kept = old * (1 - settings.lr * settings.weight_decay) if decays else old
    root = (exp_avg_sq / (1 - beta2**count)).sqrt() + settings.eps
    step = settings.lr * exp_avg / (1 - beta1**count) / root
    allowed = FP32_EPSILON * (2 * old.abs() + 8 * step.abs())
    apart = (kept - step - new).abs()
    worst = int((apart / allowed.clamp_min(torch.finfo(torch.float64).tiny)).argmax())
    size = float(old.view(-1)[worst].abs()) or 1.0
    return Verdict(float(apart.view(-1)[worst]) / size, float(allowed.view(-1)[worst]) / size, name)


def verdict_of_weights(trial: Trial, ours: EngineOutcome) -> dict[str, Verdict]:
    """The run's own recipe trained in another way, against the same plain training."""
    comparison = trial.comparison
    return {
        "loss": comparison.losses(ours),
        "norm": comparison.norms(ours),
        "weights": comparison.weights(ours),
        "exp_avg": comparison.exp_avg(ours),
        "exp_avg_sq": comparison.exp_avg_sq(ours),
    }
