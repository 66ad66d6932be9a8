"""How fast the host optimizer is: updates by dtype and format, sums of squares and sums of gradients, by threads.

Measured through the arithmetic that the engine uses, in pieces as large as its chunks: the native one, or torch's where
the extension is missing. That has no other format than `exact`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from workbench.engine.arithmetic.tier_arithmetic import Arithmetic, StateViews, Table, TorchArithmetic
from workbench.optimizer.extension import missing_extension
from workbench.optimizer.settings import AdamW
from workbench.plan.profile import Dtype
from workbench.profiles.machine.budget import Budget
from workbench.profiles.machine.host_buffers import HostBuffers, with_torch_threads
from workbench.profiles.machine.turns import Work, median_seconds
from workbench.state_formats import MOMENTS, StateFormat

BYTES_A_PARAMETER = 34
"""Of all buffers together: gradients in three dtypes, two masters, 16-bit copies, and moments in three formats."""
PIECE_ELEMENTS = 1 << 23
GRADIENT = 1e-3
LOSS_SCALE = 65536.0
STEP = 5
SETTINGS = AdamW(lr=1e-4, weight_decay=0.01)
DTYPES: dict[Dtype, torch.dtype] = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}

Tensors = dict[str, Tensor]


class OptimizerRates(NamedTuple):
    """As in `HostProfile`, for each number of threads."""

    optimizer_ns: dict[str, tuple[float, ...]]
    norm: dict[Dtype, tuple[float, ...]]
    accumulate: dict[Dtype, tuple[float, ...]]


def measure_optimizer(
    buffers: HostBuffers, elements: int, threads: Sequence[int], budget: Budget
) -> OptimizerRates:
    """Measure with `elements` parameters, which take `BYTES_A_PARAMETER` each."""
    gradients = {
        name: buffers.normal(elements, dtype, deviation=GRADIENT * _loss_scale(name), stream=1)
        for name, dtype in DTYPES.items()
    }
    sums = buffers.filled(elements, torch.float32)
    formats: list[StateFormat] = list(MOMENTS) if missing_extension() is None else ["exact"]
    with _arithmetics(threads) as arithmetics:
        maker = next(iter(arithmetics.values()))
        pieces = -(-elements // PIECE_ELEMENTS)
        tables = _tables(buffers, elements, formats, maker, gradients)
        updates: dict[tuple[str, int], Work] = {}
        norms: dict[tuple[Dtype, int], Work] = {}
        additions: dict[tuple[Dtype, int], Work] = {}
        for count, arithmetic in arithmetics.items():
            for key, table in tables.items():
                scale = 1 / _loss_scale(key.partition("-")[0])
                updates[key, count] = with_torch_threads(count, _update(arithmetic, table, pieces, scale))
            for dtype, gradient in gradients.items():
                norms[dtype, count] = with_torch_threads(count, _norm(arithmetic, tables[f"{dtype}-exact"]))
                additions[dtype, count] = with_torch_threads(count, _addition(arithmetic, sums, gradient))
        update_s = median_seconds(updates, budget)
        norm_s = median_seconds(norms, budget)
        addition_s = median_seconds(additions, budget)
    return OptimizerRates(
        {key: tuple(update_s[key, count] / elements * 1e9 for count in threads) for key in tables},
        {d: tuple(gradients[d].nbytes / norm_s[d, count] for count in threads) for d in DTYPES},
        {d: tuple(sums.nbytes / addition_s[d, count] for count in threads) for d in DTYPES},
    )


@contextlib.contextmanager
def _arithmetics(threads: Sequence[int]) -> Iterator[dict[int, Arithmetic]]:
    """The engine's arithmetic for each number of threads."""
    made: dict[int, Arithmetic] = {}
    try:
        for count in threads:
            if missing_extension() is None:
                from workbench.engine.arithmetic.host_arithmetic import HostArithmetic

                made[count] = HostArithmetic(count)
            else:
                made[count] = TorchArithmetic()
        yield made
    finally:
        for arithmetic in made.values():
            arithmetic.close()


def _tables(
    buffers: HostBuffers,
    elements: int,
    formats: Sequence[StateFormat],
    arithmetic: Arithmetic,
    gradients: dict[Dtype, Tensor],
) -> dict[str, Table]:
    """A table of all parameters by "DTYPE-FORMAT". Moments are shared by the dtypes of a format."""
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
    for state_format in formats:
        moments = {
            tensor.kind: buffers.filled(tensor.count(elements), getattr(torch, tensor.dtype))
            for tensor in MOMENTS[state_format]
        }
        for dtype, tensors in weights.items():
            views = [
                _views(start, min(PIECE_ELEMENTS, elements - start), elements, {**tensors, **moments})
                for start in range(0, elements, PIECE_ELEMENTS)
            ]
            table = arithmetic.table(views)
            table.set_gradients(list(gradients[dtype].split(PIECE_ELEMENTS)))
            tables[f"{dtype}-{state_format}"] = table
    return tables


def _views(start: int, count: int, elements: int, tensors: Tensors) -> StateViews:
    """The elements from `start` on; scales have one for several."""

    def cut(tensor: Tensor) -> Tensor:
        each = -(-elements // tensor.numel())
        return tensor[start // each : -(-(start + count) // each)]

    cuts = {name: cut(tensor) for name, tensor in tensors.items()}
    return StateViews(decay=True, offset=start, random_stream=0, **cuts)


def _loss_scale(dtype: str) -> float:
    """What gradients in `dtype` are multiplied with. Without it many fp16 ones are denormal, which costs a multiple."""
    return LOSS_SCALE if dtype == "float16" else 1.0


def _update(arithmetic: Arithmetic, table: Table, pieces: int, scale: float) -> Work:
    """An update of all pieces, multiplying gradients by `scale`."""
    table.set_steps([STEP] * pieces)
    return lambda: arithmetic.update(table, SETTINGS, scale)


def _norm(arithmetic: Arithmetic, table: Table) -> Work:
    def work() -> None:
        arithmetic.sum_of_squares(table)
        arithmetic.read_partials([table])

    return work


def _addition(arithmetic: Arithmetic, sums: Tensor, gradient: Tensor) -> Work:
    return lambda: arithmetic.accumulate(sums, gradient, overwrite=False)
