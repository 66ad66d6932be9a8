"""The plain training that the engine is held to: it is torch's own, and its distances are those of rounding."""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from functools import partial

import pytest
import torch
from small_trials import STEPS, small_config
from torch import Tensor

from workbench.engine import AdamW, OffloadEngine
from workbench.verify.checks import check_clipping, check_resume
from workbench.verify.comparison import (
    LABELS,
    Comparison,
    Verdict,
    compare_numbers,
    compare_tensors,
    distance,
)
from workbench.verify.plain_torch import (
    Numbers,
    Outcome,
    Recipe,
    as_kept,
    counted_tokens,
    loss_of,
    train_plain,
)
from workbench.verify.shrunken_model import Subject, shrunken_subject
from workbench.verify.trial import deterministic, open_trial

FP32 = Numbers(torch.float32, torch.float32)
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def subject() -> Subject:
    return shrunken_subject(small_config())


def recipe_of(subject: Subject, **changes: object) -> Recipe:
    recipe = Recipe(
        steps=subject.token_steps(5, 3),
        settings=AdamW(lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1),
        learning_rates=(1e-3, 5e-4, 1e-3, 2e-3, 1e-3),
        accumulation=3,
        gradient_clipping=0.5,
    )
    return replace(recipe, **changes)


def by_hand(subject: Subject, recipe: Recipe) -> dict[str, Tensor]:
    """The loop that everybody writes."""
    model = copy.deepcopy(subject.start)
    decayed = [p for p in model.parameters() if p.dim() >= 2]
    others = [p for p in model.parameters() if p.dim() < 2]
    optimizer = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}],
        lr=1e-3,
        betas=(0.9, 0.95),
        eps=recipe.settings.eps,
        foreach=False,
    )
    pending: list[Tensor] | None = None
    last_rate = 0.0
    for number, (micro_batches, rate) in enumerate(zip(recipe.steps, recipe.learning_rates, strict=True)):
        total = sum(map(counted_tokens, micro_batches))
        for ids in micro_batches:
            (loss_of(model, ids) * (counted_tokens(ids) / total)).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), recipe.gradient_clipping, foreach=False)
        fresh = [p.grad for p in model.parameters() if p.grad is not None]
        now = [(fresh, rate)] if recipe.delay_warmup is None or number < recipe.delay_warmup else []
        if pending is not None:
            now.insert(0, (pending, last_rate))
        for gradients, lr in now:
            for parameter, gradient in zip(model.parameters(), gradients, strict=True):
                parameter.grad = gradient
            for group in optimizer.param_groups:
                group["lr"] = lr
            optimizer.step()
        optimizer.zero_grad()
        pending, last_rate = (None, 0.0) if now and now[-1][0] is fresh else (fresh, rate)
    if pending is not None:
        for parameter, gradient in zip(model.parameters(), pending, strict=True):
            parameter.grad = gradient
        for group in optimizer.param_groups:
            group["lr"] = last_rate
        optimizer.step()
    return {name: parameter.detach() for name, parameter in model.named_parameters()}


@pytest.mark.parametrize("delay_warmup", [None, 0, 2])
def test_it_is_the_loop_that_everybody_writes(subject: Subject, delay_warmup: int | None) -> None:
    recipe = recipe_of(subject, delay_warmup=delay_warmup)
    wanted = by_hand(subject, recipe)
    plain = train_plain(subject.start, recipe, FP32, CPU)
    start = dict(subject.start.named_parameters())
    for name, value in wanted.items():
        way = distance(value, start[name].detach())
        assert distance(plain.masters[name], value, 0.01) <= 1e-4 * way, name
    assert set(plain.counts.values()) == {5}


def test_rounding_carries_it_a_little_and_other_errors_of_that_size_as_far(subject: Subject) -> None:
    recipe = recipe_of(subject).first(1)
    plain = train_plain(subject.start, recipe, FP32, CPU)
    for other in (FP32.exact(), FP32.shaken()):
        beside = train_plain(subject.start, recipe, other, CPU)
        for name, moment in plain.exp_avg.items():
            share = distance(beside.exp_avg[name], moment) / float(moment.abs().sum())
            assert 1e-9 < share < 1e-5, name


