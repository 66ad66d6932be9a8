"""The host optimizer's Python face: AdamW and the host's other numeric work, in C on threads of its own.

A `PieceTable` names the memory that is updated, a `HostOptimizer` owns the threads that do it. The GIL is released
while C works; several threads may call one optimizer, and wait for each other. Shapes, dtypes, alignment and contiguity
are checked where a tensor enters, so that the call of each step does no more than cross into C.

Invariant: a table's tensors must not be resized or moved (`set_`, `resize_`, `.data =`) while the table lives, because
C holds their addresses; `PieceTable.move` gives it other ones.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import time
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Literal

import torch
from torch import Tensor

from workbench.layout import MOMENTS, StateFormat, record_bytes
from workbench.optimizer import AdamW, candidates, fastest_thread_count, load_extension
from workbench.system.processor import usable_cpus

ffi, lib = load_extension()

__all__ = ["AdamW", "HostOptimizer", "Piece", "PieceTable", "choose_instruction_set"]

MOST_THREADS = 4096
INSTRUCTION_SETS: dict[str, int] = {
    "avx512": lib.WB_AVX512,
    "avx2": lib.WB_AVX2,
    "neon": lib.WB_NEON,
    "scalar": lib.WB_SCALAR,
}  # the best first
LARGEST_FLOAT32 = torch.finfo(torch.float32).max
PARTIAL_ELEMENTS = 65536
GRADIENT_TYPES: dict[torch.dtype, int] = {
    torch.float32: lib.WB_FLOAT32,
    torch.bfloat16: lib.WB_BFLOAT16,
    torch.float16: lib.WB_FLOAT16,
}
EMITTED_TYPES = {dtype: GRADIENT_TYPES[dtype] for dtype in (torch.bfloat16, torch.float16)}
NATIVE_FORMATS: dict[StateFormat, int] = {
    "exact": lib.WB_EXACT,
    "half": lib.WB_HALF,
    "compact": lib.WB_COMPACT,
}
STATE = ("exp_avg", "exp_avg_sq", "exp_avg_scale", "exp_avg_sq_scale", "master", "high", "low", "emit")
ADDRESSES = (*STATE, "records")
RECORD_ALIGNMENT = 64


@dataclass(frozen=True)
class Piece:
    """Consecutive elements of one parameter. All tensors: 1-D, contiguous, on the CPU.

    Either `master` is given, or `high` and `low`, which hold it losslessly as two 16-bit halves; `high` is at
    the same time the bfloat16 working weights. `state_format` is that of the moments (see `MOMENTS`); all zeros is the
    state before the first step in each.

    Beyond `exact`, moments are rounded stochastically. The random bits follow from `random_stream`, the step count and
    the element's place in its parameter alone.
    """

    exp_avg: Tensor  # float32, bfloat16 or int8
    exp_avg_sq: Tensor  # float32, bfloat16 or uint8
    master: Tensor | None = None  # float32, also the working weights unless `emit` is given
    high: Tensor | None = None  # bfloat16
    low: Tensor | None = None  # int16
    decay: bool = True  # False: weight_decay is 0 for this piece
    learning_rate_scale: float = 1.0
    emit: Tensor | None = None  # bfloat16 or float16 working weights, written beside a float32 master
    exp_avg_scale: Tensor | None = None  # compact: float32, one for each 256 elements
    exp_avg_sq_scale: Tensor | None = None
    offset: int = 0  # of the first element in its parameter: a multiple of 65,536
    state_format: StateFormat = "exact"
    random_stream: int = 0  # which parameter this is, for its random bits: from 0 to 2^63 - 1
    records: Tensor | None = None  # uint8, for `HostOptimizer.speculate`: `record_bytes` of them

    def __post_init__(self) -> None:
        if self.master is None and (self.high is None or self.low is None):
            raise ValueError("a piece needs master, or high and low together")
        if self.master is not None and (self.high is not None or self.low is not None):
            raise ValueError("master excludes high and low: a piece has one or the other")
        if self.emit is not None and self.master is None:
            raise ValueError("emit goes with master; in a split piece high is the working weights")
        if self.emit is not None and self.emit.dtype not in EMITTED_TYPES:
            raise ValueError(f"emit must be torch.bfloat16 or torch.float16, not {self.emit.dtype}")
        if self.offset < 0 or self.offset % PARTIAL_ELEMENTS:
            raise ValueError(f"offset must be a multiple of {PARTIAL_ELEMENTS:,}, not {self.offset}")
        if not 0 <= self.random_stream < 1 << 63:
            raise ValueError(f"random_stream must be from 0 to 2^63 - 1, not {self.random_stream}")
        count = check_tensor("exp_avg", self.exp_avg)
        moments = {t.kind: (getattr(torch, t.dtype), t.count(count)) for t in MOMENTS[self.state_format]}
        for name in ("exp_avg_scale", "exp_avg_sq_scale"):
            if (getattr(self, name) is None) == (name in moments):
                wanted = "needs" if name in moments else "has no"
                raise ValueError(f"a {self.state_format} piece {wanted} {name}")
        for name, (dtype, elements) in {
            **moments,
            "master": (torch.float32, count),
            "high": (torch.bfloat16, count),
            "low": (torch.int16, count),
            "emit": (None, count),
        }.items():
            tensor = getattr(self, name)
            if tensor is None:
                continue
            check_tensor(name, tensor, dtype, elements)
            if tensor.dim() != 1:
                raise ValueError(f"{name} must have one dimension, not {tensor.dim()}")
        if self.records is not None:
            size = record_bytes(self.state_format, count)
            check_tensor("records", self.records, torch.uint8, size)
            if self.records.data_ptr() % RECORD_ALIGNMENT:
                raise ValueError(f"records must begin at a multiple of {RECORD_ALIGNMENT} bytes")

    @property
    def count(self) -> int:
        return self.exp_avg.numel()


class PieceTable:
    """The pieces that one call updates, as C sees them. Keeps their tensors alive.

    A piece's step count is 0 at first and must be set before its first update; a piece without a gradient is
    left untouched.
    """

    def __init__(self, pieces: Sequence[Piece]) -> None:
        self._pieces = tuple(pieces)
        self._gradients: list[Tensor | None] = [None] * len(self._pieces)
        self._counts = [piece.count for piece in self._pieces]
        self._native: Any = ffi.new("wb_piece[]", len(self._pieces))  # zeros
        partials = 0
        self._first_partials: list[int] = []
        for native, piece in zip(self._native, self._pieces, strict=True):
            native.count = piece.count
            native.first_partial = partials
            native.decay = piece.decay
            if piece.learning_rate_scale != 1.0:  # which zeros stand for
                native.learning_rate_scale = piece.learning_rate_scale
            native.offset = piece.offset
            native.random_stream = piece.random_stream
            native.state_format = NATIVE_FORMATS[piece.state_format]
            if piece.emit is not None:
                native.emit_type = EMITTED_TYPES[piece.emit.dtype]
            for name in ADDRESSES:
                tensor = getattr(piece, name)
                setattr(native, name, 0 if tensor is None else tensor.data_ptr())
            self._first_partials.append(partials)
            partials += -(-piece.count // PARTIAL_ELEMENTS)
        self.partials = torch.zeros(partials, dtype=torch.float64)
        """Sums of squares, one per 65,536 elements of each piece in order; `sum_of_squares` fills them."""
        self._partials_address = self.partials.data_ptr()
        self._rows: list[Any] = list(self._native)
        self._gradient_column = self._column("gradient")
        self.steps = self._column("step")
        """The pieces' step counts, int64, in C's own memory: what is written here is what the next update uses."""

    def __len__(self) -> int:
        return len(self._pieces)

    @property
    def state(self) -> list[Tensor]:
        """The tensors that an update writes."""
        tensors = (getattr(piece, name) for piece in self._pieces for name in STATE)
        return [tensor for tensor in tensors if tensor is not None]

    @property
    def gradients(self) -> list[Tensor]:
        """The tensors that an update reads."""
        return [gradient for gradient in self._gradients if gradient is not None]

    def move(self, pieces: Sequence[Piece]) -> None:
        """Point to the same pieces in other memory. Gradients, step counts and partials stay.

        Raises `ValueError` where a piece has another number of elements or another format.
        """
        if [p.count for p in pieces] != self._counts:
            raise ValueError("the pieces have other numbers of elements than the table's")
        for row, piece, old in zip(self._rows, pieces, self._pieces, strict=True):
            if piece.state_format != old.state_format:
                raise ValueError(f"a piece is {piece.state_format}, the table's is {old.state_format}")
            for name in ADDRESSES:
                tensor = getattr(piece, name)
                setattr(row, name, 0 if tensor is None else tensor.data_ptr())
        self._pieces = tuple(pieces)

    def piece_partials(self, index: int) -> Tensor:
        """Return the view of `partials` that belongs to one piece."""
        self._check_index(index)
        first = self._first_partials[index]
        return self.partials[first : first - (-self._counts[index] // PARTIAL_ELEMENTS)]

    def set_gradient(self, index: int, gradient: Tensor | None) -> None:
        """Give a piece its gradient (float32, bfloat16 or float16, any shape, contiguous), or take it away.

        Raises `ValueError` where its elements are not as many as the piece's.
        """
        self._check_index(index)
        native = self._native[index]
        if gradient is None:
            native.gradient = 0
        else:
            check_tensor("gradient", gradient, count=self._counts[index])
            native.gradient_type = type_of("gradient", gradient)
            # A tensor without elements may have no address; C does not use it, but 0 would mean no gradient.
            native.gradient = gradient.data_ptr() or 1
        self._gradients[index] = gradient

    def set_gradients(self, gradients: Sequence[Tensor | None]) -> None:
        """`set_gradient` of every piece in order, at a lower cost for each; raises what it raises."""
        for index, (gradient, count, row) in enumerate(zip(gradients, self._counts, self._rows, strict=True)):
            if gradient is None:
                row.gradient = 0
                continue
            number = GRADIENT_TYPES.get(gradient.dtype)
            # A sparse tensor has no address to ask for, and is not contiguous.
            if number is None or not (gradient.is_contiguous() and gradient.is_cpu):
                self.set_gradient(index, gradient)  # which raises
                continue
            address = gradient.data_ptr()
            if not address or address & 3 or gradient.numel() != count:
                self.set_gradient(index, gradient)  # which looks closer
                continue
            row.gradient = address
            row.gradient_type = number
        self._gradients = list(gradients)

    def release_gradients(self) -> None:
        """Take all gradients away, so that the table does not keep their memory until the next step."""
        self._gradients = [None] * len(self._rows)
        self._gradient_column.zero_()

    def set_step(self, index: int, step: int) -> None:
        """Set the step count that the next update's bias correction uses: 1 at a piece's first update."""
        self._check_index(index)
        if step < 0:
            raise ValueError(f"step must not be negative, not {step}")
        self._native[index].step = step

    def set_steps(self, steps: Sequence[int]) -> None:
        """`set_step` of every piece in order, at a lower cost for each. Raises `ValueError` where one is negative."""
        if len(steps) != len(self._rows) or (steps and min(steps) < 0):
            raise ValueError(f"steps must be {len(self._rows)} numbers, none of them negative")
        for row, step in zip(self._rows, steps, strict=True):
            row.step = step

    def _column(self, name: str) -> Tensor:
        """Return a 64-bit field of all pieces, as int64 in C's memory."""
        if not self._rows:
            return torch.zeros(0, dtype=torch.int64)
        words = torch.frombuffer(ffi.buffer(self._native), dtype=torch.int64).view(len(self._rows), -1)
        return words[:, ffi.offsetof("wb_piece", name) // words.element_size()]

    def _check_index(self, index: int) -> None:
        if not 0 <= index < len(self._counts):
            raise IndexError(f"index must be from 0 to {len(self._counts) - 1}, not {index}")


def check_tensor(
    name: str, tensor: Tensor, dtype: torch.dtype | None = None, count: int | None = None
) -> int:
    """Return the number of elements; raise where C could not work on the tensor's memory as it lies."""
    if not isinstance(tensor, Tensor):
        raise TypeError(f"{name} must be a tensor, not {type(tensor).__name__}")
    if dtype is not None and tensor.dtype is not dtype:
        raise ValueError(f"{name} must be {dtype}, not {tensor.dtype}")
    if not tensor.is_cpu:
        raise ValueError(f"{name} must be on the CPU, not on {tensor.device}")
    if tensor.layout is not torch.strided:
        raise ValueError(f"{name} must be dense, not {tensor.layout}")
    if not tensor.is_contiguous():
        raise ValueError(f"{name} must be contiguous, not with strides {tensor.stride()}")
    elements = tensor.numel()
    if count is not None and elements != count:
        raise ValueError(f"{name} must have {count} elements, not {elements}")
    if tensor.data_ptr() % tensor.element_size():
        raise ValueError(
            f"{name} must begin at a multiple of its element size, {tensor.element_size()} bytes"
        )
    return elements


def type_of(name: str, tensor: Tensor) -> int:
    number = GRADIENT_TYPES.get(tensor.dtype)
    if number is None:
        raise ValueError(f"{name} must be float32, bfloat16 or float16, not {tensor.dtype}")
    return number


class HostOptimizer:
    """Threads, and the calls that they work on. Results do not depend on how many there are.

    `threads` counts the calling thread, which takes part; the others are named `host-adam/N`. `"auto"` measures, once a
    process, how many of those that affinity and cgroup quota allow make an update faster. The environment variable
    `WORKBENCH_ISA` (`scalar`, `neon`, `avx2`, `avx512`) forces an instruction set. After a fork, the child's first call
    starts threads of its own.
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
        """Take one AdamW step of every piece that has a gradient, which is first multiplied by `gradient_scale`.

        Raises `ValueError` where such a piece's step count has not been set; then nothing is written.
        Gradients are not checked: look at `sum_of_squares` first.
        """
        self._update(table, settings, gradient_scale, ffi.NULL)

    def measure_and_update(self, table: PieceTable, settings: AdamW, gradient_scale: float = 1.0) -> None:
        """Do `sum_of_squares` and `update` in one pass over memory, with the same results where all is finite.

        Raises what `update` raises. The 65,536 elements under a partial that is not finite are left untouched; the
        others are updated.
        """
        self._update(table, settings, gradient_scale, ffi.cast("double *", table._partials_address))

    def _update(self, table: PieceTable, settings: AdamW, gradient_scale: float, partials: Any) -> None:
        native = _native_settings(settings, gradient_scale)
        self._check(lib.wb_update(self._alive(), table._native, len(table), native, partials))

    def speculate(self, table: PieceTable, settings: AdamW, gradient_scale: float = 1.0) -> int:
        """Do `update` before it is known whether it stays; return how many elements it left as they were.

        It leaves those that it could not undo (see `wb_speculation` in native/interface.h). What follows, with the
        same gradients, steps and settings, is one of `complete`, `undo` and `redo`.
        """
        return self._speculation(lib.WB_SPECULATE, table, settings, gradient_scale)

    def complete(self, table: PieceTable, settings: AdamW, gradient_scale: float = 1.0) -> None:
        """Update the elements that `speculate` left: the update stays."""
        self._speculation(lib.WB_COMPLETE, table, settings, gradient_scale)

    def undo(self, table: PieceTable, settings: AdamW, speculated_scale: float = 1.0) -> None:
        """Give the state the bits that it had before `speculate`."""
        self._speculation(lib.WB_UNDO, table, settings, 1.0, speculated_scale)

    def redo(
        self, table: PieceTable, settings: AdamW, speculated_scale: float, gradient_scale: float
    ) -> None:
        """Do `undo`, and then `update` with another scale."""
        self._speculation(lib.WB_REDO, table, settings, gradient_scale, speculated_scale)

    def _speculation(
        self,
        action: int,
        table: PieceTable,
        settings: AdamW,
        gradient_scale: float,
        speculated_scale: float = 1.0,
    ) -> int:
        native = _native_settings(settings, gradient_scale, speculated_scale)
        left = ffi.new("int64_t *")
        self._check(lib.wb_speculation(self._alive(), table._native, len(table), native, action, left))
        return int(left[0])

    def sum_of_squares(self, table: PieceTable) -> None:
        """Fill `table.partials` from the gradients as they are, unscaled, in float64.

        Finite values cannot overflow; a partial that is not finite has an infinity or a NaN under it. A piece
        without a gradient gives 0. The bits do not depend on threads or instruction set.
        """
        partials = ffi.cast("double *", table._partials_address)
        self._check(lib.wb_sum_of_squares(self._alive(), table._native, len(table), partials))

    def accumulate(self, destination: Tensor, source: Tensor, *, overwrite: bool = False) -> None:
        """Do `destination += source`, or `destination = source`: float32 from float32, bfloat16 or float16."""
        count = check_tensor("destination", destination, torch.float32)
        check_tensor("source", source, count=count)
        source_type = type_of("source", source)
        lib.wb_accumulate(
            self._alive(), destination.data_ptr(), source.data_ptr(), source_type, count, overwrite
        )

    def narrow(self, destination: Tensor, source: Tensor) -> None:
        """Do `destination = source`: bfloat16 or float16 from float32, to the nearest, ties to even."""
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


def _native_settings(settings: AdamW, gradient_scale: float, speculated_scale: float = 1.0) -> Any:
    for scale in (gradient_scale, speculated_scale):
        if not abs(scale) <= LARGEST_FLOAT32:
            raise ValueError(f"gradient_scale must be a finite float32, not {scale!r}")
    return ffi.new(
        "wb_adamw *",
        (
            settings.lr,
            settings.betas[0],
            settings.betas[1],
            settings.eps,
            settings.weight_decay,
            gradient_scale,
            settings.coupled_decay,
            speculated_scale,
        ),
    )


def choose_instruction_set(requested: str = "") -> str:
    """Return the best that this CPU has, or the requested one; raise ValueError where that is unknown or missing."""
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
    """Return the number of threads, up to `most`, that make a large update fastest. Takes some 0.1 s on 2 cores."""
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
