"""The configuration of an engine: every argument of `OffloadEngine` but the model, checked once and passed whole.

Invariant: an `EngineConfig` that exists is consistent in itself. What depends on the model or on the machine is checked
where these are known, in `build.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, get_args

import torch

from workbench.engine.blocks.discovery import FoundUnit
from workbench.engine.devices.device import Device
from workbench.engine.non_finite import LossScaling
from workbench.engine.precision import Compute, Precision
from workbench.layout import MOMENTS, StateFormat, Tier
from workbench.optimizer import AdamW
from workbench.timeline import Overlap


@dataclass(frozen=True)
class EngineConfig:
    """The arguments of `OffloadEngine`.

    Args:
        optimizer: AdamW's numbers. Weight decay applies to parameters of two or more dimensions but those that
            `no_decay` names; `learning_rate_scales` multiplies the rate of others. Both match names as a shell does.
        weights: the tier of the blocks' working weights, "device", "host" or "disk". Off the device they come block by
            block through a ring of slots. Parameters outside the blocks stay on the device.
        state: the tier of the optimizer state, "device", "host" or "disk"; never above that of the weights.
        device_fraction: share of the trainable elements, in whole units in forward order, that stay on the device with
            their state.
        state_format: how the state is kept off the device: "exact", or "half" or "compact" for matrices; embeddings and
            parameters with fewer than two dimensions stay exact. On a device of its own it is exact.
        gradient_accumulation: micro-batches a step.
        gradient_sums: where gradients of several micro-batches are summed if the state is on the host. "device" takes
            4 bytes a parameter there, and one copy a step goes down instead of one a micro-batch. The same bits where
            weights are computed in the dtype that they are stored in.
        micro_batch_tokens: the `tokens` of a usual micro-batch, whose loss is backpropagated as it is; None is the
            first one of each step. With fp16 losses that are far larger for others would overflow.
        gradient_clipping: the largest norm of a step's mean gradient; 0 leaves it as it is.
        overlap: "exact" hides the update behind backward and the next forward, "serial" does everything in order;
            both give the same bits. "delayed" applies a step's gradients during the next one, from step
            `delay_warmup` + 1 on (Ren et al., ZeRO-Offload, 2021, §5.2).
        all_gradients_wait: without clipping and loss scale, give the gradients of all units off the device room to wait
            for their update on the host, 2 bytes a parameter: backward goes on where updates are slower.
        speculation: share of the trainable elements, in whole units in backward order, that may be updated ahead of the
            norm of all gradients, and have records to undo that by: 3 or 4 bytes an element on the host. The bits are
            the same. It is for state on the host beside a device with memory of its own, with clipping or a
            loss scale, and overlap "exact"; elsewhere it changes nothing.
        precision: of the working weights; "auto" is bf16 on a GPU that has it, fp16 on an older one, and fp32 on a CPU.
            "fp16" scales the loss, by `loss_scale`; None searches the scale from 2^16 on.
        compute: "auto" computes 16-bit weights in fp32 where the CPU has no such arithmetic, "same" in their own
            precision, "fp32" always in fp32 (on the CPU).
        activation_checkpointing: recompute each block's forward during backward. Weights that come through slots
            need it. activations: "host" keeps what backward needs of each block's input on the host.
        disk_path: a folder for the files of the disk tier.
        chunk_bytes: bytes of working weights that move and update together.
        threads: of the host optimizer; "auto" takes what this process may use.
        device: "cuda", "cuda:1", "cpu", "auto", or a `Device`.
        materialize: called with each unit that has parameters on the meta device, before it is laid into memory;
            has to replace them by real ones (see `FoundUnit.owners`).
        watchdog_s: a lane that works on one task for longer than this ends the step with an error that names it; 0
            never does. No rank keeps the others waiting for longer.
        process_group: the ranks of torch.distributed that share the state: its default group, which None is as well,
            where there is one. Each trains on micro-batches of its own, all with the same arguments, and has 1/N of
            the state (docs/distributed.md).

    Raises:
        TypeError: `optimizer` is a torch optimizer: the engine needs the numbers of one.
        ValueError: a value is out of range, or two contradict each other.
    """

    optimizer: AdamW = field(default_factory=AdamW)
    weights: Tier = "device"
    state: Tier = "host"
    device_fraction: float = 0.0
    state_format: StateFormat = "exact"
    gradient_accumulation: int = 1
    gradient_sums: Literal["device", "host"] = "host"
    micro_batch_tokens: int | None = None
    gradient_clipping: float = 0.0
    overlap: Overlap = "exact"
    delay_warmup: int = 40
    all_gradients_wait: bool = False
    speculation: float = 0.0
    precision: Precision = "auto"
    loss_scale: LossScaling | None = None
    compute: Compute = "auto"
    activation_checkpointing: bool = True
    activations: Literal["device", "host"] = "device"
    disk_path: str | Path | None = None
    chunk_bytes: int = 16 << 20
    threads: int | Literal["auto"] = "auto"
    device: str | torch.device | Device = "auto"
    materialize: Callable[[FoundUnit], None] | None = None
    watchdog_s: float = 600.0
    process_group: torch.distributed.ProcessGroup | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.optimizer, AdamW):
            raise TypeError(
                f"optimizer: expected workbench.engine.AdamW (settings only); got {type(self.optimizer)}"
            )
        self._check_choice("weights", get_args(Tier))
        self._check_choice("state", get_args(Tier))
        self._check_choice("state_format", tuple(MOMENTS))
        self._check_choice("overlap", get_args(Overlap))
        self._check_choice("activations", ("device", "host"))
        self._check_choice("gradient_sums", ("device", "host"))
        if self.state == "device" and self.state_format != "exact":
            raise ValueError(f"state_format = {self.state_format!r}: the state on the device is always exact")
        if self.gradient_accumulation < 1:
            raise ValueError(f"gradient_accumulation = {self.gradient_accumulation}: expected 1 or more")
        if self.micro_batch_tokens is not None and self.micro_batch_tokens < 1:
            raise ValueError(f"micro_batch_tokens = {self.micro_batch_tokens}: expected 1 or more")
        if not self.gradient_clipping >= 0:
            raise ValueError(f"gradient_clipping = {self.gradient_clipping}: expected 0 (off) or more")
        if self.delay_warmup < 0:
            raise ValueError(f"delay_warmup = {self.delay_warmup}: expected 0 or more")
        if "disk" in (self.weights, self.state) and not self.disk_path:
            raise ValueError("disk_path: the disk tier needs a folder on a fast disk")
        if self.activations == "host" and not self.activation_checkpointing:
            raise ValueError("activations = 'host' needs activation checkpointing")

    def _check_choice(self, name: str, known: Sequence[str]) -> None:
        value = getattr(self, name)
        if value not in known:
            raise ValueError(f"{name} = {value!r}: expected {' or '.join(map(repr, known))}")

    def loss_scaling(self, storage: torch.dtype) -> LossScaling | None:
        """Return how the loss is scaled for working weights of `storage`; None where it needs no scale."""
        return (self.loss_scale or LossScaling()) if storage == torch.float16 else None

    def is_delayed(self, step: int) -> bool:
        """Return whether step `step`, counted from 1, applies the gradients of the step before it."""
        return self.overlap == "delayed" and step > self.delay_warmup
