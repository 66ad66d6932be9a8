"""How fast the device computes, and how fast it exchanges data with the host.

Large matrix products by dtype, operations on elements, the least time of one operation, with as many of torch's threads
as a training has. Copies are the engine's own, chunk by chunk as its lanes make them, each way in a thread of its own.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from workbench.engine.devices.device import Device
from workbench.profiles.host_speeds import DTYPES, HostBuffers
from workbench.profiles.machine_profile import Dtype, LinkProfile
from workbench.profiles.sampling import Budget, Work, median_seconds, rates_together
from workbench.timeline import Lane

SMALLEST, LARGEST = 64, 16384
STEP = 64
"""Sides of the matrices are multiples of it, as the hardware likes them."""
TRIES = 3
BATCH = 100
"""Small operations that are issued in a row."""
ELEMENT_BUFFERS = 3
IN_A_ROW = 16
"""Operations on elements between two waits, on a device that is waited for: waiting is not what is measured."""

CHUNK_BYTES = 16 << 20
UP, DOWN = Lane.UPLOAD, Lane.DOWNLOAD

Wait = Callable[[], None]
"""Returns when the device has done what it was given."""


def measure_products(device: torch.device, wait: Wait, free_bytes: int, budget: Budget) -> dict[Dtype, float]:
    """Return operations a second by dtype; a dtype that torch cannot multiply there is left out."""
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
    """Return bytes a second that an addition reads and writes, and the seconds of a small one.

    With `ELEMENT_BUFFERS` buffers of `nbytes` each.
    """
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
    """Return the side of square matrices whose product takes about `product_s`, found from small ones upwards.

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
    """Return the seconds of the first call that is no longer than `short_s`, or of the shortest of a few."""
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


# Copies


def measure_link(device: Device, buffers: HostBuffers, nbytes: int, budget: Budget) -> LinkProfile:
    """Measure with two buffers of `nbytes` on the device, and as much registered and pageable memory on the host."""
    lanes = (UP, DOWN)
    on_device = {lane: device.empty(nbytes, torch.uint8) for lane in lanes}
    pinned = {lane: buffers.filled(nbytes, torch.uint8) for lane in lanes}
    # Ones: pages of zeros that nobody wrote are all one page.
    pageable = {lane: torch.ones(nbytes, dtype=torch.uint8) for lane in lanes}
    after = device.record_event()
    device.synchronize()

    def copying(lane: Lane, host: dict[Lane, Tensor]) -> Callable[[], None]:
        chunks = list(_chunks(lane, on_device[lane], host[lane]))

        def work() -> None:
            device.before_task(lane)
            for destination, source in chunks:
                device.copy(lane, destination, source, after)

        return work

    contenders = {
        (kind, lane): copying(lane, host)
        for kind, host in (("pinned", pinned), ("pageable", pageable))
        for lane in lanes
    }
    alone = {key: nbytes / seconds for key, seconds in median_seconds(contenders, budget).items()}
    works = [contenders["pinned", lane] for lane in lanes]
    # As long as a copy of all takes alone, some times over: what one side does after the other's end is little of it.
    lasting_s = max(budget.sample_s, 4 * nbytes / min(alone["pinned", lane] for lane in lanes))
    rounds = [rates_together(works, nbytes, lasting_s) for _ in range(budget.repetitions)]
    both_up, both_down = (statistics.median(each) for each in zip(*rounds, strict=True))
    return LinkProfile(
        up_bytes_per_s=alone["pinned", UP],
        down_bytes_per_s=alone["pinned", DOWN],
        both_up_bytes_per_s=both_up,
        both_down_bytes_per_s=both_down,
        unpinned_up_bytes_per_s=alone["pageable", UP],
        unpinned_down_bytes_per_s=alone["pageable", DOWN],
    )


def _chunks(lane: Lane, on_device: Tensor, on_host: Tensor) -> Iterable[tuple[Tensor, Tensor]]:
    """Yield destination and source, chunk by chunk."""
    for there, here in zip(on_device.split(CHUNK_BYTES), on_host.split(CHUNK_BYTES), strict=True):
        yield (there, here) if lane is UP else (here, there)
