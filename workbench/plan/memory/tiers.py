"""What each tier needs, byte by byte and by name, beside what it has free: whether a run fits.

Arithmetic over layout and model profile; nothing is allocated. The rows come from `needs` and `model_memory`.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from workbench.formatting import GIB
from workbench.layout import Layout
from workbench.plan.memory.model_memory import heap_reserve, model_rows
from workbench.plan.memory.needs import EngineNeeds, building_bytes, checkpoint_bytes
from workbench.plan.workload import Workload
from workbench.profiles.model_profile import ModelProfile

HOST_RUNTIME_BYTES = 400 << 20
"""Python, torch and transformers with their threads and the text: measured on a run of a tiny model."""
WORKSPACE_BYTES = 24 << 20
"""What the host's matrix products pack their operands into, and the stacks of threads: so much with larger models."""
DEVICE_RUNTIME_BYTES = 256 << 20
"""Workspaces of the matrix library."""
RESERVE_SHARE = 50
"""One part in so many of the device's memory is what its allocator holds beside what is asked of it. Planned."""


@dataclass(frozen=True)
class Free:
    """Bytes that are free. `device`: None where the device computes in the host's memory. `disk`: where the run is
    written; None where nobody knows, and then there is no disk tier either. `disk_tier`: where the disk tier lies; None
    where that is the same disk, or there is none."""

    host: int
    device: int | None
    disk: int | None
    disk_tier: int | None = None


@dataclass(frozen=True)
class TierNeed:
    """One tier: named bytes, and what is free there."""

    tier: str
    needs: dict[str, int]
    free_bytes: int

    @property
    def needed_bytes(self) -> int:
        return sum(self.needs.values())

    @property
    def missing_bytes(self) -> int:
        return max(0, self.needed_bytes - self.free_bytes)

    @property
    def fits(self) -> bool:
        return not self.missing_bytes


@dataclass(frozen=True)
class MemoryPlan:
    """All tiers of a run."""

    parameters: int
    tiers: tuple[TierNeed, ...]

    @property
    def fits(self) -> bool:
        return not self.missing_bytes

    @property
    def missing_bytes(self) -> int:
        """What the tiers lack, all together."""
        return sum(tier.missing_bytes for tier in self.tiers)

    def as_dict(self) -> dict[str, Any]:
        return {
            "parameters": self.parameters,
            "fits": self.fits,
            "tiers": [{**asdict(t), "needed_bytes": t.needed_bytes, "fits": t.fits} for t in self.tiers],
        }

    def table(self) -> str:
        """The plan as text: for each tier what it needs, by name, and what it has."""
        lines = [f"{self.parameters:,} parameters"]
        for tier in self.tiers:
            verdict = "fits" if tier.fits else "does not fit"
            lines.append(f"{tier.tier}: {verdict}")
            lines += [f"  {name:<28}{_gib(size)}" for name, size in tier.needs.items()]
            lines.append(f"  {'needed':<28}{_gib(tier.needed_bytes)}")
            lines.append(f"  {'free':<28}{_gib(tier.free_bytes)}")
            if not tier.fits:
                lines.append(f"  {'missing':<28}{_gib(tier.missing_bytes)}")
        return "\n".join(lines)


def plan_memory(layout: Layout, model_profile: ModelProfile, work: Workload, free: Free) -> MemoryPlan:
    """The need of every tier at its heaviest moment; without the disk where its room is not known and not needed for
    the disk tier."""
    needs = EngineNeeds(layout, work)
    engine = needs.memory_breakdown()
    gradients = needs.gradients_in_autograd()
    model = model_rows(model_profile, work, gradients)
    # Units are built in fp32 when no activations are there yet, on the host.
    beside = model["device"] if free.device is None else model["host"]
    building = building_bytes(layout) - sum(beside.values())
    on_host = {"building": max(0, building), "workspaces": WORKSPACE_BYTES, "runtime": HOST_RUNTIME_BYTES}
    if free.device is None:
        heap = {"allocator reserve": heap_reserve(model_profile, work, gradients)}
        one = _together(engine["device"], engine["host"], model["device"], model["host"], heap, on_host)
        tiers = [TierNeed("host", one, free.host)]
    else:
        device = _together(engine["device"], model["device"])
        rest = {"allocator reserve": sum(device.values()) // RESERVE_SHARE, "runtime": DEVICE_RUNTIME_BYTES}
        tiers = [
            TierNeed("device", _together(device, rest), free.device),
            TierNeed("host", _together(engine["host"], model["host"], on_host), free.host),
        ]
    saved = work.checkpoints_kept + 1
    checkpoints = {
        f"{work.checkpoints_kept} + 1 checkpoints": saved
        * checkpoint_bytes(layout, work, adapter=model_profile.adapter)
    }
    if free.disk is None or free.disk_tier is None:
        if free.disk is not None or engine["disk"]:
            tiers.append(TierNeed("disk", {**engine["disk"], **checkpoints}, free.disk or 0))
    else:
        tiers.append(TierNeed("disk tier", engine["disk"], free.disk_tier))
        tiers.append(TierNeed("disk", checkpoints, free.disk))
    return MemoryPlan(layout.parameters, tuple(tiers))


def _together(*parts: dict[str, int]) -> dict[str, int]:
    """Rows of one name added up, in the order in which they first come; what is nothing has no row."""
    rows: dict[str, int] = {}
    for part in parts:
        for name, size in part.items():
            if size:
                rows[name] = rows.get(name, 0) + size
    return rows


def _gib(size: int) -> str:
    return f"{size / GIB:>10,.2f} GiB"
