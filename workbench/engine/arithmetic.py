"""The arithmetic of the state's tier: natively on host memory, with torch operations on a device's own memory.

Both follow the same formulas, with one step count a parameter; the native one is the truth for `exact`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from workbench.layout import NORM_BLOCK
from workbench.optimizer.host import HostOptimizer, Piece, PieceTable
from workbench.optimizer.reference import join_float32, split_float32
from workbench.optimizer.settings import AdamW


class StateViews(NamedTuple):
    """The state of one slice of a parameter, 1-D views: `master` fp32, or `high` bf16 and `low` int16.

    `offset` is the slice's first element in the parameter, `random_stream` the parameter's number (see `Piece`).
    """

    decay: bool
    offset: int
    random_stream: int
    exp_avg: Tensor
    exp_avg_sq: Tensor
    master: Tensor | None = None
    high: Tensor | None = None
    low: Tensor | None = None
    exp_avg_scale: Tensor | None = None
    exp_avg_sq_scale: Tensor | None = None


class Table(Protocol):
    """The pieces that are updated in one go, with what changes from step to step."""

    def set_gradient(self, index: int, gradient: Tensor | None) -> None: ...
    def set_step(self, index: int, step: int) -> None: ...
    def piece_partials(self, index: int) -> Tensor: ...


class Arithmetic(Protocol):
    """Sums, norms and updates in the tier where the state lives."""

    def table(self, views: Sequence[StateViews]) -> Table: ...
    def accumulate(self, destination: Tensor, source: Tensor, *, overwrite: bool) -> None: ...
    def sum_of_squares(self, table: Any) -> None: ...
    def read_partials(self, tables: Iterable[Any]) -> list[float]: ...
    def update(self, table: Any, settings: AdamW, gradient_scale: float) -> None: ...


class HostArithmetic:
    """The native host optimizer."""

    def __init__(self, host: HostOptimizer) -> None:
        self._host = host
        self.accumulate = host.accumulate
        self.sum_of_squares = host.sum_of_squares
        self.update = host.update

    def table(self, views: Sequence[StateViews]) -> PieceTable:
        return PieceTable([Piece(**v._asdict()) for v in views])

    def read_partials(self, tables: Iterable[PieceTable]) -> list[float]:
        return [value for table in tables for value in table.partials.tolist()]


class DeviceTable:
    """A chunk's state on a device, for `DeviceArithmetic`."""

    def __init__(self, views: Sequence[StateViews]) -> None:
        self.views = views
        self.gradients: list[Tensor | None] = [None] * len(views)
        self.steps = [0] * len(views)
        self.partials: list[Tensor] = []

    def set_gradient(self, index: int, gradient: Tensor | None) -> None:
        self.gradients[index] = gradient

    def set_step(self, index: int, step: int) -> None:
        self.steps[index] = step

    def piece_partials(self, index: int) -> Tensor:
        return self.partials[index]


class DeviceArithmetic:
    """torch operations on the compute stream; temporaries are a few times one slice. Format `exact` only."""

    def table(self, views: Sequence[StateViews]) -> DeviceTable:
        return DeviceTable(views)

    @torch.no_grad()
    def accumulate(self, destination: Tensor, source: Tensor, *, overwrite: bool) -> None:
        if overwrite:
            destination.copy_(source)
        else:
            destination.add_(source)

    @torch.no_grad()
    def sum_of_squares(self, table: DeviceTable) -> None:
        table.partials = [
            _partials(gradient) if gradient is not None else torch.zeros(0, dtype=torch.float64)
            for gradient in table.gradients
        ]

    def read_partials(self, tables: Iterable[DeviceTable]) -> list[float]:
        on_device = [p for table in tables for p in table.partials if p.numel()]
        values: list[float] = torch.cat(on_device).tolist() if on_device else []
        return values

    @torch.no_grad()
    def update(self, table: DeviceTable, settings: AdamW, gradient_scale: float) -> None:
        for state, gradient, step in zip(table.views, table.gradients, table.steps, strict=True):
            if gradient is not None:
                _update(state, gradient.float() * gradient_scale, step, settings)


def _partials(gradient: Tensor) -> Tensor:
    squares = gradient.double().square_()
    whole = squares.numel() // NORM_BLOCK * NORM_BLOCK
    blocks = squares[:whole].view(-1, NORM_BLOCK).sum(1)
    rest = squares[whole:]
    return torch.cat((blocks, rest.sum().view(1))) if rest.numel() else blocks


def _update(state: StateViews, gradient: Tensor, step: int, settings: AdamW) -> None:
    """AdamW with decoupled decay (Loshchilov and Hutter, 2019, algorithm 2), or Adam, in torch's order."""
    beta1, beta2 = settings.betas
    if state.master is not None:
        master = state.master
    else:
        assert state.high is not None and state.low is not None
        master = join_float32(state.high, state.low)
    if state.decay and settings.weight_decay and settings.coupled_decay:
        gradient = gradient.add(master, alpha=settings.weight_decay)
    elif state.decay and settings.weight_decay:
        master.mul_(1 - settings.lr * settings.weight_decay)
    state.exp_avg.lerp_(gradient, 1 - beta1)
    state.exp_avg_sq.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
    step_size = settings.lr / (1 - beta1**step)
    denominator = state.exp_avg_sq.sqrt().div_(math.sqrt(1 - beta2**step)).add_(settings.eps)
    master.addcdiv_(state.exp_avg, denominator, value=-step_size)
    if state.master is None:
        assert state.high is not None and state.low is not None
        high, low = split_float32(master)
        state.high.copy_(high)
        state.low.copy_(low)
