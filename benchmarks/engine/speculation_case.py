"""A training of `speculation`, in its own process: matrices in separate memories, and a compute that waits."""

from __future__ import annotations

import statistics
import time
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx

from benchmarks.engine.contenders import LEARNING_RATE, WEIGHT_DECAY
from workbench.training.measurements import peak_host_bytes

BLOCKS, WIDTH = 24, 4096
STEPS, YOUNG_STEPS = 4, 12
"""Steps that count, and those before them: updates of young moments cannot be undone, and wait for the verdict."""
DEVIATION = 1e-6
"""Of the gradients: the norm of a billion of them is far below the limit of 1."""
SCALES = (1.0, -0.5, 0.8)
"""Of a step's gradients, in turn, so that moments are not alike."""


class Compute:
    """The forward and the backward of a block: the seconds that they take, and the gradient that comes of it."""

    def __init__(self, seconds: float, elements: int) -> None:
        self.forward_s, self.backward_s = seconds / 4 / BLOCKS, seconds * 3 / 4 / BLOCKS
        drawn = torch.randn(elements, generator=torch.Generator().manual_seed(1)) * DEVIATION
        self._gradients = [(drawn * scale).bfloat16().view(-1, WIDTH) for scale in SCALES]
        self.step = 0

    @property
    def gradient(self) -> Tensor:
        return self._gradients[self.step % len(SCALES)].detach()


class _Function(torch.autograd.Function):
    @staticmethod
    def forward(ctx: FunctionCtx, x: Tensor, weight: Tensor, compute: Compute) -> Tensor:
        time.sleep(compute.forward_s)
        ctx.compute = compute  # type: ignore[attr-defined]
        return x.clone()

    @staticmethod
    def backward(ctx: FunctionCtx, gradient: Tensor) -> tuple[Tensor, Tensor, None]:  # type: ignore[override]
        compute: Compute = ctx.compute  # type: ignore[attr-defined]
        time.sleep(compute.backward_s)
        return gradient, compute.gradient, None


class Matrix(nn.Module):
    """A layer of a block: a repeated layer without any below it would not be one."""

    def __init__(self, rows: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((rows, WIDTH), 0.02, dtype=torch.bfloat16))


class Block(nn.Module):
    def __init__(self, rows: int, compute: Compute) -> None:
        super().__init__()
        self.matrix = Matrix(rows)
        self._compute = compute

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = _Function.apply(x, self.matrix.weight, self._compute)
        return result


class Model(nn.Module):
    def __init__(self, rows: int, compute: Compute) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(rows, compute) for _ in range(BLOCKS))

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return x.sum()


def run(case: dict[str, Any]) -> dict[str, Any]:
    """Train, and return the medians of the last steps."""
    from workbench.engine import OffloadEngine
    from workbench.engine.devices.device import CpuDevice
    from workbench.optimizer import AdamW

    rows = round(case["parameters"] / BLOCKS / WIDTH)
    compute = Compute(case["compute_s"], rows * WIDTH)
    model = Model(rows, compute)
    x = torch.zeros(1)
    began: list[float] = []
    with OffloadEngine(
        model,
        optimizer=AdamW(lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY),
        state_format=case["state_format"],
        gradient_clipping=1.0,
        speculation=case["speculation"],
        precision="bf16",
        compute="same",
        activation_checkpointing=False,
        device=CpuDevice(shared_memory=False),
        threads=case["threads"],
    ) as engine:
        assert len(engine.layout.units) == BLOCKS, "each is updated, and waited for, by itself"
        reports = []
        for compute.step in range(YOUNG_STEPS + STEPS + 1):
            began.append(time.perf_counter())
            engine.backward(model(x))
            reports.append(engine.step())
        results = [report.result() for report in reports[YOUNG_STEPS:-1]]
    step_s = [
        after - before for before, after in zip(began[YOUNG_STEPS:], began[YOUNG_STEPS + 1 :], strict=False)
    ]
    elements = BLOCKS * rows * WIDTH
    return {
        "parameters": elements,
        "step_s": statistics.median(step_s),
        "exposed_s": statistics.median(result.exposed_s for result in results),
        "ahead": statistics.median(result.speculation.speculated for result in results) / elements,
        "clipped": max(result.grad_norm for result in results) > 1.0,
        **{
            f"{lane.value}_s": statistics.median(result.lane_seconds[lane] for result in results)
            for lane in results[0].lane_seconds
        },
        "peak_bytes": peak_host_bytes(),
    }
