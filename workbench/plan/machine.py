"""The machine that a run is planned on: what is free there, how it stores and computes weights, and its speeds.

`this_machine` is this one as it is now; `planned_machine` is one of which only a profile is known.

Invariant: nothing here measures. A machine without a profile is planned without times.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from workbench.config import RunConfig
from workbench.errors import ConfigurationError, WorkbenchError
from workbench.formatting import in_sentence
from workbench.profiles.machine_profile import MachineProfile
from workbench.profiles.model_profile import ModelProfile, ModelTimes
from workbench.profiles.obtain import obtain_times
from workbench.profiles.this_machine import cached_profile, device_index, visible_gpus
from workbench.system import processor
from workbench.system.free_space import free_disk_bytes, free_host_bytes, same_disk

THIS_MACHINE = "this machine"
STORED = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
"""The configuration's precisions by the dtype that they store."""


@dataclass(frozen=True)
class Free:
    """Free bytes. `device`: None where the device computes in the host's memory.

    `disk`: where the run is written; None where that is not known, and then there is no disk tier either. `disk_tier`:
    where the disk tier lies; None where that is the same disk, or there is none.
    """

    host: int
    device: int | None
    disk: int | None
    disk_tier: int | None = None


@dataclass(frozen=True)
class WeightDtypes:
    """The dtype that working weights are stored in, and what stored dtypes are computed in where that differs."""

    storage: str
    computed_in: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Machine:
    """A machine. `has_bfloat16`: the device computes in it. `profile`: None where nothing was measured.

    `gpus`: those that train together on one such machine, of which runs may take several; None: as many as there are
    ranks.
    """

    name: str
    free: Free
    has_bfloat16: bool
    profile: MachineProfile | None
    gpus: int | None = None

    @property
    def shared_memory(self) -> bool:
        """True where the device computes in the host's memory."""
        return self.free.device is None

    def precision(self, config: RunConfig) -> WeightDtypes:
        """Return the dtypes that weights are stored and computed in under `config`."""
        wanted = config.train.precision
        if wanted == "auto":
            wanted = "fp32" if self.shared_memory else "bf16" if self.has_bfloat16 else "fp16"
        widened = {}
        if self.shared_memory:
            widened = {"float16": "float32"}
            if not self.has_bfloat16:
                widened["bfloat16"] = "float32"
        return WeightDtypes(STORED[wanted], widened)

    def computes(self, config: RunConfig) -> bool:
        """False where weights stored in 16 bits are computed in fp32, and `config` has no activation checkpointing.

        Such weights come block by block, which needs it.
        """
        precision = self.precision(config)
        return config.train.activation_checkpointing or precision.storage not in precision.computed_in

    def check(self, config: RunConfig) -> None:
        """Refuse a device or a precision that this machine does not have.

        Raises:
            ConfigurationError: see `check_device`; or the precision needs activation checkpointing, which is off.
        """
        self.check_device(config)
        if not self.computes(config):
            raise ConfigurationError(
                f'train.precision = "{config.train.precision}": {in_sentence(self.name)} has no such arithmetic, so '
                "that weights stored in 16 bits are computed in float32 block by block, which needs "
                'train.activation_checkpointing = true; or use "fp32"'
            )

    def check_device(self, config: RunConfig) -> None:
        """Refuse a device that this machine does not have.

        Raises:
            ConfigurationError: train.device asks for a GPU where there is none, or for the CPU of a machine that is
                planned with its GPU.
        """
        wanted = config.train.device
        if wanted.startswith("cuda") and self.shared_memory:
            raise ConfigurationError(
                f'train.device = "{wanted}": {in_sentence(self.name)} has no GPU; "auto" takes what there is'
            )
        if wanted == "cpu" and not self.shared_memory:
            raise ConfigurationError(
                f'train.device = "cpu": {in_sentence(self.name)} is planned with its GPU; "auto" takes it, or '
                "give --machine the profile of a machine without one"
            )


