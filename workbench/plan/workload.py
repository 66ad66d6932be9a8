"""How a run uses a layout: all that its memory follows from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from workbench.config import RunConfig
from workbench.placement import Tier
from workbench.plan.saves import checkpoints_kept
from workbench.routing import Conditions, lanes_pay
from workbench.state_formats import StateFormat
from workbench.timeline import Overlap


@dataclass(frozen=True)
class WeightDtypes:
    """The dtype that working weights are stored in, and what stored dtypes are computed in where that differs."""

    storage: str
    computed_in: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Workload:
    """How a run uses a layout.

    `compute_dtypes`: what weights of a storage dtype are computed in, where that differs. `precision`: the dtype that
    weights are stored in. `shared_memory`: the device computes in the host's memory. `separate_documents`: attention is
    given a mask.
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
    state_format: StateFormat = "exact"
    threads: int | Literal["auto"] = "auto"
    separate_documents: bool = False

    @property
    def several(self) -> bool:
        return self.gradient_accumulation > 1

    @property
    def must_wait(self) -> bool:
        """Whether no update may run before backward has ended."""
        return self.gradient_clipping > 0 or self.precision == "float16" or self.overlap != "exact"

    def conditions(self, weight_bytes: int) -> Conditions:
        """The same in the words of routing, for a model whose working weights take so many bytes."""
        return Conditions(
            shared_memory=self.shared_memory,
            compute_dtypes=self.compute_dtypes,
            gradient_accumulation=self.gradient_accumulation,
            must_wait=self.must_wait,
            overlap=self.overlap,
            # torch's threads are as many as the cores unless a user says otherwise.
            lanes_pay=lanes_pay(weight_bytes, compute_threads=1, cores=1),
        )

    def compute_dtype(self, storage: str) -> str:
        return self.compute_dtypes.get(storage, storage)


def workload(config: RunConfig, precision: WeightDtypes, *, shared_memory: bool) -> Workload:
    """How `config`, whose placement is chosen, uses a layout on a machine that stores and computes as `precision`.

    Raises:
        ValueError: a tier is "auto".
    """
    offload, train = config.offload, config.train
    if offload.weights == "auto" or offload.state == "auto":
        raise ValueError("the placement has to be chosen first")
    return Workload(
        weights=offload.weights,
        state=offload.state,
        device_fraction=offload.device_fraction,
        state_format=offload.state_format,
        threads=offload.threads,
        shared_memory=shared_memory,
        precision=precision.storage,
        compute_dtypes=precision.computed_in,
        gradient_accumulation=train.gradient_accumulation,
        gradient_clipping=train.gradient_clipping,
        overlap=offload.overlap,
        micro_batch_size=train.micro_batch_size,
        sequence_length=config.data.sequence_length,
        activation_checkpointing=train.activation_checkpointing,
        activations=offload.activations,
        checkpoints_kept=checkpoints_kept(config),
        chunk_bytes=offload.chunk_mib << 20,
        separate_documents=config.data.separate_documents,
    )
