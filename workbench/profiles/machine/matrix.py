"""How fast the device computes: large matrix products by dtype, operations on elements, and how long a small one takes.

With as many of torch's threads as a training has. A dtype that the device only emulates is measured on a product so
small that it takes no longer than the others.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import NamedTuple

import torch

from workbench.plan.profile import Dtype
from workbench.profiles.machine.budget import Budget
from workbench.profiles.machine.turns import Work, median_seconds

SMALLEST, LARGEST = 64, 16384
STEP = 64
"""Sides of the matrices are multiples of it, as the hardware likes them."""
TRIES = 3
BATCH = 100
"""Small operations that are issued in a row."""
ELEMENT_BUFFERS = 3
IN_A_ROW = 16
"""Operations on elements between two waits, on a device that is waited for: waiting is not what is measured."""
DTYPES: dict[Dtype, torch.dtype] = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}

Wait = Callable[[], None]
"""Returns when the device has done what it was given."""


class ComputeRates(NamedTuple):
    """As in `DeviceProfile`."""

    matrix_flops: dict[Dtype, float]
    element_bytes: float
    launch_s: float


def measure_compute(
    device: torch.device, wait: Wait, nbytes: int, free_bytes: int, budget: Budget
) -> ComputeRates:
    """Measure on `device`; operations on elements with `ELEMENT_BUFFERS` buffers of `nbytes` each."""
    return ComputeRates(
        measure_products(device, wait, free_bytes, budget), *measure_elements(device, wait, nbytes, budget)
    )


def measure_products(device: torch.device, wait: Wait, free_bytes: int, budget: Budget) -> dict[Dtype, float]:
    """Operations a second by dtype; a dtype that torch cannot multiply there is left out."""
    products: dict[Dtype, Work] = {}
    sides: dict[Dtype, int] = {}
    for name, dtype in DTYPES.items():
        most = math.isqrt(free_bytes // 8 // 3 // dtype.itemsize) // STEP * STEP
        try:
            sides[name] = _side(device, dtype, wait, max(SMALLEST, min(LARGEST, most)), budget.product_s)
        except RuntimeError:
            continue
        products[name] = _product(device, dtype, wait, sides[name])
    seconds = median_seconds(products, budget)
    return {name: 2 * sides[name] ** 3 / seconds[name] for name in products}


def measure_elements(device: torch.device, wait: Wait, nbytes: int, budget: Budget) -> tuple[float, float]:
    """Bytes a second that an addition reads and writes, and the seconds that a small one takes."""
    one, other, result = (torch.ones(nbytes // 4, device=device) for _ in range(ELEMENT_BUFFERS))
    small = torch.ones(16, device=device)
    additions = 1 if device.type == "cpu" else IN_A_ROW

    def add() -> None:
        for _ in range(additions):
            torch.add(one, other, out=result)
        wait()

    def launch() -> None:
        for _ in range(BATCH):
            torch.add(small, 1.0, out=small)
        wait()

    seconds = median_seconds({"add": add, "launch": launch}, budget)
    return additions * ELEMENT_BUFFERS * result.nbytes / seconds["add"], seconds["launch"] / BATCH


def _side(device: torch.device, dtype: torch.dtype, wait: Wait, most: int, product_s: float) -> int:
    """The side of square matrices whose product takes about `product_s`, found from small ones upwards.

    Small ones show how long threads are waited for, on a busy machine for milliseconds: as long as the time does not
    grow with the arithmetic, larger ones are tried.
    """
    side, before_s = SMALLEST, math.inf
    while True:
        product = _product(device, dtype, wait, side)
        product()
        elapsed_s = _least_s(product, product_s / 8)
        is_arithmetic = elapsed_s > 4 * before_s
        if 2 * side > most or elapsed_s > product_s or (8 * elapsed_s > product_s and is_arithmetic):
            break
        side, before_s = 2 * side, elapsed_s
    fitting = int(side * (product_s / elapsed_s) ** (1 / 3)) // STEP * STEP
    return max(side, min(fitting, most))


def _least_s(work: Work, short_s: float) -> float:
    """Seconds of a call: of the first that is no longer than `short_s`, or of the shortest of a few."""
    least_s = math.inf
    for _ in range(TRIES):
        began = time.perf_counter()
        work()
        least_s = min(least_s, max(time.perf_counter() - began, 1e-7))
        if least_s <= short_s:
            break
    return least_s


def _product(device: torch.device, dtype: torch.dtype, wait: Wait, side: int) -> Work:
    generator = torch.Generator(device=device).manual_seed(side)
    one, other = (torch.randn(side, side, generator=generator, device=device).to(dtype) for _ in range(2))
    result = torch.empty(side, side, dtype=dtype, device=device)

    def work() -> None:
        torch.mm(one, other, out=result)
        wait()

    return work
