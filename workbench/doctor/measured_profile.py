"""What `workbench probe` measured here: when, and whether the machine was idle.

The kept files are read as plain TOML: what checks a profile needs packages that may be missing. Invariant: nothing is
measured here, and a file of another machine, or that cannot be read, says nothing.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any

from workbench.doctor.findings import Finding, ok, one_line, warning
from workbench.doctor.surroundings import Surroundings
from workbench.probe.fingerprint import machine_fingerprint

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # type: ignore[import-not-found, unused-ignore]


def check_profile(around: Surroundings) -> Iterator[Finding]:
    """The speeds that plans on this machine are made with, by device."""
    kept = list(_kept(around))
    if not kept:
        yield ok("profile", "not measured yet: `workbench probe` does it in under a minute")
    for device, profile in kept:
        measured = f"{device}, measured {profile.get('measured_at', '')}"
        busy = one_line(str(profile.get("busy", "")))
        if busy:
            yield warning(
                "profile",
                f"{measured} on a busy machine ({busy}): plans are slower than runs will be",
                f"`workbench probe --device {device}`, while the machine is idle",
            )
        else:
            yield ok("profile", measured)


def _kept(around: Surroundings) -> Iterator[tuple[str, dict[str, Any]]]:
    for path in sorted((around.cache / "machines").glob("*.toml")):
        device = path.stem.replace("-", ":")
        with contextlib.suppress(OSError, ValueError, RecursionError):
            profile = tomllib.loads(path.read_text(encoding="utf-8"))
            if profile.get("fingerprint") == machine_fingerprint(device):
                yield device, profile
