"""What is trained in one comparison, the same for the engine and for plain torch, and what came out.

Invariant: everything that decides the result is in here or in the model's first weights; each micro-batch's random
numbers begin from a seed of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from workbench.engine import AdamW, LossScaling
from workbench.verify.shrink import Subject

DATA_SEED = 1


@dataclass(frozen=True)
class Recipe:
    """`steps`: for each its micro-batches, token ids int64 [batch, length]. `learning_rates`: of the updates,
    in order; a step that is left out takes none, as where torch's scheduler is not stepped after an overflow.

    `accumulation`: the most micro-batches a step has. `loss_factor`: every loss is multiplied by it. `delay_warmup`:
    None where updates are not delayed. `poisoned`: the steps (from 0) in which an infinity is put into a gradient,
    that of `poison` in the last micro-batch. `loss_scaling`: of fp16 weights.
    """

    steps: tuple[tuple[Tensor, ...], ...]
    settings: AdamW
    learning_rates: tuple[float, ...]
    accumulation: int
    gradient_clipping: float
    delay_warmup: int | None = None
    loss_factor: float = 1.0
    poison: str = ""
    poisoned: frozenset[int] = frozenset()
    loss_scaling: LossScaling = field(default_factory=LossScaling)

    def first(self, count: int) -> Recipe:
        """Only the first `count` steps."""
        return replace(self, steps=self.steps[:count], learning_rates=self.learning_rates[:count])


@dataclass
class Outcome:
    """What a training came to; tensors are on the CPU, by parameter, in the parameter's shape.

    `losses`: of every micro-batch, before `loss_factor`. `norms`: of every step's mean gradient, before clipping.
    `skipped`, `loss_scales`: of every step. `masters`: weights in full precision. `counts`: updates by parameter.
    """

    losses: list[float] = field(default_factory=list)
    norms: list[float] = field(default_factory=list)
    skipped: list[bool] = field(default_factory=list)
    loss_scales: list[float] = field(default_factory=list)
    masters: dict[str, Tensor] = field(default_factory=dict)
    exp_avg: dict[str, Tensor] = field(default_factory=dict)
    exp_avg_sq: dict[str, Tensor] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)


def make_steps(subject: Subject, steps: int, accumulation: int) -> tuple[tuple[Tensor, ...], ...]:
    """Rows of tokens that count up from a random one, so that there is something to learn.

    The micro-batches of a step differ in length, so that they do not weigh the same.
    """
    generator = torch.Generator().manual_seed(DATA_SEED)
    lengths = [max(2, subject.sequence * eighths // 8) for eighths in (8, 3, 5)]

    def micro_batch(number: int) -> Tensor:
        length = lengths[number % len(lengths)]
        first = torch.randint(subject.vocabulary, (subject.micro_batch, 1), generator=generator)
        stride = torch.randint(1, 4, (subject.micro_batch, 1), generator=generator)
        return (first + stride * torch.arange(length)) % subject.vocabulary

    return tuple(tuple(micro_batch(n) for n in range(accumulation)) for _ in range(steps))


def seed_micro_batch(step: int, micro_batch: int) -> None:
    """Let dropout draw the same numbers in every training of a recipe."""
    torch.manual_seed(100_000 * (step + 1) + micro_batch)


def infinite(gradient: Tensor) -> Tensor:
    """A tensor hook: the gradient with an infinity in it."""
    spoilt = gradient.clone()
    spoilt.view(-1)[0] = float("inf")
    return spoilt


def mean_weights(micro_batches: Sequence[int]) -> list[float]:
    """How much each micro-batch's mean loss weighs in the mean over all tokens, from their counted tokens."""
    total = sum(micro_batches)
    return [count / total for count in micro_batches]
