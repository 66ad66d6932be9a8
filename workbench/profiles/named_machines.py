"""Machine profiles by name: a file, or one of the machines that Workbench knows.

The known ones are described in `machines.toml`: planned figures, not measured ones.
"""

from __future__ import annotations

from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from workbench.errors import ConfigurationError
from workbench.profiles.described import described_machine
from workbench.profiles.description import Description, parse_memory, parse_slot
from workbench.profiles.machine_profile import MachineProfile, parse_profile
from workbench.system.foreign import parse_toml


def load_profile(path: Path) -> MachineProfile:
    """Return the profile in the file `path`, or that of the known machine of that name.

    Raises:
        ConfigurationError: there is none, or it is wrong.
    """
    if not path.is_file() and len(path.parts) == 1 and str(path) in known_machines():
        return _known_profile(str(path))
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, ValueError) as error:
        names = ", ".join(known_machines())
        reason = getattr(error, "strerror", None) or str(error)
        raise ConfigurationError(
            f"machine {path}: cannot be read: {reason}; expected a file, or one of {names}"
        ) from error
    return parse_profile(text, str(path))


@cache
def known_machines() -> dict[str, Description]:
    """Return the machines that come with Workbench, by name."""
    text = resources.files("workbench.profiles").joinpath("machines.toml").read_text(encoding="utf-8")
    return {name: _description(table) for name, table in parse_toml(text).items()}


@cache
def _known_profile(name: str) -> MachineProfile:
    return described_machine(known_machines()[name])


def _description(table: dict[str, Any]) -> Description:
    sizes = {key: parse_memory(table[key]) for key in ("memory", "disk")}
    return Description(
        gpu=table["gpu"],
        memory_bytes=sizes["memory"],
        channels=table["channels"],
        ddr=table["ddr"],
        pcie=parse_slot(table["pcie"]),
        cores=table["cores"],
        disk_bytes=sizes["disk"],
        name=table["name"],
    )
