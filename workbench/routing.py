"""How each unit's weights, state and gradients move, decided once from its placement and the machine.

Written once for two readers: the engine's parts ask here what to allocate, where a gradient goes and which tasks a step
has, the planner what all that takes. No torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from workbench.layout import Unit
from workbench.placement import Placement
from workbench.timeline import Overlap, UnitFlow

GradientMode = Literal["referenced", "taken", "gathered"]
Waiting = Literal["in autograd", "ring", "memory", "disk"]

WORKING_KIND = {"float32": "master", "bfloat16": "high", "float16": "working"}
"""The kind of the state from which the forward's weights are copied, or which they are, by the dtype they are stored
in."""


SMALL_MODEL_BYTES = 64 << 20


def lanes_pay(weight_bytes: int, compute_threads: int, cores: int) -> bool:
    """Whether updates beside compute are worth handing over in one memory: not where they are small and compute has
    every core. `weight_bytes`: of all working weights."""
    return compute_threads < cores or weight_bytes > SMALL_MODEL_BYTES


@dataclass(frozen=True)
class Conditions:
    """What is the same for all units of an engine.

    `compute_dtypes`: what working weights of a storage dtype are computed in, where that differs. `must_wait`: no
    update may run before backward has ended. `lanes_pay`: in one memory, an update beside compute gains more
    than handing it over costs.
    """

    shared_memory: bool
    compute_dtypes: Mapping[str, str]
    gradient_accumulation: int
    must_wait: bool
    overlap: Overlap
    lanes_pay: bool = True

    def compute_dtype(self, storage: str) -> str:
        return self.compute_dtypes.get(storage, storage)


@dataclass(frozen=True)
class UnitRoute:
    """The way of one unit.

    `on_device`: the state is on a device of its own. `streamed`: the weights come into a slot when they are used.
    `aliased`: what the forward reads is the state's own working copy. `gradients`: they stay in autograd's
    tensors, are taken from there micro-batch by micro-batch, or are gathered into chunks. `accumulates`: the engine
    sums them in fp32. `waiting`: where they are until the update.
    """

    placement: Placement
    on_device: bool
    streamed: bool
    aliased: bool
    gradients: GradientMode
    accumulates: bool
    waiting: Waiting
    by_compute: bool
    delayed: bool

    @property
    def collected(self) -> bool:
        """Whether its gradients are found in autograd's tensors when backward has ended, and need no hooks before."""
        return self.by_compute and self.gradients == "referenced" and not self.delayed

    @property
    def uploads(self) -> bool:
        """Whether new weights are copied to where the forward, or the next fetch, reads them."""
        return not self.aliased and (not self.streamed or self.delayed)

    def is_filed(self, kind: str, dtype: str) -> bool:
        """Whether a kind of the state is on disk; the working copy is in memory unless the weights are on disk."""
        if self.placement.state != "disk":
            return False
        return self.placement.weights == "disk" or kind != WORKING_KIND[dtype]

    def flow(self) -> UnitFlow:
        """The same in the timeline's words."""
        return UnitFlow(
            state=self.placement.state,
            by_compute=self.by_compute,
            gathers=self.gradients == "gathered",
            accumulates=self.accumulates,
            gradients_on_disk=self.waiting == "disk",
            uploads=self.uploads,
            collected=self.collected,
        )


def route_unit(unit: Unit, placement: Placement, conditions: Conditions) -> UnitRoute:
    """Decide the way of `unit`.

    Raises:
        ValueError: its weights are on disk and the overlap is delayed.
    """
    shared = conditions.shared_memory
    delayed = conditions.overlap == "delayed"
    if delayed and placement.weights == "disk":
        raise ValueError("overlap = 'delayed' with weights = 'disk': the disk would have to hold them twice")
    storage = {region.dtype for region in unit.regions}
    frozen = {spec.dtype for spec in unit.frozen}
    converts = any(conditions.compute_dtype(dtype) != dtype for dtype in storage | frozen)
    on_device = placement.state == "device" and not shared
    comes = (placement.weights == "disk" or converts) if shared else placement.weights != "device"
    streamed = comes and unit.kind == "block"
    aliased = not streamed and not converts and not delayed and (on_device or shared)
    several = conditions.gradient_accumulation > 1
    waits_on_disk = placement.state == "disk" and (conditions.must_wait or several)
    gradients: GradientMode
    if not (on_device or shared) or waits_on_disk or converts:
        gradients = "gathered"
    elif several and storage != {"float32"}:
        # Autograd's own sum over micro-batches is in the gradient's dtype; only in fp32 is it the one we want.
        gradients = "taken"
    else:
        gradients = "referenced"
    on_lanes = not shared or conditions.lanes_pay or delayed or gradients != "referenced"
    by_compute = placement.state == "device" or (placement.state == "host" and not on_lanes)
    waiting: Waiting
    if gradients == "referenced":
        waiting = "in autograd"
    elif waits_on_disk:
        waiting = "disk"
    else:
        waiting = "memory" if several or conditions.must_wait or by_compute else "ring"
    return UnitRoute(
        placement=placement,
        on_device=on_device,
        streamed=streamed,
        aliased=aliased,
        gradients=gradients,
        accumulates=several and gradients != "referenced",
        waiting=waiting,
        by_compute=by_compute,
        delayed=delayed,
    )
