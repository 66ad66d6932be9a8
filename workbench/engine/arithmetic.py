"""Sums, norms and updates in the tier of the state: on the host by the native optimizer, or by torch operations where
its extension is missing. State on a device of its own has `device_arithmetic.py`.

All follow the same formulas, with one step count a parameter; the native one is the truth for `exact`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.optim.adam import adam
from torch.optim.adamw import adamw

from workbench.layout import NORM_BLOCK, StateFormat
from workbench.optimizer import AdamW
from workbench.optimizer.reference import join_float32, split_float32

if TYPE_CHECKING:
    from workbench.optimizer.host import Piece, PieceTable


class StateViews(NamedTuple):
    """The state of one slice of a parameter, 1-D views: `master` fp32, or `high` bf16 and `low` int16.

    `working`: fp16 working weights beside a master, which an update writes. `records`: of updates that may be undone.
    `offset` is the slice's first element in the parameter, `random_stream` the parameter's number (see `Piece`).
    """

    decay: bool
    learning_rate_scale: float
    state_format: StateFormat
    offset: int
    random_stream: int
    exp_avg: Tensor
    exp_avg_sq: Tensor
    master: Tensor | None = None
    high: Tensor | None = None
    low: Tensor | None = None
    working: Tensor | None = None
    exp_avg_scale: Tensor | None = None
    exp_avg_sq_scale: Tensor | None = None
    records: Tensor | None = None


class Table(Protocol):
    """The pieces that are updated in one go, with what changes from step to step."""

    def set_gradients(self, gradients: Sequence[Tensor | None]) -> None: ...
    def release_gradients(self) -> None: ...
    def set_steps(self, steps: Sequence[int]) -> None: ...
    def piece_partials(self, index: int) -> Tensor: ...


class Arithmetic(Protocol):
    """Sums, norms and updates in the tier where the state lives. `threads`: those that work, the caller's counted."""

    @property
    def threads(self) -> int: ...

    def table(self, views: Sequence[StateViews]) -> Table: ...
    def move(self, table: Any, views: Sequence[StateViews]) -> None:
        """Point `table` to the same pieces in other memory: a chunk whose state has been read from disk."""
        ...

    def split(self, source: Tensor, high: Tensor, low: Tensor) -> None: ...
    def narrow(self, destination: Tensor, source: Tensor) -> None: ...
    def accumulate(self, destination: Tensor, source: Tensor, *, overwrite: bool) -> None: ...
    def sum_of_squares(self, table: Any) -> None: ...
    def read_partials(self, tables: Iterable[Any]) -> list[float]: ...
    def update(self, table: Any, settings: AdamW, gradient_scale: float) -> None: ...
    def measure_and_update(self, table: Any, settings: AdamW, gradient_scale: float) -> bool:
        """Do `sum_of_squares` and `update` in one; return whether anything was, or may have been, written."""
        ...

    def close(self) -> None: ...


class HostArithmetic:
    """The native host optimizer; importable only where its extension is there. Owns its threads."""

    def __init__(self, threads: int | Literal["auto"]) -> None:
        from workbench.optimizer.host import HostOptimizer

        self._host = HostOptimizer(threads)
        self._sums: WeakKeyDictionary[PieceTable, list[float]] = WeakKeyDictionary()
        """Of each table's partials, as few numbers of the same sum."""

    @property
    def threads(self) -> int:
        return self._host.threads

    def table(self, views: Sequence[StateViews]) -> PieceTable:
        from workbench.optimizer.host import PieceTable

        return PieceTable([_piece(v) for v in views])

    def move(self, table: PieceTable, views: Sequence[StateViews]) -> None:
        table.move([_piece(v) for v in views])

    def split(self, source: Tensor, high: Tensor, low: Tensor) -> None:
        self._host.split(source, high, low)

    def narrow(self, destination: Tensor, source: Tensor) -> None:
        self._host.narrow(destination, source)

    def accumulate(self, destination: Tensor, source: Tensor, *, overwrite: bool) -> None:
        self._host.accumulate(destination, source, overwrite=overwrite)

    def sum_of_squares(self, table: PieceTable) -> None:
        self._host.sum_of_squares(table)
        # Here, beside backward, and not when all of compute waits for the norm.
        self._sums[table] = exact_parts(table.partials.tolist())

    def read_partials(self, tables: Iterable[PieceTable]) -> list[float]:
        return [value for table in tables for value in self._sums.get(table, ())]

    def update(self, table: PieceTable, settings: AdamW, gradient_scale: float) -> None:
        self._host.update(table, settings, gradient_scale)

    def speculate(self, table: PieceTable, settings: AdamW, gradient_scale: float) -> int:
        """See `HostOptimizer.speculate`, and for what follows it the methods of the same names."""
        return self._host.speculate(table, settings, gradient_scale)

    def complete(self, table: PieceTable, settings: AdamW, gradient_scale: float) -> None:
        self._host.complete(table, settings, gradient_scale)

    def undo(self, table: PieceTable, settings: AdamW, speculated_scale: float) -> None:
        self._host.undo(table, settings, speculated_scale)

    def redo(
        self, table: PieceTable, settings: AdamW, speculated_scale: float, gradient_scale: float
    ) -> None:
        self._host.redo(table, settings, speculated_scale, gradient_scale)

    def measure_and_update(self, table: PieceTable, settings: AdamW, gradient_scale: float) -> bool:
        self._host.measure_and_update(table, settings, gradient_scale)
        self._sums[table] = exact_parts(table.partials.tolist())
        return True

    def close(self) -> None:
        self._host.close()


