"""Importing a part of workbench stays cheap: in a fresh interpreter, it brings in nothing heavy.

The parts are found rather than listed, so that a new module is held to the rule from its first day.
"""

from __future__ import annotations

import pkgutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import workbench

LIGHT = (
    "cli",
    "cache",
    "config",
    "deepspeed",
    "doctor",
    "errors",
    "export",
    "launch",
    "layout",
    "monitor",
    "plan",
    "presets",
    "run",
    "runs",
    "timeline",
    "toml",
    "tui",
    "verbs",
)
"""First words of the names of the modules that must not bring in torch."""

SCREEN = "workbench.tui"


def modules_of(package: str, folder: str) -> Iterator[str]:
    """The modules of a package at any depth, found without importing any of them."""
    for module in pkgutil.iter_modules([folder]):
        name = f"{package}.{module.name}"
        yield name
        if module.ispkg:
            yield from modules_of(name, str(Path(folder) / module.name))


LIGHT_MODULES = [
    name
    for name in modules_of("workbench", workbench.__path__[0])
    if name.split(".")[1].split("_")[0] in LIGHT
]

VERB_MODULES = {
    "pydantic",
    "tomlkit",
    "torch",
    "transformers",
    "textual",
    "numpy",
    "psutil",
    "difflib",
    "tomllib",
}


def imported_by(module: str) -> set[str]:
    """The top-level modules that a fresh interpreter holds after importing `module`."""
    program = f"import sys, {module}; print(*{{name.partition('.')[0] for name in sys.modules}})"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


def test_the_parts_are_found() -> None:
    assert {f"workbench.{name}" for name in ("cli", "config", "errors", "presets")} <= set(LIGHT_MODULES)


@pytest.mark.parametrize("module", ["workbench", *LIGHT_MODULES])
def test_a_light_part_brings_in_neither_torch_nor_transformers(module: str) -> None:
    heavy = {"torch", "transformers"} if module.startswith(SCREEN) else {"torch", "transformers", "textual"}
    assert not imported_by(module) & heavy


def test_the_command_line_brings_in_nothing_that_only_some_verbs_need() -> None:
    assert not imported_by("workbench.cli") & VERB_MODULES
