"""What tests of the probe need: a budget that asks for next to nothing, and a profile that was measured nowhere."""

from __future__ import annotations

from workbench.profiles.machine_profile import (
    DeviceProfile,
    DiskProfile,
    HostProfile,
    LinkProfile,
    MachineProfile,
)
from workbench.profiles.sampling import MIB, Budget

TINY = Budget(
    repetitions=2,
    sample_s=2e-4,
    part_s=0.2,
    buffer_bytes=MIB,
    elements=70_000,
    cache_multiple=0.0,
    product_s=2e-3,
    disk_bytes=48 * MIB,
    disk_s=0.2,
)

HOST = HostProfile(
    cpu="a processor",
    cores=3,
    memory_bytes=16 << 30,
    free_bytes=12 << 30,
    threads=(1, 2, 3),
    read_bytes_per_s=(1e10, 1.5e10, 1.6e10),
    write_bytes_per_s=(8e9, 1.2e10, 1.25e10),
    copy_bytes_per_s=(5e9, 7e9, 7.5e9),
    optimizer_ns={"bfloat16-exact": (0.9, 0.6, 0.5), "bfloat16-half": (0.7, 0.4, 0.3)},
    norm_bytes_per_s={"bfloat16": (1e10, 1.5e10, 1.6e10)},
    accumulate_bytes_per_s={"bfloat16": (5e9, 7e9, 8e9), "float32": (4e9, 6e9, 7e9)},
)
ON_CPU = DeviceProfile(
    name="a processor",
    shared_memory=True,
    matrix_flops_per_s={"float32": 1e11},
    memory_bytes_per_s=1.5e10,
    launch_s=5e-6,
)
ON_GPU = DeviceProfile(
    name="a card",
    shared_memory=False,
    memory_bytes=24 << 30,
    free_bytes=23 << 30,
    matrix_flops_per_s={"float32": 5e13, "bfloat16": 1.2e14},
    memory_bytes_per_s=9e11,
    launch_s=4e-6,
)
LINK = LinkProfile(
    up_bytes_per_s=2.5e10,
    down_bytes_per_s=2.4e10,
    both_up_bytes_per_s=2e10,
    both_down_bytes_per_s=1.9e10,
    unpinned_up_bytes_per_s=8e9,
    unpinned_down_bytes_per_s=7e9,
)


def disk_at(path: str) -> DiskProfile:
    return DiskProfile(
        path=path,
        free_bytes=1 << 40,
        direct=True,
        read_bytes_per_s=3e9,
        write_bytes_per_s=2e9,
        checked_read_bytes_per_s=1.5e9,
        checked_write_bytes_per_s=1.2e9,
        both_read_bytes_per_s=1e9,
        both_write_bytes_per_s=9e8,
    )


def profile_on(
    device: DeviceProfile, fingerprint: str = "abc", disk: DiskProfile | None = None
) -> MachineProfile:
    return MachineProfile(
        name="a machine",
        source="measured",
        measured_at="2026-01-01T00:00:00+00:00",
        fingerprint=fingerprint,
        host=HOST,
        device=device,
        link=None if device.shared_memory else LINK,
        disk=disk,
    )
