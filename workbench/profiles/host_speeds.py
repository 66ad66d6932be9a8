"""Measures the host by the number of threads: its memory, and updates, norms and sums of the host optimizer.

Memory is got as the engine gets its own; the optimizer is measured through the arithmetic that the engine uses, in
pieces as large as its chunks: the native one, or torch's where the extension is missing, which has no other format than
`exact`.
"""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from torch import Tensor

from workbench.engine.arithmetic import Arithmetic, HostArithmetic, StateViews, Table, TorchArithmetic
from workbench.engine.devices.device import Device
from workbench.layout import MOMENTS, StateFormat, record_bytes
from workbench.optimizer import AdamW, missing_extension
from workbench.profiles.machine_profile import Dtype
from workbench.profiles.sampling import Budget, Work, median_seconds

CPUS = Path("/sys/devices/system/cpu")
SEED = 1234
DRAWN = 1 << 20
SHARE_OF_FREE = 8
"""All buffers together take no more than one part in so many of what is free."""
SIZE_SUFFIXES = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
MEMORY_BUFFERS = 2
BYTES_A_PARAMETER = 39
"""Of all buffers together: gradients in three dtypes, two masters, 16-bit copies, moments in three formats, records."""
PIECE_ELEMENTS = 1 << 23
GRADIENT = 1e-3
LOSS_SCALE = 65536.0
STEP = 5
CLIPPED = 0.5
SETTINGS = AdamW(lr=1e-4, weight_decay=0.01)
DTYPES: dict[Dtype, torch.dtype] = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}

Tensors = dict[str, Tensor]


# Buffers


class HostBuffers:
    """Tensors in host memory that copies of `device` reach at full speed; they go with the end of the `with` block."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._tensors: list[Tensor] = []

    def __enter__(self) -> HostBuffers:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        while self._tensors:
            self._device.release_host(self._tensors.pop())

    def filled(self, elements: int, dtype: torch.dtype, value: float = 0.0) -> Tensor:
        """Return a 1-D tensor, every element `value`, every page touched."""
        tensor = self._device.pinned_zeros(elements, dtype)
        self._tensors.append(tensor)
        return tensor.fill_(value)

    def normal(self, elements: int, dtype: torch.dtype, deviation: float, stream: int = 0) -> Tensor:
        """Return a 1-D tensor of normal numbers, which repeat: zeros and denormals cost what no gradient costs."""
        drawn = torch.randn(min(elements, DRAWN), generator=torch.Generator().manual_seed(SEED + stream))
        drawn = drawn.mul_(deviation).to(dtype)
        tensor = self.filled(elements, dtype)
        for first in range(0, elements, len(drawn)):
            part = tensor[first : first + len(drawn)]
            part.copy_(drawn[: len(part)])
        return tensor


def cache_bytes(folder: Path = CPUS) -> int:
    """Return the bytes of all last-level caches together; 0 where the system does not say."""
    largest: dict[str, tuple[int, int]] = {}
    for index in sorted(folder.glob("cpu[0-9]*/cache/index*")):
        try:
            level = int((index / "level").read_text())
            size = (index / "size").read_text().strip()
            shared = (index / "shared_cpu_list").read_text().strip()
        except (OSError, ValueError):
            continue
        found = re.fullmatch(r"(\d+)([KMG]?)", size)
        if found:
            largest[shared] = max(
                largest.get(shared, (0, 0)), (level, int(found[1]) * SIZE_SUFFIXES[found[2]])
            )
    last = max((level for level, _ in largest.values()), default=0)
    return sum(size for level, size in largest.values() if level == last)


def buffer_bytes(budget: Budget, free_bytes: int, buffers: int, cached: int) -> int:
    """Return the bytes of each of so many equal buffers: beyond the caches, within the share of free memory."""
    wanted = max(budget.buffer_bytes, int(budget.cache_multiple * cached))
    return max(1 << 16, min(wanted, free_bytes // SHARE_OF_FREE // buffers) // 4096 * 4096)


def with_torch_threads(threads: int, work: Callable[[], object]) -> Callable[[], object]:
    """Return `work` with so many threads of torch; the caller restores torch's number afterwards."""

    def run() -> object:
        torch.set_num_threads(threads)
        return work()

    return run


