"""The route of each unit's weights, state and gradients, decided once from its placement and the machine.

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

GradientMode = Literal["in_autograd", "owned", "bucketed"]
Waiting = Literal["in autograd", "ring", "memory", "disk"]

WORKING_KIND = {"float32": "master", "bfloat16": "high", "float16": "working"}
"""The kind of the state from which the forward's weights are copied, or which they are, by the dtype they are stored
in."""

SMALL_MODEL_BYTES = 64 << 20


def lanes_pay(weight_bytes: int, compute_threads: int, cores: int) -> bool:
    """Return whether updates beside compute are worth handing over in one memory.

    They are not where they are small and compute has every core. `weight_bytes`: of all working weights.
    """
    return compute_threads < cores or weight_bytes > SMALL_MODEL_BYTES


@dataclass(frozen=True)
class Conditions:
    """The conditions that all units of an engine share.

    `compute_dtypes`: the dtype that working weights of a storage dtype are computed in, where that differs.
    `must_wait`: no update may run before backward has ended. `lanes_pay`: in one memory, an update beside compute gains
    more than handing it over costs.
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
    `aliased`: the forward reads the state's own working copy. `gradients`: they stay in autograd's tensors, are owned
    by the engine micro-batch by micro-batch, or are copied into buckets, one a chunk. `accumulates`: the engine sums
    them in fp32. `waiting`: where they are until the update. `update_on_compute`: no lane does it.
    """

    placement: Placement
    on_device: bool
    streamed: bool
    aliased: bool
    gradients: GradientMode
    accumulates: bool
    waiting: Waiting
    update_on_compute: bool
    delayed: bool

    @property
    def after_backward(self) -> bool:
        """Its gradients are found in autograd's tensors when backward has ended, and need no hooks before."""
        return self.update_on_compute and self.gradients == "in_autograd" and not self.delayed

    @property
    def uploads(self) -> bool:
        """New weights are copied to where the forward, or the next fetch, reads them."""
        return not self.aliased and (not self.streamed or self.delayed)

    def is_filed(self, kind: str, dtype: str) -> bool:
        """Return whether a kind of the state is on disk; the working copy is only where the weights are."""
        if self.placement.state != "disk":
            return False
        return self.placement.weights == "disk" or kind != WORKING_KIND[dtype]

    def flow(self) -> UnitFlow:
        """Return the same in the timeline's words."""
        return UnitFlow(
            state=self.placement.state,
            update_on_compute=self.update_on_compute,
            downloads=self.gradients == "bucketed",
            accumulates=self.accumulates,
            gradients_on_disk=self.waiting == "disk",
            uploads=self.uploads,
            after_backward=self.after_backward,
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
        gradients = "bucketed"
    elif several and storage != {"float32"}:
        # Autograd's own sum over micro-batches is in the gradient's dtype; only in fp32 is it the one we want.
        gradients = "owned"
    else:
        gradients = "in_autograd"
    on_lanes = not shared or conditions.lanes_pay or delayed or gradients != "in_autograd"
    update_on_compute = placement.state == "device" or (placement.state == "host" and not on_lanes)
    waiting: Waiting
    if gradients == "in_autograd":
        waiting = "in autograd"
    elif waits_on_disk:
        waiting = "disk"
    else:
        waiting = "memory" if several or conditions.must_wait or update_on_compute else "ring"
    return UnitRoute(
        placement=placement,
        on_device=on_device,
        streamed=streamed,
        aliased=aliased,
        gradients=gradients,
        accumulates=several and gradients != "in_autograd",
        waiting=waiting,
        update_on_compute=update_on_compute,
        delayed=delayed,
    )
