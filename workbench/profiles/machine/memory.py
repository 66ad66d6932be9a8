"""How fast the host's memory is read, written and copied, by the number of threads.

Reading and copying are done by the host optimizer's threads, writing by torch's; all by torch's where the extension is
missing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import NamedTuple

import torch

from workbench.optimizer.extension import missing_extension
from workbench.profiles.machine.budget import Budget
from workbench.profiles.machine.host_buffers import HostBuffers, with_torch_threads
from workbench.profiles.machine.turns import Work, median_seconds

BUFFERS = 2


class MemoryRates(NamedTuple):
    """Bytes a second for each number of threads; a copy of n bytes counts n."""

    read: tuple[float, ...]
    write: tuple[float, ...]
    copy: tuple[float, ...]


def measure_memory(buffers: HostBuffers, nbytes: int, threads: Sequence[int], budget: Budget) -> MemoryRates:
    """Measure with `BUFFERS` buffers of `nbytes` each."""
    elements = nbytes // 4
    source = buffers.normal(elements, torch.float32, deviation=1.0)
    target = buffers.filled(elements, torch.float32)
    contenders: dict[tuple[str, int], Work] = {}
    with contextlib.ExitStack() as stack:
        for count in threads:
            contenders["write", count] = with_torch_threads(count, lambda: target.fill_(1.0))
            if missing_extension() is None:
                read, copy = _native(stack, count, source, target)
            else:
                read = with_torch_threads(count, source.sum)
                copy = with_torch_threads(count, lambda: target.copy_(source))
            contenders["read", count], contenders["copy", count] = read, copy
        seconds = median_seconds(contenders, budget)
    rates = {
        name: tuple(source.nbytes / seconds[name, count] for count in threads)
        for name in ("read", "write", "copy")
    }
    return MemoryRates(**rates)


def _native(
    stack: contextlib.ExitStack, threads: int, source: torch.Tensor, target: torch.Tensor
) -> tuple[Work, Work]:
    """What reads `source`, and what copies it to `target`."""
    from workbench.optimizer.host import HostOptimizer, Piece, PieceTable

    host = stack.enter_context(HostOptimizer(threads))
    # Sums of squares read nothing of a piece but its gradient.
    table = PieceTable([Piece(master=target, exp_avg=target, exp_avg_sq=target)])
    table.set_gradient(0, source)
    return (lambda: host.sum_of_squares(table)), (lambda: host.copy(target, source))