def test_an_infinite_gradient_is_left_out_and_fp16_lowers_its_scale(subject: Subject) -> None:
    name = next(iter(dict(subject.start.named_parameters())))
    recipe = recipe_of(subject, poison=name, poisoned=frozenset((1, 2)))
    for storage in (torch.float32, torch.float16):
        plain = train_plain(subject.start, recipe, Numbers(storage, torch.float32), CPU)
        assert plain.skipped == [False, True, True, False, False]
        assert set(plain.counts.values()) == {3}
        scales = [2.0**16] * 3 + [2.0**15] * 2 if storage == torch.float16 else [1.0] * 5
        assert plain.loss_scales == scales


@pytest.mark.parametrize("delay_warmup", [None, 2])
def test_a_step_that_is_left_out_takes_no_learning_rate(subject: Subject, delay_warmup: int | None) -> None:
    name = next(iter(dict(subject.start.named_parameters())))
    # Where two steps are left out, a training of the three others is the same but for dropout, of which there is none.
    with_them = recipe_of(subject, poison=name, poisoned=frozenset((1, 2)), delay_warmup=delay_warmup)
    kept = tuple(with_them.steps[number] for number in (0, 3, 4))
    warmup = None if delay_warmup is None else 1
    rates = with_them.learning_rates[:3]
    without = recipe_of(subject, steps=kept, learning_rates=rates, delay_warmup=warmup)
    one, other = (train_plain(subject.start, recipe, FP32, CPU) for recipe in (with_them, without))
    assert all(torch.equal(one.masters[name], other.masters[name]) for name in other.masters)


