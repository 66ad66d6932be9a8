"""The arithmetic of state on the host, by the native host optimizer. Importable only where its extension is there."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

from workbench.engine.arithmetic.tier_arithmetic import StateViews
from workbench.optimizer.host import HostOptimizer, Piece, PieceTable
from workbench.optimizer.settings import AdamW


class HostTable(PieceTable):
    """A chunk's state as the host optimizer's pieces."""

    def __init__(self, views: Sequence[StateViews]) -> None:
        super().__init__([_piece(v) for v in views])

    def set_state(self, views: Sequence[StateViews]) -> None:
        """The same pieces in other memory: a chunk whose state has been read from disk."""
        self.move([_piece(v) for v in views])


class HostArithmetic:
    """Owns the host optimizer and its threads."""

    def __init__(self, threads: int | Literal["auto"]) -> None:
        host = HostOptimizer(threads)
        self.split = host.split
        self.narrow = host.narrow
        self.accumulate = host.accumulate
        self.sum_of_squares = host.sum_of_squares
        self.update = host.update
        self._measure_and_update = host.measure_and_update
        self.close = host.close

    def table(self, views: Sequence[StateViews]) -> HostTable:
        return HostTable(views)

    def measure_and_update(self, table: HostTable, settings: AdamW, gradient_scale: float) -> bool:
        self._measure_and_update(table, settings, gradient_scale)
        return True

    def read_partials(self, tables: Iterable[HostTable]) -> list[float]:
        return [value for table in tables for value in table.partials.tolist()]


def _piece(views: StateViews) -> Piece:
    fields = views._asdict()
    return Piece(emit=fields.pop("working"), **fields)
