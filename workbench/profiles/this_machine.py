"""This machine: its GPUs, a fingerprint that changes with it, and its profile as last measured.

No torch here: the screen and the planner read it. Nothing raises for what the system does not say: that is "N/A". The
machine's profile is cached by its device, each disk's by its folder, so that several disks may be known.

Invariant: a profile that is returned was measured on the machine as it is now; free memory and room are read again.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import json
import os
import platform
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import BaseModel, ConfigDict, ValidationError

from workbench.errors import ConfigurationError
from workbench.formatting import GIB
from workbench.optimizer import missing_extension
from workbench.profiles.machine_profile import DiskProfile, MachineProfile, parse_profile, profile_text
from workbench.system.folders import read_cached, write_cached
from workbench.system.free_space import free_disk_bytes, free_host_bytes, host_memory, mount_of
from workbench.system.processor import usable_cpus

PROBE_VERSION = 4
"""Counts up with every change of what is measured, or of what the figures mean."""
UNKNOWN = "N/A"


# GPUs, by the driver's library


class Gpu(NamedTuple):
    """`free_bytes`: now. `driver`: its version, or "N/A". `has_bfloat16`: it computes in bf16."""

    name: str
    memory_bytes: int
    free_bytes: int
    driver: str
    has_bfloat16: bool = True


def visible_gpus() -> list[Gpu]:
    """Return the GPUs that this process may use; none where there is no driver or it does not answer.

    The order is the driver's, narrowed by CUDA_VISIBLE_DEVICES. Where that is not CUDA's own order, a machine has GPUs
    of several kinds, and a GPU is looked for by its name too.
    """
    try:
        import pynvml
    except ImportError:
        return []
    found: list[Gpu] = []
    with contextlib.suppress(pynvml.NVMLError), _library(pynvml):
        driver = _driver(pynvml)
        for handle in _handles(pynvml):
            memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
            name = _text(pynvml.nvmlDeviceGetName(handle))
            # From 8.0 on: CUDA C programming guide, arithmetic instructions.
            has_bfloat16 = pynvml.nvmlDeviceGetCudaComputeCapability(handle)[0] >= 8
            found.append(Gpu(name, int(memory.total), int(memory.free), driver, has_bfloat16))
    return found


def gpu_called(name: str, index: int, gpus: list[Gpu]) -> Gpu | None:
    """Return the GPU number `index` if it has this name, else the first that has it."""
    if index < len(gpus) and gpus[index].name == name:
        return gpus[index]
    return next((gpu for gpu in gpus if gpu.name == name), None)


@contextlib.contextmanager
def _library(pynvml: Any) -> Iterator[None]:
    pynvml.nvmlInit()
    try:
        yield
    finally:
        pynvml.nvmlShutdown()


def _handles(pynvml: Any) -> Iterator[Any]:
    count = pynvml.nvmlDeviceGetCount()
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    words = [str(number) for number in range(count)] if visible is None else visible.split(",")
    for word in (each.strip() for each in words):
        if word.isdecimal() and int(word) < count:
            yield pynvml.nvmlDeviceGetHandleByIndex(int(word))
        elif word.startswith(("GPU-", "MIG-")):
            yield pynvml.nvmlDeviceGetHandleByUUID(word)
        else:
            return  # CUDA, too, stops at the first that is none


def _driver(pynvml: Any) -> str:
    try:
        return _text(pynvml.nvmlSystemGetDriverVersion())
    except pynvml.NVMLError:
        return "N/A"


def _text(value: str | bytes) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value


# The fingerprint


def machine_fingerprint(device: str = "auto") -> str:
    """Return a hash of what a profile measured on `device` depends on: processor, GPU, driver, torch, probe.

    Raises:
        ConfigurationError: no such device name can be.
    """
    content = json.dumps(_facts(device), sort_keys=True)
    return hashlib.blake2b(content.encode(), digest_size=8).hexdigest()


def resolved_device(device: str) -> str:
    """Return "cpu" or "cuda:N" for a device's name, as far as that is known without torch.

    Raises:
        ConfigurationError: it is neither auto, cpu, cuda nor cuda:N.
    """
    if device == "auto":
        # A torch that was built without CUDA says so in its version.
        return "cuda:0" if not version_of("torch").endswith("+cpu") and visible_gpus() else "cpu"
    if device == "cuda":
        return "cuda:0"
    if device != "cpu" and not re.fullmatch(r"cuda:\d+", device):
        raise ConfigurationError(f"device {device!r}: expected auto, cpu, cuda or cuda:N")
    return device


def device_index(device: str) -> int | None:
    """Return the number of a GPU; None for the CPU."""
    resolved = resolved_device(device)
    return None if resolved == "cpu" else int(resolved.removeprefix("cuda:"))


def cpu_model(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """Return the processor's name, or its architecture where the system does not say."""
    try:
        text = cpuinfo.read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = ""
    found = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return found.group(1).strip() if found else platform.processor() or platform.machine() or UNKNOWN


