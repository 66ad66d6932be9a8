"""Copies within the host's memory, on threads of their own: they do not queue behind an update, nor hold the GIL."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Literal

from torch import Tensor

from workbench.optimizer import missing_extension

if TYPE_CHECKING:
    from workbench.optimizer.host import HostOptimizer


class HostCopier:
    """Starts its threads at the first copy; `threads` counts the caller, and may be set until then."""

    def __init__(self, threads: int | Literal["auto"]) -> None:
        self.threads = threads
        self._optimizer: HostOptimizer | None = None
        self._making = threading.Lock()

    def copy(self, destination: Tensor, source: Tensor) -> None:
        """Copy contiguous tensors of the same length; 16 bits become fp32 where the dtypes differ."""
        if missing_extension() is not None:
            destination.copy_(source)
            return
        if self._optimizer is None:
            with self._making:
                self._optimizer = self._optimizer or _optimizer(self.threads)
        if destination.dtype == source.dtype:
            self._optimizer.copy(destination, source)
        else:
            self._optimizer.accumulate(destination, source, overwrite=True)

    def close(self) -> None:
        """End the threads; no copy may be under way."""
        if self._optimizer is not None:
            self._optimizer.close()
            self._optimizer = None


def _optimizer(threads: int | Literal["auto"]) -> HostOptimizer:
    from workbench.optimizer.host import HostOptimizer

    return HostOptimizer(threads)