# Memory


def measure_memory(
    buffers: HostBuffers, nbytes: int, threads: Sequence[int], budget: Budget
) -> dict[str, Any]:
    """Return memory's fields of `HostProfile`, measured with `MEMORY_BUFFERS` buffers of `nbytes` each."""
    source = buffers.normal(nbytes // 4, torch.float32, deviation=1.0)
    target = buffers.filled(nbytes // 4, torch.float32)
    works: dict[str, Work] = {
        "read_bytes_per_s": source.sum,
        "write_bytes_per_s": lambda: target.fill_(1.0),
        "copy_bytes_per_s": lambda: target.copy_(source),
    }
    contenders = {
        (name, count): with_torch_threads(count, work) for count in threads for name, work in works.items()
    }
    seconds = median_seconds(contenders, budget)
    return {name: tuple(source.nbytes / seconds[name, count] for count in threads) for name in works}


# The host optimizer


def measure_optimizer(
    buffers: HostBuffers, elements: int, threads: Sequence[int], budget: Budget
) -> dict[str, Any]:
    """Return the optimizer's fields of `HostProfile`, with `elements` parameters of `BYTES_A_PARAMETER` each."""
    gradients = {
        name: buffers.normal(elements, dtype, deviation=GRADIENT * _loss_scale(name), stream=1)
        for name, dtype in DTYPES.items()
    }
    sums = buffers.filled(elements, torch.float32)
    native = missing_extension() is None
    formats: list[StateFormat] = list(MOMENTS) if native else ["exact"]
    pieces = -(-elements // PIECE_ELEMENTS)
    updates: dict[tuple[str, int], Work] = {}
    norms: dict[tuple[Dtype, int], Work] = {}
    additions: dict[tuple[Dtype, int], Work] = {}
    ratios: dict[str, Any] = {}
    with contextlib.ExitStack() as stack:
        optimizers: dict[int, HostArithmetic] = {}
        tables: dict[str, Table] = {}
        for count in threads:
            arithmetic: Arithmetic = HostArithmetic(count) if native else TorchArithmetic()
            stack.callback(arithmetic.close)
            if isinstance(arithmetic, HostArithmetic):
                optimizers[count] = arithmetic
            tables = tables or _tables(buffers, elements, formats, arithmetic, gradients)
            for key, table in tables.items():
                scale = 1 / _loss_scale(key.partition("-")[0])
                updates[key, count] = with_torch_threads(count, _update(arithmetic, table, pieces, scale))
            for dtype, gradient in gradients.items():
                norms[dtype, count] = with_torch_threads(count, _norm(arithmetic, tables[f"{dtype}-exact"]))
                add = functools.partial(arithmetic.accumulate, sums, gradient, overwrite=False)
                additions[dtype, count] = with_torch_threads(count, add)
        update_s = median_seconds(updates, budget)
        norm_s = median_seconds(norms, budget)
        addition_s = median_seconds(additions, budget)
        if native:
            of_format = {state_format: tables[f"bfloat16-{state_format}"] for state_format in formats}
            ratios = measure_ahead(optimizers, of_format, budget)
    return ratios | {
        "optimizer_ns": {
            key: tuple(update_s[key, count] / elements * 1e9 for count in threads) for key in tables
        },
        "norm_bytes_per_s": {
            d: tuple(gradients[d].nbytes / norm_s[d, count] for count in threads) for d in DTYPES
        },
        "accumulate_bytes_per_s": {
            d: tuple(sums.nbytes / addition_s[d, count] for count in threads) for d in DTYPES
        },
    }


def measure_ahead(
    optimizers: Mapping[int, HostArithmetic], tables: Mapping[StateFormat, Any], budget: Budget
) -> dict[str, Any]:
    """Return the ratios of `HostProfile`, of updates in turns, with `optimizers` by their threads and `tables` with
    records."""
    works: dict[tuple[str, StateFormat, int], Work] = {}
    for count, arithmetic in optimizers.items():
        for state_format, table in tables.items():
            for name in ("plain", "ahead", "redo"):
                work = functools.partial(_ahead, arithmetic, table, name)
                works[name, state_format, count] = with_torch_threads(count, work)
    seconds = median_seconds(works, budget)

    def ratio(state_format: StateFormat, count: int, name: str, before: float) -> float:
        taken = seconds[name, state_format, count] - before
        # Neither moves less than a plain update: what is below 1 is noise.
        return max(1.0, taken / seconds["plain", state_format, count])

    return {
        "ahead_ratio": {f: tuple(ratio(f, count, "ahead", 0.0) for count in optimizers) for f in tables},
        "redo_ratio": {
            f: tuple(ratio(f, count, "redo", seconds["ahead", f, count]) for count in optimizers)
            for f in tables
        },
    }


def _ahead(arithmetic: HostArithmetic, table: Any, name: str) -> None:
    if name == "plain":
        arithmetic.update(table, SETTINGS, 1.0)
        return
    arithmetic.speculate(table, SETTINGS, 1.0)
    if name == "redo":
        arithmetic.redo(table, SETTINGS, 1.0, CLIPPED)


def _tables(
    buffers: HostBuffers,
    elements: int,
    formats: Sequence[StateFormat],
    arithmetic: Arithmetic,
    gradients: dict[Dtype, Tensor],
) -> dict[str, Table]:
    """Return a table of all parameters by "DTYPE-FORMAT". Moments are shared by the dtypes of a format, and the records
    of "bfloat16" by all formats."""
    weights: dict[Dtype, Tensors] = {
        "float32": {"master": buffers.normal(elements, torch.float32, deviation=0.02, stream=2)},
        "bfloat16": {
            "high": buffers.normal(elements, torch.bfloat16, deviation=0.02, stream=2),
            "low": buffers.filled(elements, torch.int16),
        },
        "float16": {
            "master": buffers.normal(elements, torch.float32, deviation=0.02, stream=2),
            "working": buffers.filled(elements, torch.float16),
        },
    }
    tables: dict[str, Table] = {}
    native = isinstance(arithmetic, HostArithmetic)
    records = buffers.filled(max(record_bytes(f, elements) for f in formats) if native else 0, torch.uint8)
    for state_format in formats:
        moments = {
            tensor.kind: buffers.filled(tensor.count(elements), getattr(torch, tensor.dtype))
            for tensor in MOMENTS[state_format]
        }
        for dtype, tensors in weights.items():
            views = [
                _views(start, elements, state_format, {**tensors, **moments})
                for start in range(0, elements, PIECE_ELEMENTS)
            ]
            if native and dtype == "bfloat16":
                sizes = [record_bytes(state_format, view.exp_avg.numel()) for view in views]
                of_pieces = records[: sum(sizes)].split(sizes)
                views = [view._replace(records=piece) for view, piece in zip(views, of_pieces, strict=True)]
            table = arithmetic.table(views)
            table.set_gradients(list(gradients[dtype].split(PIECE_ELEMENTS)))
            tables[f"{dtype}-{state_format}"] = table
    return tables


def _views(start: int, elements: int, state_format: StateFormat, tensors: Tensors) -> StateViews:
    """Return `PIECE_ELEMENTS` of `elements` from `start` on; scales have one for several."""
    count = min(PIECE_ELEMENTS, elements - start)

    def cut(tensor: Tensor) -> Tensor:
        each = -(-elements // tensor.numel())
        return tensor[start // each : -(-(start + count) // each)]

    cuts = {name: cut(tensor) for name, tensor in tensors.items()}
    return StateViews(
        decay=True, learning_rate_scale=1.0, state_format=state_format, offset=start, random_stream=0, **cuts
    )


def _loss_scale(dtype: str) -> float:
    """Return the factor of gradients in `dtype`. Without it many fp16 ones are denormal, which costs a multiple."""
    return LOSS_SCALE if dtype == "float16" else 1.0


def _update(arithmetic: Arithmetic, table: Table, pieces: int, scale: float) -> Work:
    """Return an update of all pieces that multiplies gradients by `scale`."""
    table.set_steps([STEP] * pieces)
    return lambda: arithmetic.update(table, SETTINGS, scale)


def _norm(arithmetic: Arithmetic, table: Table) -> Work:
    def work() -> None:
        arithmetic.sum_of_squares(table)
        arithmetic.read_partials([table])

    return work
