"""The host optimizer's arithmetic in plain torch operations: slow, short, what tests compare with.

Not for training. In float64 it is the truth that float32 is measured against; in float32 it follows
`torch.optim.AdamW(foreach=False)` operation by operation, and has its bits.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from workbench.optimizer import AdamW


@dataclass
class ReferenceParameter:
    """One parameter with its state, all of one shape and float dtype. Counts its own steps, as torch does."""

    parameter: Tensor
    exp_avg: Tensor
    exp_avg_sq: Tensor
    step: int = 0
    decay: bool = True  # False: weight_decay is 0 for this parameter

    @classmethod
    def fresh(cls, parameter: Tensor, *, decay: bool = True) -> ReferenceParameter:
        """Return a copy of the parameter, before its first step."""
        return cls(parameter.clone(), torch.zeros_like(parameter), torch.zeros_like(parameter), decay=decay)

    def update(self, gradient: Tensor | None, settings: AdamW, gradient_scale: float = 1.0) -> None:
        """Take one step of AdamW (Loshchilov and Hutter, 2019, algorithm 2), or of Adam with L2 decay, in place.

        Without a gradient nothing changes and no step is counted.
        """
        if gradient is None:
            return
        self.step += 1
        beta1, beta2 = settings.betas
        scaled = gradient.to(self.parameter.dtype) * gradient_scale
        if self.decay and settings.coupled_decay:
            scaled = scaled.add(self.parameter, alpha=settings.weight_decay)
        elif self.decay:
            self.parameter.mul_(1 - settings.lr * settings.weight_decay)
        self.exp_avg.lerp_(scaled, 1 - beta1)
        self.exp_avg_sq.mul_(beta2).addcmul_(scaled, scaled, value=1 - beta2)
        step_size = settings.lr / (1 - beta1**self.step)
        denominator = (self.exp_avg_sq.sqrt() / (1 - beta2**self.step) ** 0.5).add_(settings.eps)
        self.parameter.addcdiv_(self.exp_avg, denominator, value=-step_size)


def split_float32(values: Tensor) -> tuple[Tensor, Tensor]:
    """Split float32 into (bfloat16 nearest to it with ties away from zero, int16 remainder of the bits).

    `high = (bits + 0x8000) >> 16`, `low = bits - (high << 16)`, all modulo 2**32: `join_float32` undoes it
    for every bit pattern. It differs from `.bfloat16()`, which rounds ties to even, on exact ties only.
    """
    bits = values.contiguous().view(torch.int32).long()
    high = (bits + 0x8000) >> 16
    low = bits - (high << 16)
    return _low_bits(high, 16).view(torch.bfloat16), low.to(torch.int16)


def join_float32(high: Tensor, low: Tensor) -> Tensor:
    """Return the float32 that `split_float32` was given."""
    bits = (high.contiguous().view(torch.int16).long() << 16) + low.long()
    return _low_bits(bits, 32).view(torch.float32)


def _low_bits(values: Tensor, bits: int) -> Tensor:
    """Return int64 values reduced modulo 2**bits, in the signed type of that width."""
    half = 1 << (bits - 1)
    wrapped = ((values + half) & ((1 << bits) - 1)) - half
    return wrapped.to(torch.int16 if bits == 16 else torch.int32)