def exact_parts(values: list[float]) -> list[float]:
    """Return a few numbers whose sum is that of `values` without any rounding (Shewchuk, 1997, §2.5: an expansion).

    Where the sum is not finite, that alone.
    """
    parts: list[float] = []
    rest = list(values)
    while (part := math.fsum(rest)) != 0.0:
        parts.append(part)
        if not math.isfinite(part):
            break
        rest.append(-part)
    return parts


def _piece(views: StateViews) -> Piece:
    from workbench.optimizer.host import Piece

    fields = views._asdict()
    return Piece(emit=fields.pop("working"), **fields)


class TorchTable:
    """A chunk's state, for `TorchArithmetic`."""

    def __init__(self, views: Sequence[StateViews]) -> None:
        self.views = views
        self.gradients: list[Tensor | None] = [None] * len(views)
        self.steps = [0] * len(views)
        self.partials: list[Tensor] = []

    def set_gradients(self, gradients: Sequence[Tensor | None]) -> None:
        self.gradients = [None if g is None else g.view(-1) for g in gradients]

    def release_gradients(self) -> None:
        self.gradients = [None] * len(self.views)

    def set_steps(self, steps: Sequence[int]) -> None:
        self.steps = list(steps)

    def piece_partials(self, index: int) -> Tensor:
        return self.partials[index]


class TorchCopies:
    """Changes of dtype and sums by torch operations."""

    @property
    def threads(self) -> int:
        return torch.get_num_threads()

    @torch.no_grad()
    def split(self, source: Tensor, high: Tensor, low: Tensor) -> None:
        upper, lower = split_float32(source.to(high.device))
        high.copy_(upper)
        low.copy_(lower)

    @torch.no_grad()
    def narrow(self, destination: Tensor, source: Tensor) -> None:
        destination.copy_(source)

    @torch.no_grad()
    def accumulate(self, destination: Tensor, source: Tensor, *, overwrite: bool) -> None:
        if overwrite:
            destination.copy_(source)
        else:
            destination.add_(source)

    def close(self) -> None:
        """There is nothing to end."""


class TorchArithmetic(TorchCopies):
    """torch operations on the host, for where the native extension is missing. `exact` only."""

    def table(self, views: Sequence[StateViews]) -> TorchTable:
        return TorchTable(views)

    def move(self, table: TorchTable, views: Sequence[StateViews]) -> None:
        table.views = views

    @torch.no_grad()
    def sum_of_squares(self, table: TorchTable) -> None:
        table.partials = [
            _partials(gradient) if gradient is not None else torch.zeros(0, dtype=torch.float64)
            for gradient in table.gradients
        ]

    def read_partials(self, tables: Iterable[TorchTable]) -> list[float]:
        on_device = [p for table in tables for p in table.partials if p.numel()]
        values: list[float] = torch.cat(on_device).tolist() if on_device else []
        return values

    @torch.no_grad()
    def update(self, table: TorchTable, settings: AdamW, gradient_scale: float) -> None:
        for state, gradient, step in zip(table.views, table.gradients, table.steps, strict=True):
            if gradient is not None:
                _update(state, gradient.float() * gradient_scale, step, settings)

    def measure_and_update(self, table: TorchTable, settings: AdamW, gradient_scale: float) -> bool:
        self.sum_of_squares(table)
        if not math.isfinite(math.fsum(self.read_partials([table]))):
            return False
        self.update(table, settings, gradient_scale)
        return True


def _partials(gradient: Tensor) -> Tensor:
    squares = gradient.double().square_()
    whole = squares.numel() // NORM_BLOCK * NORM_BLOCK
    blocks = squares[:whole].view(-1, NORM_BLOCK).sum(1)
    rest = squares[whole:]
    return torch.cat((blocks, rest.sum().view(1))) if rest.numel() else blocks


def _update(state: StateViews, gradient: Tensor, step: int, settings: AdamW) -> None:
    if state.learning_rate_scale != 1.0:
        settings = replace(settings, lr=settings.lr * state.learning_rate_scale)
    if state.master is not None:
        master = state.master
    else:
        assert state.high is not None and state.low is not None
        master = join_float32(state.high, state.low)
    _fused(state, master, gradient, step, settings)
    if state.master is None:
        assert state.high is not None and state.low is not None
        high, low = split_float32(master)
        state.high.copy_(high)
        state.low.copy_(low)
    elif state.working is not None:
        state.working.copy_(master)


def _fused(state: StateViews, master: Tensor, gradient: Tensor, step: int, settings: AdamW) -> None:
    """AdamW or Adam by torch's fused kernel, which makes one pass of it."""
    function = adam if settings.coupled_decay else adamw
    function(
        [master],
        [gradient],
        [state.exp_avg],
        [state.exp_avg_sq],
        [],
        [torch.tensor(float(step - 1))],  # counted up by the call
        fused=True,
        amsgrad=False,
        maximize=False,
        lr=settings.lr,
        beta1=settings.betas[0],
        beta2=settings.betas[1],
        eps=settings.eps,
        weight_decay=settings.weight_decay if state.decay else 0.0,
    )
