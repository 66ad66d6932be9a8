"""The host optimizer's Python face: AdamW and the host's other numeric work, in C on threads of its own.

A `PieceTable` (pieces.py) says which memory is updated, a `HostOptimizer` owns the threads that do it. The GIL is
released while C works; several threads may call one optimizer, and wait for each other.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import time
import weakref
from types import TracebackType
from typing import Any, Literal

import torch
from torch import Tensor

from workbench.optimizer import AdamW, candidates, fastest_thread_count, load_extension
from workbench.optimizer.pieces import EMITTED_TYPES, Piece, PieceTable, check_tensor, type_of
from workbench.system.processor import usable_cpus

ffi, lib = load_extension()

__all__ = ["AdamW", "HostOptimizer", "Piece", "PieceTable", "choose_instruction_set"]

MOST_THREADS = 4096
INSTRUCTION_SETS: dict[str, int] = {
    "avx512": lib.WB_AVX512,
    "avx2": lib.WB_AVX2,
    "scalar": lib.WB_SCALAR,
}  # the best first
LARGEST_FLOAT32 = torch.finfo(torch.float32).max


class HostOptimizer:
    """Threads, and the calls that they work on. Results do not depend on how many there are.

    `threads` counts the calling thread, which takes part; the others are named `host-adam/N`. `"auto"` measures, once a
    process, how many of those that affinity and cgroup quota allow make an update faster. The environment variable
    `WORKBENCH_ISA` (`scalar`, `avx2`, `avx512`) forces an instruction set. After a fork, the child's first call starts
    threads of its own.
    """

    def __init__(self, threads: int | Literal["auto"] = "auto") -> None:
        self._pool: Any = None  # first, so that close() works on a half-made object
        if threads == "auto":
            threads = measured_threads(usable_cpus())
        if not isinstance(threads, int) or not 1 <= threads <= MOST_THREADS:
            raise ValueError(f'threads must be "auto" or from 1 to {MOST_THREADS}, not {threads!r}')
        self.threads: int = threads
        self.instruction_set: str = choose_instruction_set(os.environ.get("WORKBENCH_ISA", ""))
        pool = lib.wb_pool_create(threads, INSTRUCTION_SETS[self.instruction_set])
        if pool == ffi.NULL:
            raise MemoryError("no memory for the host optimizer's threads")
        # Freed when the last call that uses it has returned, even where close() came during one.
        self._pool = ffi.gc(pool, lib.wb_pool_free)
        _open_optimizers.add(self)

    def update(self, table: PieceTable, settings: AdamW, gradient_scale: float = 1.0) -> None:
        """One AdamW step of every piece that has a gradient, which is first multiplied by `gradient_scale`.

        Raises `ValueError` where such a piece's step count has not been set; then nothing is written.
        Gradients are not checked: look at `sum_of_squares` first.
        """
        self._update(table, settings, gradient_scale, ffi.NULL)

    def measure_and_update(self, table: PieceTable, settings: AdamW, gradient_scale: float = 1.0) -> None:
        """`sum_of_squares` and `update` in one pass over memory, with the same results where all is finite.

        Raises what `update` raises. The 65,536 elements under a partial that is not finite are left untouched; the
        others are updated.
        """
        self._update(table, settings, gradient_scale, ffi.cast("double *", table._partials_address))

    def _update(self, table: PieceTable, settings: AdamW, gradient_scale: float, partials: Any) -> None:
        if not abs(gradient_scale) <= LARGEST_FLOAT32:
            raise ValueError(f"gradient_scale must be a finite float32, not {gradient_scale!r}")
        native = ffi.new(
            "wb_adamw *",
            (
                settings.lr,
                settings.betas[0],
                settings.betas[1],
                settings.eps,
                settings.weight_decay,
                gradient_scale,
                settings.coupled_decay,
            ),
        )
        self._check(lib.wb_update(self._alive(), table._native, len(table), native, partials))

    def sum_of_squares(self, table: PieceTable) -> None:
        """Fill `table.partials` from the gradients as they are, unscaled, in float64.

        Finite values cannot overflow; a partial that is not finite has an infinity or a NaN under it. A piece
        without a gradient gives 0. The bits do not depend on threads or instruction set.
        """
        partials = ffi.cast("double *", table._partials_address)
        self._check(lib.wb_sum_of_squares(self._alive(), table._native, len(table), partials))

    def accumulate(self, destination: Tensor, source: Tensor, *, overwrite: bool = False) -> None:
        """`destination += source`, or `destination = source`: float32 from float32, bfloat16 or float16."""
        count = check_tensor("destination", destination, torch.float32)
        check_tensor("source", source, count=count)
        source_type = type_of("source", source)
        lib.wb_accumulate(
            self._alive(), destination.data_ptr(), source.data_ptr(), source_type, count, overwrite
        )

    def narrow(self, destination: Tensor, source: Tensor) -> None:
        """`destination = source`: bfloat16 or float16 from float32, to the nearest, ties to even."""
        count = check_tensor("source", source, torch.float32)
        check_tensor("destination", destination, count=count)
        number = EMITTED_TYPES.get(destination.dtype)
        if number is None:
            raise ValueError(f"destination must be bfloat16 or float16, not {destination.dtype}")
        lib.wb_narrow(self._alive(), destination.data_ptr(), number, source.data_ptr(), count)

    def split(self, source: Tensor, high: Tensor, low: Tensor) -> None:
        """Split float32 `source` losslessly into `high` (bfloat16, rounded) and `low` (int16, the rest).

        `join` gives back every bit of it, whatever it is. `high` alone is a working weight: finite values
        above bfloat16's largest are infinite in it, as in any rounding, and a NaN stays one unless its upper
        mantissa bits are all set or all clear, which no arithmetic produces.
        """
        count = check_tensor("source", source, torch.float32)
        check_tensor("high", high, torch.bfloat16, count)
        check_tensor("low", low, torch.int16, count)
        lib.wb_split(self._alive(), source.data_ptr(), high.data_ptr(), low.data_ptr(), count)

    def join(self, high: Tensor, low: Tensor, out: Tensor) -> None:
        """Write into float32 `out` what `split` was given."""
        count = check_tensor("out", out, torch.float32)
        check_tensor("high", high, torch.bfloat16, count)
        check_tensor("low", low, torch.int16, count)
        lib.wb_join(self._alive(), high.data_ptr(), low.data_ptr(), out.data_ptr(), count)

    def copy(self, destination: Tensor, source: Tensor) -> None:
        """Copy bytes; dtypes may differ, the number of bytes may not. The two must not overlap."""
        check_tensor("destination", destination)
        check_tensor("source", source)
        if destination.nbytes != source.nbytes:
            raise ValueError(f"source has {source.nbytes} bytes, destination {destination.nbytes}")
        lib.wb_copy(self._alive(), destination.data_ptr(), source.data_ptr(), source.nbytes)

    def close(self) -> None:
        """End the threads, after the call that is under way. May be called twice."""
        pool, self._pool = self._pool, None
        if pool is not None:
            lib.wb_pool_stop(pool)

    def __enter__(self) -> HostOptimizer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _alive(self) -> Any:
        pool = self._pool
        if pool is None:
            raise RuntimeError("this HostOptimizer is closed")
        return pool

    @staticmethod
    def _check(result: int) -> None:
        if result == lib.WB_NO_MEMORY:
            raise MemoryError("no memory for the host optimizer's table of work")
        if result != lib.WB_OK:
            raise ValueError(f"piece {result - 1} has a gradient and step 0: set_step comes first, from 1 on")


def choose_instruction_set(requested: str = "") -> str:
    """The best that this CPU has, or the requested one; `ValueError` where that is unknown or missing."""
    available = [name for name, number in INSTRUCTION_SETS.items() if lib.wb_has_instruction_set(number)]
    if not requested:
        return available[0]
    if requested not in INSTRUCTION_SETS:
        raise ValueError(f"WORKBENCH_ISA must be one of {', '.join(INSTRUCTION_SETS)}, not {requested!r}")
    if requested not in available:
        raise ValueError(f"WORKBENCH_ISA is {requested!r}, but this CPU offers only {', '.join(available)}")
    return requested


@functools.cache
def measured_threads(most: int) -> int:
    """How many threads, up to `most`, make a large update faster on this machine. Takes some 0.1 s on 2 cores."""
    if most == 1:
        return 1
    # Beyond the caches of most processors, and within 0.5 GB.
    elements = min(1 << 25, (1 << 21) * most)
    piece = Piece(
        exp_avg=torch.zeros(elements),
        exp_avg_sq=torch.zeros(elements),
        high=torch.zeros(elements, dtype=torch.bfloat16),
        low=torch.zeros(elements, dtype=torch.int16),
    )
    table = PieceTable([piece])
    table.set_gradient(0, torch.ones(elements, dtype=torch.bfloat16))
    table.set_step(0, 1)
    with contextlib.ExitStack() as stack:
        optimizers = {count: stack.enter_context(HostOptimizer(count)) for count in candidates(most)}

        def seconds_with(threads: int) -> float:
            began = time.perf_counter()
            optimizers[threads].update(table, AdamW())
            return time.perf_counter() - began

        return fastest_thread_count(most, seconds_with)


_open_optimizers: weakref.WeakSet[HostOptimizer] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    for optimizer in list(_open_optimizers):
        optimizer.close()
