"""Small parameters, where a step's fixed cost is most of it: plain float32, one tensor and many."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from benchmarks.host_optimizer import our_contenders, torch_contenders
from benchmarks.host_optimizer.buffers import SEED, SETTINGS, WARM_UP_SCALES
from benchmarks.host_optimizer.contender import Run, repeat
from benchmarks.host_optimizer.variants import Variant


@dataclass(frozen=True)
class Case:
    """So many float32 tensors of one length."""

    tensors: int
    length: int

    @property
    def parameters(self) -> int:
        return self.tensors * self.length

    @property
    def title(self) -> str:
        return (
            f"{self.length:,} parameters"
            if self.tensors == 1
            else f"{self.tensors} tensors of {self.length:,}"
        )


CASES = (Case(1, 1_000), Case(1, 10_000), Case(1, 100_000), Case(1, 1_000_000), Case(200, 1_000))


@dataclass(frozen=True)
class SmallTensors:
    """What all contenders of a case share."""

    weights: list[Tensor]
    gradients: list[Tensor]
    exp_avg: list[Tensor]
    exp_avg_sq: list[Tensor]


def tensors(case: Case) -> SmallTensors:
    """Tensors of a case, with moments as they are after some steps on gradients like these."""
    generator = torch.Generator().manual_seed(SEED)

    def normal(deviation: float) -> list[Tensor]:
        return [torch.randn(case.length, generator=generator) * deviation for _ in range(case.tensors)]

    gradients = normal(1e-3)
    return SmallTensors(
        normal(0.02), gradients, [g * 0.3 for g in gradients], [g * g * 3e-3 for g in gradients]
    )


def make(shared: SmallTensors, variant: Variant, threads: int) -> Run:
    """The contender."""
    name = variant.name
    every = (shared.weights, shared.gradients, shared.exp_avg, shared.exp_avg_sq)
    if name == "fp32":
        return repeat(our_contenders.fp32(*every, threads))
    if name == "host_adamw":
        return repeat(our_contenders.host_adamw(shared.weights, shared.gradients, threads))
    if name == "torch_fused":
        return repeat(torch_contenders.adamw(torch_contenders.SWITCHES[name], *every))
    return repeat(torch_fused_call(shared))


def torch_fused_call(shared: SmallTensors) -> Callable[[], None]:
    """What `torch.optim.AdamW(fused=True)` calls, without what the class itself costs."""
    steps = [torch.tensor(float(len(WARM_UP_SCALES))) for _ in shared.weights]

    def step() -> None:
        torch._foreach_add_(steps, 1)
        torch._fused_adamw_(
            shared.weights,
            shared.gradients,
            shared.exp_avg,
            shared.exp_avg_sq,
            [],
            steps,
            lr=SETTINGS.lr,
            beta1=SETTINGS.betas[0],
            beta2=SETTINGS.betas[1],
            weight_decay=SETTINGS.weight_decay,
            eps=SETTINGS.eps,
            amsgrad=False,
            maximize=False,
        )

    return step
