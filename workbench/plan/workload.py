"""The workload of a run: all of its configuration that its memory and its time follow from."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from workbench.config import RunConfig
from workbench.layout import StateFormat, Tier
from workbench.optimizer import AdamW
from workbench.plan.machine import WeightDtypes
from workbench.sizes import Conditions, lanes_pay
from workbench.timeline import Overlap


@dataclass(frozen=True)
class Workload:
    """The part of a configuration that a plan depends on.

    `compute_dtypes`: what weights of a storage dtype are computed in, where that differs. `precision`: the dtype that
    weights are stored in. `shared_memory`: the device computes in the host's memory. `separate_documents`: attention is
    given a mask. `all_gradients_wait`: see `Conditions`. `speculation`: see `EngineConfig`. `tf32`: fp32 matrix
    products are rounded to TF32. `can_be_undone`: an update by the optimizer's numbers. `ranks`: those that share the
    state, `local_ranks` of them on a machine; all else is of one of them.
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
    all_gradients_wait: bool = False
    speculation: float = 0.0
    gradient_sums: Literal["device", "host"] = "host"
    tf32: bool = False
    can_be_undone: bool = True
    ranks: int = 1
    local_ranks: int = 1

    @property
    def several(self) -> bool:
        return self.gradient_accumulation > 1

    @property
    def needs_global_quantity(self) -> bool:
        """True where the update needs the norm of all gradients, or their verdict."""
        return self.gradient_clipping > 0 or self.precision == "float16"

    @property
    def could_speculate(self) -> bool:
        """True where updates ahead of the verdict hide something, if there is room to undo them by."""
        return (
            self.state == "host"
            and not self.shared_memory
            and self.overlap == "exact"
            and self.needs_global_quantity
            and self.can_be_undone
        )

    @property
    def must_wait(self) -> bool:
        """True where no update may run before backward has ended."""
        return self.needs_global_quantity or self.overlap != "exact"

    @property
    def compute_dtype(self) -> str:
        """The dtype that the weights of `precision` are computed in."""
        return self.computed_in(self.precision)

    def computed_in(self, storage: str) -> str:
        return self.compute_dtypes.get(storage, storage)

    def conditions(self, weight_bytes: int) -> Conditions:
        """Return the conditions of routing for a model whose working weights take so many bytes."""
        return Conditions(
            shared_memory=self.shared_memory,
            compute_dtypes=self.compute_dtypes,
            gradient_accumulation=self.gradient_accumulation,
            must_wait=self.must_wait,
            overlap=self.overlap,
            sums_on_device=self.gradient_sums == "device",
            # torch's threads are as many as the cores unless a user says otherwise.
            lanes_pay=lanes_pay(weight_bytes, compute_threads=1, cores=1),
            all_gradients_wait=self.all_gradients_wait,
            ranks=self.ranks,
        )


def workload(
    config: RunConfig, precision: WeightDtypes, *, shared_memory: bool, ranks: int = 1, local_ranks: int = 1
) -> Workload:
    """Return the workload of `config`, whose placement is chosen, on a machine that computes as `precision` says.

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
        tf32=train.tf32,
        can_be_undone=AdamW(
            betas=config.optimizer.betas, coupled_decay=config.optimizer.type == "adam"
        ).can_be_undone,
        ranks=ranks,
        local_ranks=local_ranks,
        gradient_sums="host" if offload.gradient_sums == "auto" else offload.gradient_sums,
    )


def saves(config: RunConfig) -> int:
    """Return how many checkpoints a run writes, whatever the validation loss does.

    A step is saved where the training loop saves it: at every `checkpoint.every`th, at every `checkpoint.keep_every`th,
    and at the last.
    """
    before_last = config.train.steps - 1
    every, keep_every = config.checkpoint.every, config.checkpoint.keep_every
    times = [before_last // steps for steps in (every, keep_every) if steps]
    both = before_last // math.lcm(every, keep_every) if every and keep_every else 0
    return 1 + sum(times) - both


def checkpoints_kept(config: RunConfig) -> int:
    """Return the most checkpoints that stay at a time: the newest, those kept for good, and the best."""
    checkpoint = config.checkpoint
    for_good = config.train.steps // checkpoint.keep_every if checkpoint.keep_every else 0
    older = min(for_good, max(0, saves(config) - checkpoint.keep))
    return checkpoint.keep + older + checkpoint.keep_best
