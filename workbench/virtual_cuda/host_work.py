"""Tells the race checker what the engine's host work reads and writes: the optimizer, copies within the host, files.

They work on addresses, so that the device's modes do not see them.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

from torch import Tensor

from workbench.engine import arithmetic, disk_files
from workbench.engine.devices import pinned as copies
from workbench.optimizer.host import HostOptimizer
from workbench.virtual_cuda.memory import bytes_of
from workbench.virtual_cuda.operations import PinnedMemory
from workbench.virtual_cuda.streams import Queues

Touched = tuple[list[Tensor], list[Tensor]]
"""The tensors that a call reads and writes."""


@contextlib.contextmanager
def watched(pinned: PinnedMemory, queues: Queues) -> Iterator[None]:
    """Within it each call of the host's work is an access to the pinned memory that it touches."""

    def watch(holder: Any, name: str, touched: Callable[..., Touched]) -> Any:
        inner = getattr(holder, name)

        @functools.wraps(inner)
        def call(*args: Any, **kwargs: Any) -> Any:
            reads, writes = (
                [bytes_of(t) for t in tensors if pinned.holds(t)] for tensors in touched(*args, **kwargs)
            )
            queues.host_access(name, reads, writes)
            return inner(*args, **kwargs)

        return mock.patch.object(holder, name, call)

    host = arithmetic.HostArithmetic
    with contextlib.ExitStack() as stack:
        for holder, name, touched in (
            (host, "update", _update),
            (host, "measure_and_update", _update),
            (host, "speculate", _update),
            (host, "complete", _update),
            (host, "undo", _update),
            (host, "redo", _update),
            (host, "sum_of_squares", lambda host, table: (table.gradients, [])),
            (host, "accumulate", _accumulate),
            (host, "split", lambda host, source, high, low: ([source], [high, low])),
            (host, "narrow", lambda host, destination, source: ([source], [destination])),
            (HostOptimizer, "copy", lambda host, destination, source: ([source], [destination])),
            (copies, "move", lambda destination, source: ([source], [destination])),
            (disk_files.RecordFile, "read", lambda file, record, buffer: ([], [buffer])),
            (disk_files.RecordFile, "write", lambda file, record, buffer: ([buffer], [])),
        ):
            stack.enter_context(watch(holder, name, touched))
        yield


def _update(host: Any, table: Any, settings: Any, *scales: float) -> Touched:
    return table.gradients, table.state


def _accumulate(host: Any, destination: Tensor, source: Tensor, *, overwrite: bool) -> Touched:
    return [source], [destination]
