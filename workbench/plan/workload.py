"""How a run uses a layout: all that its memory follows from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from workbench.placement import Tier
from workbench.routing import Conditions
from workbench.timeline import Overlap

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

    def conditions(self) -> Conditions:
        """The same in the words of routing."""
        return Conditions(
            shared_memory=self.shared_memory,
            compute_dtypes=self.compute_dtypes,
            gradient_accumulation=self.gradient_accumulation,
            must_wait=self.must_wait,
            overlap=self.overlap,
        )

    def compute_dtype(self, storage: str) -> str:
        return self.compute_dtypes.get(storage, storage)
