"""Plain torch training beside the engine's, step by step: what every placement and overlap has to come to.

The reference keeps fp32 weights, takes torch's AdamW one tensor at a time, and knows nothing of units. With
`delay_warmup` it is the delayed AdamW of the one-step delayed parameter update: after so many steps, gradient t is
applied only when backward t+1, on the weights from before it, is over.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from small_models import CHUNK_BYTES, clone, loss_of, torch_adamw
from torch import Tensor, nn

from workbench.engine import AdamW, OffloadEngine
from workbench.engine.devices.device import Device
from workbench.engine.speculation import Speculation

SETTINGS = AdamW(lr=3e-3, betas=(0.9, 0.95), eps=1e-5, weight_decay=0.1)
"""A large eps: a gradient that is zero but for rounding (a key's bias) must not decide a whole update's sign."""

Batch = Any
LossOf = Callable[[Any, Batch], Tensor]


@dataclass(frozen=True)
class Outcome:
    """What a training came to.

    `losses`: of every micro-batch. `norms`: of every step, before clipping. `parameters`: the last weights.
    `parameter_steps`: how often each trainable one was updated. `state`: the engine's optimizer state.
    `speculation`: of each of the engine's steps.
    """

    losses: list[float] = field(default_factory=list)
    norms: list[float] = field(default_factory=list)
    parameters: dict[str, Tensor] = field(default_factory=dict)
    parameter_steps: dict[str, int] = field(default_factory=dict)
    state: dict[str, Tensor] = field(default_factory=dict)
    speculation: list[Speculation] = field(default_factory=list)


def counted_tokens(batch: Batch) -> int:
    """How many tokens the loss of [batch, length] ids is the mean of: all but the first of each row."""
    return int(batch.shape[0] * (batch.shape[1] - 1))


def total_norm(parameters: Sequence[Tensor]) -> float:
    squares = [p.grad.double().square().sum() for p in parameters if p.grad is not None]
    return float(torch.stack(squares).sum().sqrt())


def train_plain(
    start: nn.Module,
    steps: Sequence[Sequence[Batch]],
    *,
    gradient_clipping: float = 0.0,
    delay_warmup: int | None = None,
    settings: AdamW = SETTINGS,
    compute_loss: LossOf = loss_of,
    tokens: Callable[[Batch], int] = lambda batch: 1,
    learning_rates: Sequence[float] | None = None,
) -> Outcome:
    """Train a copy of `start` by torch alone; `tokens` weighs the micro-batches of a step."""
    model = clone(start)
    parameters = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch_adamw(
        model, settings.lr, settings.weight_decay, betas=settings.betas, eps=settings.eps, foreach=False
    )
    outcome = Outcome()
    pending: tuple[list[Tensor | None], float] | None = None

    def apply(gradients: list[Tensor | None], lr: float) -> None:
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient
        for group in optimizer.param_groups:
            group["lr"] = lr
        optimizer.step()
        optimizer.zero_grad()

    for number, micro_batches in enumerate(steps):
        total = sum(map(tokens, micro_batches))
        for micro, batch in enumerate(micro_batches):
            torch.manual_seed(1000 * number + micro)
            loss = compute_loss(model, batch)
            (loss * (tokens(batch) / total)).backward()
            outcome.losses.append(loss.item())
        outcome.norms.append(total_norm(parameters))
        if gradient_clipping:
            torch.nn.utils.clip_grad_norm_(parameters, gradient_clipping)
        lr = settings.lr if learning_rates is None else learning_rates[number]
        fresh = [p.grad for p in parameters], lr
        optimizer.zero_grad()
        if pending is not None:
            apply(*pending)
        if delay_warmup is None or number < delay_warmup:
            apply(*fresh)
        else:
            pending = fresh
    if pending is not None:
        apply(*pending)
    outcome.parameters.update({n: p.detach().clone() for n, p in model.named_parameters()})
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            outcome.parameter_steps[name] = int(optimizer.state.get(parameter, {}).get("step", 0))
    return outcome


def train_engine(
    start: nn.Module,
    steps: Sequence[Sequence[Batch]],
    device: Device,
    *,
    settings: AdamW = SETTINGS,
    compute_loss: LossOf = loss_of,
    tokens: Callable[[Batch], int] | None = None,
    learning_rates: Sequence[float] | None = None,
    **options: Any,
) -> Outcome:
    """Train a copy of `start` by the engine, by the same losses in the same order, from the same random numbers.

    The last weights are the newest: with `delayed`, with the last gradient, which the next forward would not use yet.
    """
    model = clone(start)
    outcome = Outcome()
    reports, losses = [], []
    options = {"chunk_bytes": CHUNK_BYTES, "threads": 2, "precision": "fp32", "watchdog_s": 60.0, **options}
    with OffloadEngine(model, optimizer=settings, device=device, **options) as engine:
        for number, micro_batches in enumerate(steps):
            if learning_rates is not None:
                engine.learning_rate = learning_rates[number]
            for micro, batch in enumerate(micro_batches):
                torch.manual_seed(1000 * number + micro)
                loss = compute_loss(model, batch)
                engine.backward(loss, tokens=tokens(batch) if tokens is not None else None)
                losses.append(loss.detach())  # read at the end: reading waits for the device
            reports.append(engine.step())
        outcome.losses.extend(loss.item() for loss in losses)
        outcome.norms.extend(report.result().grad_norm for report in reports)
        outcome.speculation.extend(report.result().speculation for report in reports)
        outcome.parameter_steps.update(engine.counters()["parameter_steps"])
        outcome.state.update(engine_state(engine))
        outcome.parameters.update(engine_weights(engine, model))
    return outcome


def engine_state(engine: OffloadEngine) -> dict[str, Tensor]:
    """Copies of the optimizer's state by name, from wherever it is kept."""
    return {
        name: kept.clone() if isinstance(kept, Tensor) else kept.read(0, kept.numel())
        for name, kept in engine.state()
    }


def engine_weights(engine: OffloadEngine, model: nn.Module) -> dict[str, Tensor]:
    """Copies of all weights by name, from wherever they are kept."""
    if not hasattr(engine, "weights"):
        engine.wait()
        return {n: p.detach().clone() for n, p in model.named_parameters()}
    return {name: weight.clone() for unit in engine.weights() for name, weight in unit.items()}


def assert_same_bits(one: Outcome, other: Outcome) -> None:
    """Losses, norms, state and weights are equal to the last bit."""
    assert one.losses == other.losses
    assert list(map(repr, one.norms)) == list(map(repr, other.norms))  # a NaN is one
    for mine, theirs in ((one.state, other.state), (one.parameters, other.parameters)):
        assert mine.keys() == theirs.keys()
        for name in mine:
            assert mine[name].dtype == theirs[name].dtype, name
            assert torch.equal(mine[name], theirs[name]), name


def assert_trains_the_same(ours: Outcome, reference: Outcome, start: nn.Module) -> None:
    """Losses and norms are the reference's but for rounding, and every parameter went where the reference's went.

    Each has been updated as often as there.
    """
    assert len(ours.losses) == len(reference.losses) and len(ours.norms) == len(reference.norms)
    torch.testing.assert_close(
        torch.tensor(ours.losses), torch.tensor(reference.losses), rtol=1e-5, atol=1e-6
    )
    torch.testing.assert_close(torch.tensor(ours.norms), torch.tensor(reference.norms), rtol=2e-5, atol=1e-8)
    assert ours.parameter_steps == reference.parameter_steps
    assert_went_the_same_way(ours.parameters, reference.parameters, start)


def assert_went_the_same_way(ours: dict[str, Tensor], reference: dict[str, Tensor], start: nn.Module) -> None:
    """Every parameter is where the reference's is, as seen from where both set out.

    The distance between the two is measured against how far training moved the parameter, over all its elements: one
    unit of a ReLU that rounding switches on changes its few weights by more than any tolerance for single elements.
    """
    before = dict(start.named_parameters())
    assert ours.keys() == reference.keys() == before.keys()
    for name, theirs in reference.items():
        moved = float((theirs - before[name].detach()).norm())
        apart = float((ours[name] - theirs).norm())
        assert apart <= 2e-3 * moved + 1e-6 * theirs.numel() ** 0.5, (name, apart, moved)
