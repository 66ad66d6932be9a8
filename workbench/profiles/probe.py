"""Measures everything that a machine profile says, part by part, and leaves torch as it was."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import torch

from workbench.engine.devices.device import Device, has_bfloat16, open_device
from workbench.errors import ConfigurationError
from workbench.formatting import GIB
from workbench.optimizer import candidates, missing_extension
from workbench.profiles.device_speeds import ELEMENT_BUFFERS, measure_elements, measure_link, measure_products
from workbench.profiles.disk_speed import measure_disk
from workbench.profiles.host_speeds import (
    BYTES_A_PARAMETER,
    MEMORY_BUFFERS,
    SHARE_OF_FREE,
    HostBuffers,
    buffer_bytes,
    cache_bytes,
    measure_memory,
    measure_optimizer,
)
from workbench.profiles.machine_profile import DeviceProfile, HostProfile, LinkProfile, MachineProfile
from workbench.profiles.sampling import FULL, BackgroundLoad, Budget
from workbench.profiles.this_machine import cpu_model, machine_fingerprint, total_memory_bytes
from workbench.system.free_space import free_host_bytes
from workbench.system.processor import usable_cpus

LEAST_ELEMENTS = 1 << 16
TRAFFIC_BYTES = 8
"""Bytes a parameter that the smallest update moves at least: these have to be beyond the caches."""
LINK_BUFFERS = 2

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
    element_bytes, launch_s = measure_elements(where, wait, nbytes, budget)
    return DeviceProfile(
        name=name,
        shared_memory=device.shared_memory,
        memory_bytes=total,
        free_bytes=free,
        matrix_flops_per_s=flops,
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
