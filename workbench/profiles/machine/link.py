"""How fast host and device exchange data: each way alone and both at once, from registered and from pageable memory.

Measured by the engine's own copies, chunk by chunk as its lanes make them, each way in a thread of its own.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable, Iterable
from typing import NamedTuple

import torch
from torch import Tensor

from workbench.engine.devices.device import Device
from workbench.profiles.machine.budget import Budget
from workbench.profiles.machine.host_buffers import HostBuffers
from workbench.profiles.machine.turns import median_seconds
from workbench.timeline import Lane

CHUNK_BYTES = 16 << 20
UP, DOWN = Lane.UPLOAD, Lane.DOWNLOAD
STARTS_WITHIN_S = 60.0


class LinkRates(NamedTuple):
    """Bytes a second, as in `LinkProfile`."""

    up: float
    down: float
    both_up: float
    both_down: float
    unpinned_up: float
    unpinned_down: float


def measure_link(device: Device, buffers: HostBuffers, nbytes: int, budget: Budget) -> LinkRates:
    """Measure with two buffers of `nbytes` on the device, and as much registered and pageable memory on the host."""
    lanes = (UP, DOWN)
    on_device = {lane: device.empty(nbytes, torch.uint8) for lane in lanes}
    pinned = {lane: buffers.filled(nbytes, torch.uint8) for lane in lanes}
    # Ones: pages of zeros that nobody wrote are all one page.
    pageable = {lane: torch.ones(nbytes, dtype=torch.uint8) for lane in lanes}
    after = device.mark()
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
    rounds = [_together(works, nbytes, lasting_s) for _ in range(budget.repetitions)]
    both_up, both_down = (statistics.median(each) for each in zip(*rounds, strict=True))
    return LinkRates(
        up=alone["pinned", UP],
        down=alone["pinned", DOWN],
        both_up=both_up,
        both_down=both_down,
        unpinned_up=alone["pageable", UP],
        unpinned_down=alone["pageable", DOWN],
    )


def _chunks(lane: Lane, on_device: Tensor, on_host: Tensor) -> Iterable[tuple[Tensor, Tensor]]:
    """Destination and source, chunk by chunk."""
    for there, here in zip(on_device.split(CHUNK_BYTES), on_host.split(CHUNK_BYTES), strict=True):
        yield (there, here) if lane is UP else (here, there)


def _together(works: list[Callable[[], None]], nbytes: int, lasting_s: float) -> list[float]:
    """Bytes a second of each of `works`, which copy `nbytes` a call, while all go on for at least `lasting_s`.

    Raises what one of them raises.
    """
    barrier = threading.Barrier(len(works))
    over = threading.Event()
    rates = [0.0] * len(works)
    errors: list[BaseException] = []

    def run(number: int) -> None:
        try:
            barrier.wait(STARTS_WITHIN_S)
            began = time.perf_counter()
            calls = 0
            while not calls or (time.perf_counter() - began < lasting_s and not over.is_set()):
                works[number]()
                calls += 1
            rates[number] = calls * nbytes / (time.perf_counter() - began)
        except BaseException as error:
            errors.append(error)
            barrier.abort()

    threads = [threading.Thread(target=run, args=(number,), daemon=True) for number in range(len(works))]
    for thread in threads:
        thread.start()
    try:
        for thread in threads:
            thread.join()
    finally:
        # Interrupted: whoever gives the memory back must find no copy under way.
        over.set()
        for thread in threads:
            thread.join()
    if errors:
        raise errors[0]
    return rates
