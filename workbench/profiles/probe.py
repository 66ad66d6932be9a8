"""Measures everything that a machine profile says, part by part, and leaves torch as it was.

Host and disk are measured in `host_speeds` and `disk_speed`; here are the device (large matrix products by dtype,
operations on elements, the least time of one operation) and its copies, which are the engine's own, chunk by chunk as
its lanes make them, each way in a thread of its own.
"""

from __future__ import annotations

import datetime
import math
import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import torch
from torch import Tensor

from workbench.engine.devices.device import Device, has_bfloat16, open_device
from workbench.errors import ConfigurationError
from workbench.formatting import GIB
from workbench.optimizer import candidates, missing_extension
from workbench.profiles.disk_speed import measure_disk
from workbench.profiles.host_speeds import (
    BYTES_A_PARAMETER,
    DTYPES,
    MEMORY_BUFFERS,
    SHARE_OF_FREE,
    HostBuffers,
    buffer_bytes,
    cache_bytes,
    measure_memory,
    measure_optimizer,
)
from workbench.profiles.machine_profile import (
    ATTENTION_BACKWARD,
    DeviceProfile,
    Dtype,
    HostProfile,
    LinkProfile,
    MachineProfile,
    Product,
)
from workbench.profiles.sampling import FULL, BackgroundLoad, Budget, Work, median_seconds, rates_together
from workbench.profiles.this_machine import cpu_model, machine_fingerprint, total_memory_bytes
from workbench.system.free_space import free_host_bytes
from workbench.system.processor import usable_cpus
from workbench.timeline import Lane

LEAST_ELEMENTS = 1 << 16
TRAFFIC_BYTES = 8
"""Bytes a parameter that the smallest update moves at least: these have to be beyond the caches."""
LINK_BUFFERS = 2

SMALLEST, LARGEST = 64, 16384
"""Sides of the matrices."""
TRIES = 3
BATCH = 100
HEAD_TOKENS, HEAD_WIDTH, MOST_HEADS = 1024, 64, 256
TF32_CAPABILITY = 8, 0
"""Of Ampere, the first GPUs that round fp32 to TF32."""
"""Small operations that are issued in a row."""
ELEMENT_BUFFERS = 3
IN_A_ROW = 16
"""Operations on elements between two waits, on a device that is waited for: waiting is not what is measured."""

CHUNK_BYTES = 16 << 20
UP, DOWN = Lane.UPLOAD, Lane.DOWNLOAD

Wait = Callable[[], None]
"""Returns when the device has done what it was given."""

Report = Callable[[str], object]


def measure_machine(
    device: str = "auto",
    disk_path: Path | None = None,
    report: Report = lambda line: None,
    budget: Budget = FULL,
    note: str = "",
) -> MachineProfile:
    """Measure the machine with `device`, and the disk under `disk_path` where one is given.

    `report` gets the name of every part before it is measured.

    Raises:
        ConfigurationError: torch sees no such device, or the folder cannot be written.
    """
    try:
        opened = open_device(device)
    except ValueError as error:
        raise ConfigurationError(f'{error}; "auto" takes what there is') from error
    load = BackgroundLoad()
    # The disk first: a folder that cannot be written is refused at once.
    if disk_path is not None:
        report(f"the disk of {disk_path}")
    disk = None if disk_path is None else measure_disk(disk_path, budget)
    with closing(opened), _threads_restored():
        host = _measure_host(opened, report, budget)
        computes = _measure_device(opened, host, report, budget)
        link = None if opened.shared_memory else _measure_link(opened, computes, report, budget)
        if opened.torch_device.type == "cuda":
            torch.cuda.empty_cache()  # what follows in this process finds the device as free as before
    missing = "torch's fused AdamW: the native extension is missing" if missing_extension() else ""
    name = host.cpu if computes.shared_memory else f"{computes.name}, {host.cpu}"
    return MachineProfile(
        name=f"{name}, {host.cores} cores, {host.memory_bytes / GIB:.0f} GiB",
        source="measured",
        measured_at=datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        fingerprint=machine_fingerprint(device),
        note="; ".join(filter(None, (note, missing))),
        busy_cores=load.busy_cores(),
        host=host,
        device=computes,
        link=link,
        disk=disk,
    )


