"""Plan a run on this machine: does it fit, and where does "auto" put weights and state?

It also checks the folder of the disk tier. The arithmetic is in `workbench.plan`; it is given this machine's free
memory, its machine profile and the model profile. No memory is taken before the plan fits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from workbench.config import RunConfig
from workbench.engine.devices.device import Device, has_bfloat16
from workbench.engine.disk_files import DiskError, DiskTier
from workbench.errors import ConfigurationError, DoesNotFitError, WorkbenchError
from workbench.plan.fit import remedies, why_not
from workbench.plan.machine import THIS_MACHINE, Free, Machine, MeasuredTimes, free_on_disks
from workbench.plan.planner import Plan, Planner, placement_words
from workbench.profiles.meta_model import count_parts
from workbench.profiles.model_profile import ModelProfile, model_table
from workbench.profiles.obtain import obtain_model_profile
from workbench.profiles.this_machine import cached_profile
from workbench.runs import RunDirectory
from workbench.runs.checkpoints import checkpoint_bytes
from workbench.system.folders import expanded
from workbench.system.free_space import free_host_bytes, mount_of
from workbench.training.ranks import is_first_here

REMOTE = ("nfs", "nfs4", "cifs", "smb3", "9p", "fuse.sshfs", "ceph", "glusterfs", "lustre")
"""File systems across a network."""


def fit(
    config: RunConfig,
    model: nn.Module,
    device: Device,
    free: Free,
    report: Callable[[str], None],
    table: Mapping[str, Any] | None = None,
    *,
    ranks: int = 1,
    local_ranks: int = 1,
) -> Plan:
    """Return the plan of `config`, "auto" replaced by the fastest placement that fits. `model` is on the meta device.

    `table`: the [model] table to profile, where that is not the configuration's own. `ranks`: those that train,
    `local_ranks` of them on this machine, whose memory is looked at once: by the first of them.

    Raises:
        DoesNotFitError: none fits, or that which the configuration fixes does not.
    """
    table = model_table(config) if table is None else table
    model_profile = _model_profile(table, model, report)
    name = str(device.torch_device)
    folder = disk_folder(config)
    measured = cached_profile(name, None if folder is None else str(folder))
    machine = Machine(THIS_MACHINE, free, has_bfloat16(device), measured, local_ranks)
    planner = Planner(model_profile, machine, MeasuredTimes(table, model_profile, machine, name), ranks)
    was_open = "auto" in (config.offload.weights, config.offload.state)
    plan = planner.plan(config)
    if was_open:
        report(f"placement: {placement_words(plan.config)}")
    elif not plan.fits and is_first_here():
        ways = remedies(planner, plan.config)
        way_out = f"It would fit with one of: {'; '.join(ways)}.\n" if ways else ""
        reasons = "\n".join(why_not(plan))
        raise DoesNotFitError(
            f"this does not fit on this machine:\n{plan.memory.table()}\n{reasons}\n{way_out}{_advice(plan)}"
        )
    return plan


def _holds_only_checkpoints(needs: Mapping[str, int]) -> bool:
    return all(name.endswith("checkpoints") for name, size in needs.items() if size)


def _advice(plan: Plan) -> str:
    """Return what else to do about a plan that does not fit, in a sentence."""
    lacking = [tier for tier in plan.memory.tiers if not tier.fits]
    if all(tier.tier == "disk" and _holds_only_checkpoints(tier.needs) for tier in lacking):
        kept = plan.config.checkpoint.keep
        fewer = f", or lower checkpoint.keep (it is {kept})" if kept > 1 else ""
        return f"Make room on the disk of the run's folder, name a folder on another with --runs{fewer}."
    return (
        "Lower the model's size, train.micro_batch_size or data.sequence_length, or use a larger machine; "
        "`workbench plan PRESET --fit` looks for what fits."
    )


def _model_profile(table: Mapping[str, Any], model: nn.Module, report: Callable[[str], None]) -> ModelProfile:
    """Return the model's profile; where no block could be tried, a warning and estimates of what blocks take."""
    first = True

    def report_once(message: str) -> None:
        """Report that it is taken, and not how far that is."""
        nonlocal first
        if first:
            report(message)
        first = False

    try:
        model_profile = obtain_model_profile(table, report_once)
    except ConfigurationError:
        raise
    except WorkbenchError as error:
        report(f"warning: {error}; the cost of blocks is estimated")
        model_profile = None
    return model_profile or count_parts(model, str(table["architecture"] or table["pretrained"]))


def free_bytes(config: RunConfig, device: Device, root: Path, directory: RunDirectory | None) -> Free:
    """Return what is free for the run under `root`, leftovers of earlier runs counted as gone."""
    free_device = None
    if device.torch_device.type == "cuda":
        free_device = torch.cuda.mem_get_info(device.torch_device)[0]
    disk, disk_tier = free_on_disks(root, disk_folder(config))
    # New checkpoints take the place of those that are there.
    disk += checkpoint_bytes(directory.checkpoints) if directory else 0
    return Free(free_host_bytes(), free_device, disk, disk_tier)


def disk_folder(config: RunConfig) -> Path | None:
    """Return the folder where the disk tier of `config` may lie; None where it can have none.

    Raises ConfigurationError where it begins with a home that is not there.
    """
    offload = config.offload
    if not offload.disk_path or not {"disk", "auto"} & {offload.weights, offload.state}:
        return None
    return expanded(offload.disk_path, "offload.disk_path")


def check_disk_folder(folder: Path) -> None:
    """Write a file into `folder` and remove it, and with it what runs that are gone have left behind.

    Raises:
        ConfigurationError: it is not there, is no folder, or cannot be written.
    """
    where = f'offload.disk_path = "{folder}"'
    if not folder.exists():
        raise ConfigurationError(f"{where}: there is no such folder; create it, on a fast local disk")
    if not folder.is_dir():
        raise ConfigurationError(f"{where}: is not a folder; name one on a fast local disk")
    try:
        DiskTier(folder).close()
    except DiskError as error:
        raise ConfigurationError(f"{where}: {error}") from error


def disk_warning(folder: Path) -> str:
    """Return, in a sentence, why `folder` may be a poor place for the disk tier; empty where it is not."""
    mount = mount_of(folder)
    if mount.in_memory:
        return f'offload.disk_path = "{folder}" is on {mount.kind}, in host memory: offloading to it saves no memory'
    if mount.kind in REMOTE:
        return f'offload.disk_path = "{folder}" is on {mount.kind}, a network file system: every step waits for it'
    return ""
