"""The profile of this machine as it was last measured, from the cache. No torch: the screen and the planner read it.

The machine is kept by its device, each disk by its folder, so that several disks may be known. Invariant: what is
given out was measured on the machine as it is now; what is free on it is asked anew.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from workbench.errors import ConfigurationError
from workbench.plan.memory.free import free_disk_bytes, free_host_bytes
from workbench.plan.profile import DiskProfile, MachineProfile, parse_profile, profile_text
from workbench.profiles.machine.fingerprint import device_index, machine_fingerprint, resolved_device
from workbench.profiles.machine.gpus import gpu_called, visible_gpus
from workbench.profiles.machine.mounts import mount_of
from workbench.system.folders import read_cached, write_cached


class _KeptDisk(BaseModel):
    """A measured disk. `stamp`: of the machine and the file system that it was measured on."""

    model_config = ConfigDict(extra="forbid")

    stamp: str
    disk: DiskProfile


def cached_profile(device: str = "auto", disk_path: str | None = None) -> MachineProfile | None:
    """What `workbench probe` measured here for `device`; None where it did not, or the machine has changed since.

    With the disk of the folder `disk_path` where that has been measured, else without one.

    Raises:
        ConfigurationError: `device` is none of auto, cpu, cuda and cuda:N.
    """
    fingerprint = machine_fingerprint(device)
    for name in map(_name, _candidates(device)):
        text = read_cached(name)
        try:
            profile = None if text is None else parse_profile(text, name)
        except ConfigurationError:
            profile = None
        if profile is not None and profile.fingerprint == fingerprint:
            disk = _cached_disk(Path(disk_path)) if disk_path else None
            return _with_what_is_free(profile.model_copy(update={"disk": disk}), device)
    return None


def keep_profile(profile: MachineProfile, device: str = "auto") -> Path | None:
    """Keep what was measured for `device`; where, or None where the cache cannot be written."""
    if profile.disk is not None:
        disk = profile.disk.model_copy(update={"path": str(folder_of(Path(profile.disk.path)))})
        kept = _KeptDisk(stamp=_disk_stamp(Path(disk.path)), disk=disk)
        write_cached(_disk_name(Path(disk.path)), kept.model_dump_json(indent=2) + "\n")
    text = profile_text(profile.model_copy(update={"disk": None}))
    return write_cached(_name(_measured_on(profile, device)), text)


def folder_of(path: Path) -> Path:
    """`path` as it is kept: absolute, without "~", ".." and links.

    Raises:
        ConfigurationError: there is no such home, or links lead in a circle.
    """
    try:
        folder = Path(os.path.realpath(path.expanduser()))
    except RuntimeError as error:
        raise ConfigurationError(f"{path}: names no folder: {error}") from error
    if folder.is_symlink():  # what is left of links that cannot be followed
        raise ConfigurationError(f"{path}: names no folder: its links lead in a circle")
    return folder


def _measured_on(profile: MachineProfile, device: str) -> str:
    """The device's own name, where "auto" was asked for and the driver does not tell what torch took."""
    resolved = resolved_device(device)
    if device != "auto" or profile.device.shared_memory == (resolved == "cpu"):
        return resolved
    # On a CPU although there is a GPU: torch could not use that, and who asks for it must not get this.
    return "auto" if profile.device.shared_memory else "cuda:0"


def _candidates(device: str) -> list[str]:
    """The devices under whose names a profile for `device` may be kept, the best first."""
    resolved = resolved_device(device)
    if device != "auto":
        return [resolved]
    if resolved != "cpu":
        return [resolved, "auto"]
    # A GPU of which the driver's library tells nothing: what was measured on it has no GPU in its fingerprint.
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES", "all").strip() in ("", "-1")
    return ["cpu"] if hidden else ["cuda:0", "cpu"]


def _name(device: str) -> str:
    return f"machines/{device.replace(':', '-')}.toml"


def _disk_name(path: Path) -> str:
    return f"disks/{hashlib.blake2b(str(folder_of(path)).encode(), digest_size=8).hexdigest()}.json"


def _disk_stamp(path: Path) -> str:
    """Checksums are computed by the processor: another one makes another disk tier."""
    return " ".join((machine_fingerprint("cpu"), *mount_of(folder_of(path))))


def _cached_disk(path: Path) -> DiskProfile | None:
    text = read_cached(_disk_name(path))
    try:
        kept = None if text is None else _KeptDisk.model_validate_json(text)
    except ValidationError:
        return None
    return kept.disk if kept is not None and kept.stamp == _disk_stamp(path) else None


def _with_what_is_free(profile: MachineProfile, device: str) -> MachineProfile:
    host = profile.host.model_copy(update={"free_bytes": free_host_bytes()})
    changes: dict[str, object] = {"host": host}
    index = device_index(device)
    if not profile.device.shared_memory and index is not None:
        gpu = gpu_called(profile.device.name, index, visible_gpus())
        if gpu is not None:
            changes["device"] = profile.device.model_copy(update={"free_bytes": gpu.free_bytes})
    if profile.disk is not None:
        free = free_disk_bytes(Path(profile.disk.path))
        changes["disk"] = profile.disk.model_copy(update={"free_bytes": free})
    return profile.model_copy(update=changes)
