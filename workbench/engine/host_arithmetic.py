"""The arithmetic of state on the host, by the native host optimizer. Importable only where its extension is there."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

from workbench.engine.arithmetic import StateViews
from workbench.optimizer.host import HostOptimizer, Piece, PieceTable


class HostArithmetic:
    """Owns the host optimizer and its threads."""

    def __init__(self, threads: int | Literal["auto"]) -> None:
        host = HostOptimizer(threads)
        self.split = host.split
        self.accumulate = host.accumulate
        self.sum_of_squares = host.sum_of_squares
        self.update = host.update
        self.close = host.close

    def table(self, views: Sequence[StateViews]) -> PieceTable:
        return PieceTable([Piece(**v._asdict()) for v in views])

    def read_partials(self, tables: Iterable[PieceTable]) -> list[float]:
        return [value for table in tables for value in table.partials.tolist()]
