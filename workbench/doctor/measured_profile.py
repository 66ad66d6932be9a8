"""What `workbench probe` measured here, of the machine and of disks: when, and whether the machine was idle.

The kept files are read as plain TOML and JSON: what checks them needs packages that may be missing. Invariant: nothing
is measured here, and a file of another machine, or that cannot be read, says nothing.
"""

from __future__ import annotations

import contextlib
import json
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from workbench.doctor.findings import Finding, ok, one_line, warning
from workbench.doctor.surroundings import Surroundings
from workbench.profiles.machine.fingerprint import machine_fingerprint
from workbench.profiles.machine.mounts import mount_of

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # type: ignore[import-not-found, unused-ignore]


def check_profile(around: Surroundings) -> Iterator[Finding]:
    """The speeds that plans on this machine are made with, by device and by disk."""
    devices, disks = list(_devices(around)), list(_disks(around))
    if not devices:
        yield ok("profile", "not measured yet: `workbench probe` does it in under a minute")
    for device, profile in devices:
        measured = f"{device}, measured {profile.get('measured_at', '')}"
        yield _judged(measured, profile, f"--device {device}")
    for folder, profile in disks:
        yield _judged(f"disk {folder}, measured", profile, f"--disk {shlex.quote(folder)}")


def _judged(measured: str, profile: dict[str, Any], what: str) -> Finding:
    """`what`: the options with which the probe measures it anew."""
    busy = one_line(str(profile.get("busy", "")))
    if not busy:
        return ok("profile", measured)
    return warning(
        "profile",
        f"{measured} on a busy machine ({busy}): plans are slower than runs will be",
        f"`workbench probe {what}`, while the machine is idle",
    )


def _devices(around: Surroundings) -> Iterator[tuple[str, dict[str, Any]]]:
    for path in sorted((around.cache / "machines").glob("*.toml")):
        device = path.stem.replace("-", ":")
        with contextlib.suppress(OSError, ValueError, RecursionError):
            profile = tomllib.loads(path.read_text(encoding="utf-8"))
            if profile.get("fingerprint") == machine_fingerprint(device):
                yield device, profile


def _disks(around: Surroundings) -> Iterator[tuple[str, dict[str, Any]]]:
    """By folder, those whose file system is the one that was measured: see `probe.measured`."""
    found = {}
    for path in (around.cache / "disks").glob("*.json"):
        # ImportError: without psutil, as the packages' line says.
        with contextlib.suppress(OSError, ValueError, RecursionError, TypeError, KeyError, ImportError):
            kept = json.loads(path.read_text(encoding="utf-8"))
            disk, folder = kept["disk"], str(kept["disk"]["path"])
            if kept["stamp"] == " ".join((machine_fingerprint("cpu"), *mount_of(Path(folder)))):
                found[folder] = dict(disk)
    yield from sorted(found.items())
