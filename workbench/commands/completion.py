"""`workbench completion`: a script for the shell, which then completes without starting Python."""

from __future__ import annotations

import argparse
import shlex
from typing import Any

from workbench.commands.parser import build_parser
from workbench.errors import EXIT_DONE, ConfigurationError
from workbench.presets import list_presets

_SHELLS = ("bash", "zsh", "tcsh")
_RUNS = '$(ls -t "${WORKBENCH_RUNS:-runs}" 2>/dev/null)'
_BASH = """
_workbench_presets() { compgen -W %(presets)s -- "$1"; compgen -f -- "$1"; }
_workbench_runs() { compgen -W "%(runs)s" -- "$1"; }
"""
_ZSH = """
_workbench_presets() { compadd -- ${=:-%(presets)s}; _files }
_workbench_runs() { compadd -- %(runs)s }
"""
_COMPLETES = {
    "PRESET": {"bash": "_workbench_presets", "zsh": "_workbench_presets", "tcsh": "f"},
    "RUN": {"bash": "_workbench_runs", "zsh": "_workbench_runs", "tcsh": "d"},
    "FILE": {"bash": "_shtab_compgen_files", "zsh": "_files", "tcsh": "f"},
    "DIR": {"bash": "_shtab_compgen_dirs", "zsh": "_files -/", "tcsh": "d"},
}
"""The shells' functions by the metavar of an argument."""


def completion(*, shell: str) -> int:
    """Print the script for `shell`. Raises ConfigurationError for another shell, or without shtab."""
    if shell not in _SHELLS:
        raise ConfigurationError(f"completion {shell}: must be one of {', '.join(_SHELLS)}")
    try:
        import shtab
    except ImportError:
        raise ConfigurationError('completion needs shtab: pip install "workbench[completion]"') from None
    parser = build_parser()
    _mark(parser)
    presets = shlex.quote(" ".join(preset.name for preset in list_presets()))
    names = {"presets": presets, "runs": _RUNS}
    preamble: Any = {"bash": _BASH % names, "zsh": _ZSH % names}
    print(shtab.complete(parser, shell, preamble=preamble))
    return EXIT_DONE


def _mark(parser: argparse.ArgumentParser) -> None:
    """Give each argument what completes it, where shtab looks for it."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for inner in action.choices.values():
                _mark(inner)
        elif isinstance(action.metavar, str) and action.metavar in _COMPLETES:
            action.complete = _COMPLETES[action.metavar]  # type: ignore[attr-defined]
