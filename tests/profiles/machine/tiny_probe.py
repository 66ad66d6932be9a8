"""What tests of the probe need: a budget that asks for next to nothing, and a profile that was measured nowhere."""

from __future__ import annotations

from pathlib import Path

from workbench.profiles.machine_profile import DeviceProfile, DiskProfile, MachineProfile
from workbench.profiles.named_machines import load_profile
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

SHIPPED = load_profile(Path("desktop-24gb"))
ON_CPU = DeviceProfile(
    name="a processor",
    shared_memory=True,
    matrix_flops_per_s={"float32": 1e11},
    memory_bytes_per_s=1.5e10,
    launch_s=5e-6,
)
ON_GPU = SHIPPED.device.model_copy(update={"name": "a card"})


def disk_at(path: str) -> DiskProfile:
    assert SHIPPED.disk is not None
    return SHIPPED.disk.model_copy(update={"path": path})


def profile_on(
    device: DeviceProfile, fingerprint: str = "abc", disk: DiskProfile | None = None
) -> MachineProfile:
    """Return a shipped profile as if it had been measured on `device`."""
    measured = {"source": "measured", "measured_at": "2026-01-01T00:00:00+00:00", "note": ""}
    link = None if device.shared_memory else SHIPPED.link
    parts = {"fingerprint": fingerprint, "device": device, "link": link, "disk": disk}
    return SHIPPED.model_copy(update={**measured, **parts})
