"""What each tier needs, byte by byte and by name, beside what it has free.

Arithmetic over a layout; nothing is allocated. Weights, state and gradients are exact, they follow the engine's own
layout. Activations are an estimate until they are measured (see `activation_bytes`).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

from workbench.layout import ITEM_BYTES, Layout
from workbench.state_formats import moment_bytes

GIB = 1 << 30
RUNTIME_BYTES = 256 << 20
SPLIT_STATE_BYTES = 4  # a 16-bit high half and its 16-bit remainder


@dataclass(frozen=True)
class ModelShape:
    """What the size of activations depends on, as the configuration classes of transformers name it."""

    hidden_size: int
    num_hidden_layers: int
    vocab_size: int


@dataclass(frozen=True)
class Workload:
    """How a run uses a layout."""

    state: Literal["device", "host"]
    shared_memory: bool
    gradient_accumulation: int
    micro_batch_size: int
    sequence_length: int
    activation_checkpointing: bool
    checkpoints_kept: int
    compute_dtype: str


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
    def fits(self) -> bool:
        return self.needed_bytes <= self.free_bytes


@dataclass(frozen=True)
class MemoryPlan:
    """All tiers of a run."""

    parameters: int
    tiers: tuple[TierNeed, ...]

    @property
    def fits(self) -> bool:
        return all(tier.fits for tier in self.tiers)

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
                lines.append(f"  {'missing':<28}{_gib(tier.needed_bytes - tier.free_bytes)}")
        return "\n".join(lines)


def plan_memory(
    layout: Layout,
    shape: ModelShape,
    work: Workload,
    *,
    free_host_bytes: int,
    free_device_bytes: int | None,
    free_disk_bytes: int,
) -> MemoryPlan:
    """The need of every tier. `free_device_bytes` is None where the device computes in the host's memory."""
    device: dict[str, int] = {}
    host: dict[str, int] = {}
    beside = work.shared_memory or work.state == "device"
    state_tier = device if beside else host
    accumulates = work.gradient_accumulation > 1
    trainable = {dtype: 0 for shard in layout.shards for dtype in (r.dtype for r in shard.regions)}
    for shard in layout.shards:
        for region in shard.regions:
            trainable[region.dtype] += region.elements
    frozen = sum(f.bytes for shard in layout.shards for f in shard.frozen)
    weights = sum(count * ITEM_BYTES[dtype] for dtype, count in trainable.items())
    elements = sum(trainable.values())
    # The master is fp32, or a split whose high half doubles as the working weights where both are in one place.
    master = sum(count * SPLIT_STATE_BYTES for count in trainable.values()) - (weights if beside else 0)
    _add(device, "weights", weights + frozen)
    _add(state_tier, "master weights", master)
    moments = sum(
        moment_bytes(region.state_format, region.elements)
        for shard in layout.shards
        for region in shard.regions
    )
    _add(state_tier, "exp_avg and exp_avg_sq", moments)
    sums_itself = beside and all(dtype == "float32" for dtype in trainable)
    if accumulates and not sums_itself:
        _add(state_tier, "accumulated gradients", 4 * elements)
        if beside:
            _add(device, "gradients of a micro-batch", weights)
    else:
        _add(state_tier, "gradients", weights)
    if not beside:
        chunk = max((c.weight_bytes for s in layout.shards for c in s.chunks), default=0)
        largest = max((len(s.chunks) for s in layout.shards), default=0)
        _add(device, "gradient slots", chunk * (2 * largest + 2))
    item = ITEM_BYTES[work.compute_dtype]
    _add(device, "activations (estimated)", activation_bytes(shape, work, item))
    tokens = work.micro_batch_size * work.sequence_length
    # The logits, their copy in fp32 and its gradient.
    _add(device, "logits", tokens * shape.vocab_size * (item + 8))
    # The weights once for whoever loads the model, and the state with a master that resumes exactly.
    checkpoint = weights + frozen + elements * SPLIT_STATE_BYTES + moments
    disk = {f"{work.checkpoints_kept} + 1 checkpoints": (work.checkpoints_kept + 1) * checkpoint}
    if free_device_bytes is None:
        tiers = [TierNeed("host", {**device, **host, "runtime": RUNTIME_BYTES}, free_host_bytes)]
    else:
        tiers = [
            TierNeed("device", {**device, "runtime": RUNTIME_BYTES}, free_device_bytes),
            TierNeed("host", {**host, "runtime": RUNTIME_BYTES}, free_host_bytes),
        ]
    return MemoryPlan(layout.parameters, (*tiers, TierNeed("disk", disk, free_disk_bytes)))


def activation_bytes(shape: ModelShape, work: Workload, item_bytes: int) -> int:
    """What backward keeps: with checkpointing every block's input and one block's inside, else all insides.

    One block keeps 34 bytes a token and unit of width at 16 bits without the attention scores, which fused attention
    does not store (Korthikanti et al., Reducing Activation Recomputation in Large Transformer Models, 2022, §4.1).
    """
    unit = work.micro_batch_size * work.sequence_length * shape.hidden_size * item_bytes
    inside = 17 * unit
    if work.activation_checkpointing:
        return shape.num_hidden_layers * unit + inside
    return shape.num_hidden_layers * inside


def _add(needs: dict[str, int], name: str, size: int) -> None:
    if size:
        needs[name] = needs.get(name, 0) + size


def _gib(size: int) -> str:
    return f"{size / GIB:>10,.2f} GiB"