def _measure_host(device: Device, report: Report, budget: Budget) -> HostProfile:
    report("the host's memory")
    cores, free, cached = usable_cpus(), free_host_bytes(), cache_bytes()
    threads = tuple(candidates(cores))
    with HostBuffers(device) as buffers:
        rates = measure_memory(buffers, buffer_bytes(budget, free, MEMORY_BUFFERS, cached), threads, budget)
    report("the host optimizer")
    wanted = max(budget.elements, int(budget.cache_multiple * cached) // TRAFFIC_BYTES)
    elements = max(LEAST_ELEMENTS, min(wanted, free // SHARE_OF_FREE // BYTES_A_PARAMETER))
    with HostBuffers(device) as buffers:
        rates |= measure_optimizer(buffers, elements, threads, budget)
    return HostProfile(
        cpu=cpu_model(),
        cores=cores,
        memory_bytes=total_memory_bytes(),
        free_bytes=free,
        threads=threads,
        **rates,
    )


def _measure_device(device: Device, host: HostProfile, report: Report, budget: Budget) -> DeviceProfile:
    report("the device that the model computes on")
    name, total, free = host.cpu, 0, 0
    if device.torch_device.type == "cuda":
        name = torch.cuda.get_device_name(device.torch_device)
        free, total = torch.cuda.mem_get_info(device.torch_device)
    room = host.free_bytes if device.shared_memory else free
    nbytes = buffer_bytes(budget, room, ELEMENT_BUFFERS, cache_bytes() if device.shared_memory else 0)
    where, wait = device.torch_device, device.synchronize
    flops = measure_products(where, wait, room, budget)
    computed = [n for n in flops if n != "tf32" and (n == "float32" or not device.shared_memory)]
    if device.shared_memory and has_bfloat16(device):  # a CPU computes other 16-bit weights in fp32
        computed.append("bfloat16")
    attention = measure_attention(where, wait, computed, budget)
    element_bytes, launch_s = measure_elements(where, wait, nbytes, budget)
    return DeviceProfile(
        name=name,
        shared_memory=device.shared_memory,
        memory_bytes=total,
        free_bytes=free,
        matrix_flops_per_s=flops,
        attention_flops_per_s=attention,
        memory_bytes_per_s=element_bytes,
        launch_s=launch_s,
        has_bfloat16=has_bfloat16(device),
    )


def _measure_link(device: Device, computes: DeviceProfile, report: Report, budget: Budget) -> LinkProfile:
    report("copies between host and device")
    # As much again lies in pageable memory.
    room = min(free_host_bytes() // 2, computes.free_bytes or free_host_bytes() // 2)
    with HostBuffers(device) as buffers:
        return measure_link(device, buffers, buffer_bytes(budget, room, LINK_BUFFERS, 0), budget)


@contextmanager
def _threads_restored() -> Iterator[None]:
    """Give torch as many threads after the block as before it."""
    threads = torch.get_num_threads()
    try:
        yield
    finally:
        torch.set_num_threads(threads)


# The device


def measure_products(
    device: torch.device, wait: Wait, free_bytes: int, budget: Budget
) -> dict[Product, float]:
    """Return operations a second by dtype; a dtype that torch cannot multiply there is left out."""
    products: dict[Product, Work] = {}
    sides: dict[Product, int] = {}
    for name, dtype in DTYPES.items():
        most = min(LARGEST, math.isqrt(free_bytes // 8 // 3 // dtype.itemsize))
        try:
            sides[name] = _side(device, dtype, wait, most, budget.product_s)
        except RuntimeError:
            continue
        products[name] = _product(device, dtype, wait, sides[name])
    if device.type == "cuda" and torch.cuda.get_device_capability(device) >= TF32_CAPABILITY:
        products["tf32"], sides["tf32"] = _in_tf32(products["float32"]), sides["float32"]
    seconds = median_seconds(products, budget)
    return {name: 2 * sides[name] ** 3 / seconds[name] for name in products}


def measure_attention(
    device: torch.device, wait: Wait, dtypes: Iterable[Dtype], budget: Budget
) -> dict[Dtype, float]:
    """Return operations a second of causal attention and its backward; a dtype that torch refuses is left out."""
    works: dict[Dtype, Work] = {}
    flops: dict[Dtype, float] = {}
    for name in dtypes:
        heads = 1
        try:
            while (
                heads < MOST_HEADS
                and _least_s(_attention(device, DTYPES[name], wait, heads)) < budget.product_s / 4
            ):
                heads *= 2
        except RuntimeError:
            continue
        works[name] = _attention(device, DTYPES[name], wait, heads)
        flops[name] = (1 + ATTENTION_BACKWARD) * 0.5 * 4 * heads * HEAD_TOKENS**2 * HEAD_WIDTH
    seconds = median_seconds(works, budget)
    return {name: flops[name] / seconds[name] for name in works}


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
    """Return the side of square matrices whose product takes about `product_s`, found by doubling small ones.

    The shortest of a few calls counts: on a busy machine threads are waited for, for milliseconds.
    """
    side = SMALLEST
    while 2 * side <= most and _least_s(_product(device, dtype, wait, side)) < product_s / 4:
        side *= 2
    return side


def _least_s(work: Work) -> float:
    work()
    least_s = math.inf
    for _ in range(TRIES):
        began = time.perf_counter()
        work()
        least_s = min(least_s, time.perf_counter() - began)
    return least_s


def _product(device: torch.device, dtype: torch.dtype, wait: Wait, side: int) -> Work:
    generator = torch.Generator(device=device).manual_seed(side)
    one, other = (torch.randn(side, side, generator=generator, device=device).to(dtype) for _ in range(2))
    result = torch.empty(side, side, dtype=dtype, device=device)

    def work() -> None:
        torch.mm(one, other, out=result)
        wait()

    return work


def _attention(device: torch.device, dtype: torch.dtype, wait: Wait, heads: int) -> Work:
    generator = torch.Generator(device=device).manual_seed(heads)
    query, key, value, gradient = (
        torch.randn(1, heads, HEAD_TOKENS, HEAD_WIDTH, generator=generator, device=device).to(dtype)
        for _ in range(4)
    )
    inputs = [each.requires_grad_() for each in (query, key, value)]

    def work() -> None:
        with torch.enable_grad():
            result = torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
            torch.autograd.grad(result, inputs, gradient)
        wait()

    return work


def _in_tf32(product: Work) -> Work:
    def work() -> None:
        torch.backends.cuda.matmul.fp32_precision = "tf32"
        try:
            product()
        finally:
            torch.backends.cuda.matmul.fp32_precision = "ieee"

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
            device.copy_all(lane, chunks, after)

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