@pytest.mark.parametrize("overlap", ["exact", "delayed"])
def test_the_engine_trains_at_a_runs_learning_rates_where_steps_are_left_out(
    overlap: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rates: list[float] = []
    known = vars(OffloadEngine)["learning_rate"]

    def keep(engine: OffloadEngine, rate: float) -> None:
        rates.append(rate)
        known.fset(engine, rate)

    monkeypatch.setattr(OffloadEngine, "learning_rate", property(known.fget, keep))
    with open_trial(small_config(f"offload.overlap={overlap}"), 5) as trial:
        name = next(iter(dict(trial.subject.start.named_parameters())))
        recipe = replace(trial.recipe, learning_rates=(1e-3, 2e-3, 3e-3, 4e-3, 5e-3))
        ours = trial.train(replace(recipe, poison=name, poisoned=frozenset((1, 2))))
    assert ours.skipped == [False, True, True, False, False]
    assert rates[-5:] == [1e-3, 2e-3, 2e-3, 2e-3, 3e-3]


@pytest.mark.parametrize(("state_format", "error"), [("half", 0.01), ("compact", 0.03)])
@pytest.mark.parametrize("kind", ["exp_avg", "exp_avg_sq"])
def test_a_moment_kept_short_is_near_itself_and_right_on_average(
    kind: str, state_format: str, error: float
) -> None:
    generator = torch.Generator().manual_seed(3)
    moment = torch.randn(3000, generator=generator)
    moment = moment.square() if kind == "exp_avg_sq" else moment
    kept = [as_kept(kind, moment, state_format, generator) for _ in range(200)]  # type: ignore[arg-type]
    assert distance(kept[0], moment) < error * float(moment.abs().sum())
    assert distance(torch.stack(kept).mean(0), moment) < 0.2 * distance(kept[0], moment) + 1e-3
    assert torch.equal(kept[0].sign(), moment.sign())


def test_what_is_not_a_number_is_too_far() -> None:
    nan, inf = math.nan, math.inf
    assert not compare_numbers([nan], [1.0], 0.0).holds
    assert not compare_numbers([1.0], [inf], 0.0).holds
    assert compare_numbers([inf], [nan], 0.0).holds
    assert not compare_numbers([1.0], [1.0, 2.0], 0.0).holds
    one = {"a": torch.ones(4), "b": torch.ones(4)}
    spoilt = {**one, "b": torch.tensor([1.0, nan, 1.0, 1.0])}
    size, error = {"a": 4.0, "b": 4.0}, {"a": 1e-3, "b": 1e-3}
    assert compare_tensors(one, one, size, error).holds
    found = compare_tensors(spoilt, one, size, error, 0.01)
    assert not found.holds and found.where == "b"
    assert not compare_tensors({"a": one["a"]}, one, size, error).holds
    assert not compare_tensors({**one, "b": torch.ones(3)}, one, size, error).holds


def test_a_few_weights_may_go_anywhere_and_many_may_not() -> None:
    one, other = torch.zeros(1000), torch.zeros(1000)
    other[:10] = 1.0
    assert distance(one, other) == 10 and distance(one, other, 0.01) == 0
    other[:20] = 1.0
    assert distance(one, other, 0.01) == 10


def test_what_the_architecture_itself_freezes_is_no_difference_of_a_resumed_training() -> None:
    settings = {
        "vocab_size": 257,
        "hidden_size": 32,
        "intermediate_size": 32,
        "moe_intermediate_size": 16,
        "num_hidden_layers": 5,
        "num_dense_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 16,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "num_shared_experts": 1,
    }
    config = small_config()
    model = config.model.model_copy(update={"architecture": "afmoe", "config": settings})
    with open_trial(config.model_copy(update={"model": model}), STEPS) as trial:
        frozen = [p for p in trial.subject.start.parameters() if not p.requires_grad]
        assert frozen and any(p.any() for p in frozen), (
            "the test's own ground: a value that is not the initial one"
        )
        [row] = check_resume(trial)
    assert row.holds, row.note


def test_a_gradient_of_zeros_is_told_and_not_divided_by() -> None:
    with open_trial(small_config(), STEPS) as trial:
        trial.comparison.plain.norms[0] = 0.0
        [row] = check_clipping(trial)
    assert not row.holds and "zero" in row.note


def no_deterministic_form() -> None:
    torch.zeros(3).put_(torch.tensor([0]), torch.ones(1))


def modes() -> tuple[bool, bool, bool, bool]:
    return (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
        torch.backends.cuda.flash_sdp_enabled(),
        torch.backends.cuda.mem_efficient_sdp_enabled(),
    )


def test_a_gpu_is_strictly_deterministic_or_by_plain_attention_with_a_note() -> None:
    notes: list[str] = []
    before = modes()
    with deterministic(torch.device("cuda"), lambda: None, notes.append):
        assert modes() == (True, False, True, True) and not notes
    with deterministic(torch.device("cuda"), no_deterministic_form, notes.append):
        assert modes() == (True, True, False, False)
        (note,) = notes
        assert note.startswith("warning: put_") and "attention is computed by plain products" in note
    assert modes() == before
    with (
        pytest.raises(RuntimeError, match="something else"),
        deterministic(torch.device("cuda"), fails, notes.append),
    ):
        pass
    with deterministic(CPU, fails, notes.append):
        assert modes() == before


def fails() -> None:
    raise RuntimeError("something else")


def test_rounding_is_looked_at_more_often_before_a_training_is_too_far() -> None:
    start = {"w": torch.ones(4)}
    plain, ours = Outcome(losses=[1.0], norms=[1.0]), Outcome(losses=[1.0 + 1e-4], norms=[1.0])
    seeds: list[int] = []

    def shaken(by: float, seed: int) -> Outcome:
        seeds.append(seed)
        return Outcome(losses=[1.0 + by * seed], norms=[1.0])

    def verdict(by: float) -> Verdict:
        errors = {field: {"": 0.0} for field in LABELS}
        return Comparison(start, plain, errors, partial(shaken, by)).verdicts(ours, "losses")["loss"]

    assert verdict(1e-5 / 4).holds and seeds == [3, 4]
    seeds.clear()
    assert not verdict(1e-7).holds and seeds == [3, 4, 5, 6]