def instruction_set() -> str:
    """Return the instruction set that the host optimizer uses; "torch" where its extension is missing."""
    if missing_extension() is not None:
        return "torch"
    from workbench._native import lib

    numbers = {"avx512": lib.WB_AVX512, "avx2": lib.WB_AVX2, "neon": lib.WB_NEON, "scalar": lib.WB_SCALAR}
    forced = os.environ.get("WORKBENCH_ISA", "")
    return forced or next(name for name, number in numbers.items() if lib.wb_has_instruction_set(number))


def total_memory_bytes() -> int:
    """Return the bytes of the host's memory."""
    return host_memory()[1]


def _facts(device: str) -> dict[str, str | int]:
    index = device_index(device)
    gpu: Gpu | None = None
    if index is not None:
        gpus = visible_gpus()
        gpu = gpus[index] if index < len(gpus) else None
    return {
        "probe": PROBE_VERSION,
        "cpu": cpu_model(),
        "cores": usable_cpus(),
        "instruction_set": instruction_set(),
        # In whole GiB: kernels differ by some MiB in what they keep for themselves.
        "memory_gib": round(total_memory_bytes() / GIB),
        "gpu": gpu.name if gpu else UNKNOWN,
        "gpu_memory_gib": round(gpu.memory_bytes / GIB) if gpu else UNKNOWN,
        "driver": gpu.driver if gpu else UNKNOWN,
        "torch": version_of("torch"),
    }


def version_of(package: str) -> str:
    """Return the version of an installed package; "N/A" where it is not installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return UNKNOWN


# The profile in the cache


class _CachedDisk(BaseModel):
    """A measured disk. `stamp`: see `_disk_stamp`."""

    model_config = ConfigDict(extra="forbid")

    stamp: str
    disk: DiskProfile


def cached_profile(device: str = "auto", disk_path: str | None = None) -> MachineProfile | None:
    """Return the profile that `workbench probe` measured for `device`; None without one of the machine as it is now.

    With the disk of the folder `disk_path` where that has been measured, else without one.

    Raises:
        ConfigurationError: `device` is none of auto, cpu, cuda and cuda:N.
    """
    fingerprint = machine_fingerprint(device)
    # "auto" may have taken another device than the driver names; the fingerprint decides.
    devices = ("cuda:0", "cpu") if device == "auto" else (resolved_device(device),)
    for name in map(_name, devices):
        text = read_cached(name)
        try:
            profile = None if text is None else parse_profile(text, name)
        except ConfigurationError:
            profile = None
        if profile is not None and profile.fingerprint == fingerprint:
            disk = _cached_disk(Path(disk_path)) if disk_path else None
            return _with_free_bytes(profile.model_copy(update={"disk": disk}), device)
    return None


def cache_profile(profile: MachineProfile, device: str = "auto") -> Path | None:
    """Cache what was measured for `device`; return its file, or None where the cache cannot be written."""
    if profile.disk is not None:
        disk = profile.disk.model_copy(update={"path": str(folder_of(Path(profile.disk.path)))})
        kept = _CachedDisk(stamp=_disk_stamp(Path(disk.path)), disk=disk)
        write_cached(_disk_name(Path(disk.path)), kept.model_dump_json(indent=2) + "\n")
    text = profile_text(profile.model_copy(update={"disk": None}))
    return write_cached(_name(_measured_on(profile, device)), text)


def folder_of(path: Path) -> Path:
    """Return `path` as it is cached: absolute, without "~", ".." and links.

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
    """Return the name of the device that was measured; the driver may not list a GPU that torch can use."""
    if device != "auto":
        return resolved_device(device)
    return "cpu" if profile.device.shared_memory else "cuda:0"


def _name(device: str) -> str:
    return f"machines/{device.replace(':', '-')}.toml"


def _disk_name(path: Path) -> str:
    return f"disks/{hashlib.blake2b(str(folder_of(path)).encode(), digest_size=8).hexdigest()}.json"


def _disk_stamp(path: Path) -> str:
    """Return what a measured disk depends on: the file system, and the processor, which computes checksums."""
    return " ".join((machine_fingerprint("cpu"), *mount_of(folder_of(path))))


def _cached_disk(path: Path) -> DiskProfile | None:
    text = read_cached(_disk_name(path))
    try:
        kept = None if text is None else _CachedDisk.model_validate_json(text)
    except ValidationError:
        return None
    return kept.disk if kept is not None and kept.stamp == _disk_stamp(path) else None


def _with_free_bytes(profile: MachineProfile, device: str) -> MachineProfile:
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