def planned_machine(profile: MachineProfile) -> Machine:
    """Return the machine that `profile` describes."""
    native = profile.device.has_bfloat16
    if native is None:
        speeds = profile.device.matrix_flops_per_s
        # Where it is emulated it is slower than fp32 by far.
        native = speeds.get("bfloat16", 0.0) > speeds.get("float32", 0.0) / 2
    device = None if profile.device.shared_memory else profile.device.free_bytes
    disk = None if profile.disk is None else profile.disk.free_bytes
    gpus = None if profile.peers is None else profile.peers.gpus
    return Machine(profile.name, Free(profile.host.free_bytes, device, disk), native, profile, gpus)


def this_machine(
    device: str, disk_folder: Path | None, runs: Path, profile: MachineProfile | None = None
) -> Machine:
    """Return this machine with what is free on it now, and with its speeds where they have been measured.

    `disk_folder`: of the disk tier. `runs`: where the run will be written. `profile`: measured just now; by default
    the cached one.

    Raises:
        ConfigurationError: there is no such device.
    """
    disk, disk_tier = free_on_disks(runs, disk_folder)
    profile = profile or cached_profile(device, None if disk_folder is None else str(disk_folder))
    if profile is not None:
        known = planned_machine(profile)
        free = replace(known.free, disk=disk, disk_tier=disk_tier)
        number = None if known.shared_memory else max(1, len(visible_gpus()))
        return replace(known, name=THIS_MACHINE, free=free, gpus=number)
    index = device_index(device)
    if index is None:
        free = Free(free_host_bytes(), None, disk, disk_tier)
        return Machine(THIS_MACHINE, free, processor.has_bfloat16(), None)
    gpus = visible_gpus()
    if index >= len(gpus):
        there = f"it shows {len(gpus)}" if gpus else "it shows none"
        raise ConfigurationError(
            f'train.device = "{device}": this machine has no such GPU ({there}); "auto" takes what there is'
        )
    free = Free(free_host_bytes(), gpus[index].free_bytes, disk, disk_tier)
    return Machine(THIS_MACHINE, free, gpus[index].has_bfloat16, None, len(gpus))


def free_on_disks(runs: Path, disk_folder: Path | None) -> tuple[int, int | None]:
    """Return the free bytes for runs, and for the disk tier where that lies on another disk."""
    apart = disk_folder is not None and not same_disk(disk_folder, runs)
    return free_disk_bytes(runs), free_disk_bytes(disk_folder) if disk_folder is not None and apart else None


class MeasuredTimes:
    """Measured times of a model's pieces on this machine, for a `Planner`.

    Those of the very sizes that are asked for, else those that were found first for the dtype, which the planner scales
    to other sizes. `take`: the first ones are measured where there are none, which takes up to a minute. `device`: as
    in `train.device`.
    """

    def __init__(
        self,
        model_table: Mapping[str, Any],
        model_profile: ModelProfile,
        machine: Machine,
        device: str,
        report: Callable[[str], None] = lambda sentence: None,
        *,
        take: bool = False,
    ) -> None:
        self._table = model_table
        self._model_profile = model_profile
        self._profile = machine.profile
        self._device = device
        self._report = report
        self._take = take
        self._known: dict[tuple[int, int, str], ModelTimes | None] = {}
        self._first: dict[str, ModelTimes | None] = {}

    def __call__(self, sequences: int, tokens: int, dtype: str) -> ModelTimes | None:
        """Return times for micro-batches of `sequences` x `tokens` computed in `dtype`; None where there are none.

        Raises:
            ConfigurationError: the table describes no model that can be built.
        """
        sizes = sequences, tokens, dtype
        if sizes not in self._known:
            found = self._known[sizes] = self._obtain(*sizes, take=self._take and dtype not in self._first)
            if found is not None or self._take:
                self._first.setdefault(dtype, found)
        return self._known[sizes] or self._first.get(dtype)

    def _obtain(self, sequences: int, tokens: int, dtype: str, *, take: bool) -> ModelTimes | None:
        if self._profile is None:
            return None
        try:
            return obtain_times(
                self._table,
                self._model_profile,
                fingerprint=self._profile.fingerprint,
                sequences=sequences,
                tokens=tokens,
                dtype=dtype,
                device=self._device,
                report=self._report,
                take=take,
            )
        except ConfigurationError:
            raise
        except WorkbenchError as error:
            self._report(f"{error}; its time is computed from the machine's speeds")
            return None
