"""How the engine moves each shard's weights, state and gradients, in the words of a plan. No torch.

Invariant: `route` decides as the engine does (`engine/routing.py`, in terms of torch); a test compares the two.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from workbench.layout import Shard
from workbench.placement import Placement, Tier
from workbench.timeline import Overlap

WORKING_KIND = {"float32": "master", "bfloat16": "high", "float16": "working"}
"""The kind of the state from which the forward's weights are copied, or which they are."""

WEIGHT_KINDS: dict[str, dict[str, int]] = {
    "float32": {"master": 4},
    "bfloat16": {"high": 2, "low": 2},
    "float16": {"master": 4, "working": 2},
}
"""Bytes an element of what the state keeps of the weights, by the dtype that they are stored in."""


@dataclass(frozen=True)
class Workload:
    """How a run uses a layout.

    `compute_dtypes`: what weights of a storage dtype are computed in, where that differs. `precision`: the dtype that
    weights are stored in. `shared_memory`: the device computes in the host's memory.
    """

    weights: Tier
    state: Tier
    shared_memory: bool
    precision: str
    gradient_accumulation: int
    micro_batch_size: int
    sequence_length: int
    activation_checkpointing: bool
    checkpoints_kept: int
    device_fraction: float = 0.0
    gradient_clipping: float = 0.0
    overlap: Overlap = "exact"
    activations: Literal["device", "host"] = "device"
    compute_dtypes: Mapping[str, str] = field(default_factory=dict)
    chunk_bytes: int = 16 << 20

    @property
    def several(self) -> bool:
        return self.gradient_accumulation > 1

    @property
    def must_wait(self) -> bool:
        """Whether no update may run before backward has ended."""
        return self.gradient_clipping > 0 or self.precision == "float16" or self.overlap != "exact"

    def compute_dtype(self, storage: str) -> str:
        return self.compute_dtypes.get(storage, storage)


@dataclass(frozen=True)
class Route:
    """The way of one shard; see `engine/routing.py` for what the words mean."""

    placement: Placement
    on_device: bool
    streamed: bool
    aliased: bool
    gradients: Literal["referenced", "taken", "gathered"]
    accumulates: bool
    waiting: Literal["in autograd", "ring", "memory", "disk"]
    delayed: bool

    def is_filed(self, kind: str, dtype: str) -> bool:
        """Whether a kind of the state is on disk; the working copy is in memory unless the weights are on disk."""
        if self.placement.state != "disk":
            return False
        return self.placement.weights == "disk" or kind != WORKING_KIND[dtype]


def route(shard: Shard, placement: Placement, work: Workload) -> Route:
    """Decide the way of `shard`."""
    shared = work.shared_memory
    storage = {region.dtype for region in shard.regions}
    frozen = {spec.dtype for spec in shard.frozen}
    converts = any(work.compute_dtype(dtype) != dtype for dtype in storage | frozen)
    on_device = placement.state == "device" and not shared
    away = (placement.weights == "disk" or converts) if shared else placement.weights != "device"
    streamed = away and shard.kind == "block"
    delayed = work.overlap == "delayed"
    waits_on_disk = placement.state == "disk" and (work.must_wait or work.several)
    gradients: Literal["referenced", "taken", "gathered"]
    if not (on_device or shared) or waits_on_disk or converts:
        gradients = "gathered"
    elif work.several and storage != {"float32"}:
        gradients = "taken"
    else:
        gradients = "referenced"
    waiting: Literal["in autograd", "ring", "memory", "disk"]
    if gradients == "referenced":
        waiting = "in autograd"
    elif waits_on_disk:
        waiting = "disk"
    else:
        waiting = "memory" if work.several or work.must_wait else "ring"
    return Route(
        placement=placement,
        on_device=on_device,
        streamed=streamed,
        aliased=not streamed and not converts and not delayed and (on_device or shared),
        gradients=gradients,
        accumulates=work.several and gradients != "referenced",
        waiting=waiting,
        delayed=delayed,
    )
