"""Importing a light part of workbench brings in nothing heavy.

The modules are found rather than listed, so that a new one is held to the rule from its first day. All light modules
are imported into one fresh interpreter: what none of them brings in together, none brings in alone.
"""

from __future__ import annotations

import pkgutil
import subprocess
import sys
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

import pytest

import workbench

LIGHT = {
    "cli",
    "commands",
    "config",
    "doctor",
    "errors",
    "export.export",
    "formatting",
    "imports",
    "layout",
    "monitor",
    "plan",
    "presets",
    "runs",
    "sizes",
    "system",
    "timeline",
    "tui",
}
"""The modules and packages below `workbench` that must not import torch."""

ONLY_SOME_COMMANDS_NEED = {
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

_IMPORT_EACH = """
import importlib, sys
heavy, *modules = sys.argv[1:]
for module in modules:
    importlib.import_module(module)
    found = {name.partition(".")[0] for name in sys.modules} & set(heavy.split(","))
    if found:
        sys.exit(f"{module} imports {', '.join(sorted(found))}")
"""


def modules_of(package: str, folder: str) -> Iterator[str]:
    """Yield the names of all modules in a package, at any depth, without importing them."""
    for module in pkgutil.iter_modules([folder]):
        name = f"{package}.{module.name}"
        yield name
        if module.ispkg:
            yield from modules_of(name, str(Path(folder) / module.name))


LIGHT_MODULES = [
    name
    for name in modules_of("workbench", workbench.__path__[0])
    if any(f"{name}.".startswith(f"workbench.{light}.") for light in LIGHT)
]


def import_each(modules: Sequence[str], heavy: Collection[str]) -> str:
    """Import `modules` one after the other into a fresh interpreter; return the first that brings in a heavy one."""
    done = subprocess.run(
        [sys.executable, "-c", _IMPORT_EACH, ",".join(heavy), *modules],
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stderr


def test_the_light_modules_are_found() -> None:
    assert {f"workbench.{name}" for name in ("cli", "config.schema", "errors", "tui.app")} <= set(
        LIGHT_MODULES
    )


@pytest.mark.parametrize("screen", [False, True], ids=["commands", "screen"])
def test_light_modules_import_neither_torch_nor_transformers(screen: bool) -> None:
    modules = [name for name in LIGHT_MODULES if name.startswith("workbench.tui") is screen]
    heavy = {"torch", "transformers"} if screen else {"torch", "transformers", "textual"}
    assert import_each(modules, heavy) == ""


def test_the_command_line_imports_nothing_that_only_some_commands_need() -> None:
    assert import_each(["workbench.cli"], ONLY_SOME_COMMANDS_NEED) == ""


def test_a_module_that_imports_something_heavy_is_named() -> None:
    assert (
        import_each(["workbench.errors", "workbench.tui.app"], {"textual"})
        == "workbench.tui.app imports textual\n"
    )
