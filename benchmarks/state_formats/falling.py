"""The case that breaks rounding to the nearest: gradients that fall 20 times after a while.

exp_avg_sq then has to shrink by a thousandth of itself a step, which is less than half of bfloat16's last place.
"""

from __future__ import annotations

import torch
from torch import Tensor

from workbench.layout import BLOCK, MOMENTS, StateFormat
from workbench.optimizer.host import AdamW, HostOptimizer, Piece, PieceTable

PARAMETERS = 4096
FALL_AT = 500
FALL = 20.0
BETA2 = 0.999
EVERY = 50


def mean_exp_avg_sq(steps: int) -> dict[str, list[float]]:
    """Mean exp_avg_sq every 50 steps: in float64, in each format, and in bfloat16 rounded to the nearest."""
    formats: tuple[StateFormat, ...] = ("exact", "half", "compact")
    pieces = {f: _fresh(f) for f in formats}
    table = PieceTable(list(pieces.values()))
    truth = torch.zeros(PARAMETERS, dtype=torch.float64)
    nearest = torch.zeros(PARAMETERS, dtype=torch.bfloat16)
    generator = torch.Generator().manual_seed(0)
    means: dict[str, list[float]] = {name: [] for name in ("float64", *formats, "bf16 to the nearest")}
    with HostOptimizer(threads=1) as optimizer:
        for step in range(1, steps + 1):
            gradient = torch.randn(PARAMETERS, generator=generator) / (1.0 if step <= FALL_AT else FALL)
            for index in range(len(pieces)):
                table.set_gradient(index, gradient)
                table.set_step(index, step)
            optimizer.update(table, AdamW(lr=1e-4, betas=(0.9, BETA2)))
            truth = truth * BETA2 + gradient.double() ** 2 * (1 - BETA2)
            nearest = (nearest.float() * BETA2 + gradient**2 * (1 - BETA2)).bfloat16()
            if step % EVERY == 0:
                means["float64"].append(truth.mean().item())
                means["bf16 to the nearest"].append(nearest.double().mean().item())
                for name, piece in pieces.items():
                    means[name].append(_exp_avg_sq(piece).double().mean().item())
    return means


def _fresh(state_format: StateFormat) -> Piece:
    moments = {
        t.kind: torch.zeros(t.count(PARAMETERS), dtype=getattr(torch, t.dtype)) for t in MOMENTS[state_format]
    }
    return Piece(master=torch.zeros(PARAMETERS), state_format=state_format, **moments)  # type: ignore[arg-type]


def _exp_avg_sq(piece: Piece) -> Tensor:
    if piece.exp_avg_sq_scale is None:
        return piece.exp_avg_sq.float()
    return piece.exp_avg_sq.float() ** 2 * piece.exp_avg_sq_scale.repeat_interleave(BLOCK)
