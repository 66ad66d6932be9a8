"""Where a run is planned: what is free there, how it stores and computes weights, and how fast it is where that is
known. From this machine as it is now, or from a machine profile alone.
"""

from __future__ import annotations

from dataclasses import dataclass

from workbench.config import RunConfig
from workbench.errors import ConfigurationError
from workbench.formatting import in_sentence
from workbench.plan.memory.tiers import Free
from workbench.plan.workload import WeightDtypes
from workbench.profiles.machine_profile import MachineProfile

STORED = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
"""The configuration's precisions by the dtype that they store."""


@dataclass(frozen=True)
class Ground:
    """`precision`: what "auto" and the others mean there. `machine`: None where nothing was measured.

    `has_bfloat16`: the device computes in it.
    """

    name: str
    free: Free
    has_bfloat16: bool
    machine: MachineProfile | None

    @property
    def shared_memory(self) -> bool:
        return self.free.device is None

    def precision(self, config: RunConfig) -> WeightDtypes:
        """What weights are stored and computed in under `config`."""
        wanted = config.train.precision
        if wanted == "auto":
            wanted = "bf16" if self.has_bfloat16 and not self.shared_memory else "fp32"
        widened = {}
        if self.shared_memory:
            widened = {"float16": "float32"}
            if not self.has_bfloat16:
                widened["bfloat16"] = "float32"
        return WeightDtypes(STORED[wanted], widened)

    def computes(self, config: RunConfig) -> bool:
        """Whether the device can compute as `config` says: weights stored in 16 bits and computed in fp32 come block by
        block, which needs activation checkpointing."""
        precision = self.precision(config)
        return config.train.activation_checkpointing or precision.storage not in precision.computed_in


def ground_of(machine: MachineProfile) -> Ground:
    """Planning on `machine` as its profile has it."""
    native = machine.device.has_bfloat16
    if native is None:
        speeds = machine.device.matrix_flops_per_s
        # Where it is emulated it is slower than fp32 by far.
        native = speeds.get("bfloat16", 0.0) > speeds.get("float32", 0.0) / 2
    shared = machine.device.shared_memory
    disk = None if machine.disk is None else machine.disk.free_bytes
    free = Free(machine.host.free_bytes, None if shared else machine.device.free_bytes, disk)
    return Ground(machine.name, free, native, machine)


def check_device(config: RunConfig, ground: Ground) -> None:
    """Refuse a configuration whose device `ground` does not have.

    Raises:
        ConfigurationError: train.device asks for a GPU where there is none, or for the CPU of a machine planned with
            its GPU.
    """
    wanted = config.train.device
    if wanted.startswith("cuda") and ground.shared_memory:
        raise ConfigurationError(
            f'train.device = "{wanted}": {in_sentence(ground.name)} has no GPU; "auto" takes what there is'
        )
    if wanted == "cpu" and not ground.shared_memory:
        raise ConfigurationError(
            f'train.device = "cpu": {in_sentence(ground.name)} is planned with its GPU; "auto" takes it, or '
            "give --machine the profile of a machine without one"
        )


def check_precision(config: RunConfig, ground: Ground) -> None:
    """Refuse a precision that `ground` cannot compute in as `config` has it.

    Raises:
        ConfigurationError: it needs activation checkpointing there, which is off.
    """
    if not ground.computes(config):
        raise ConfigurationError(
            f'train.precision = "{config.train.precision}": {in_sentence(ground.name)} has no such arithmetic, so '
            "that weights stored in 16 bits are computed in float32 block by block, which needs "
            'train.activation_checkpointing = true; or use "fp32"'
        )
