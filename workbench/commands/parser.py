"""The parser of the whole command line, made from the table of commands."""

from __future__ import annotations

import argparse
from typing import Any, NoReturn

from workbench import __version__
from workbench.commands.table import COMMANDS, GROUPS
from workbench.errors import ConfigurationError


class _Parser(argparse.ArgumentParser):
    """A parser whose errors are one line, as every other error is."""

    def error(self, message: str) -> NoReturn:
        command = self.prog.removeprefix("workbench").strip()
        raise ConfigurationError(f"{command}: {message}; `{self.prog} --help` explains it")


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the whole command line, made from `COMMANDS`; it refuses with a ConfigurationError."""
    parser = _Parser(
        prog="workbench",
        description="Train language models larger than the GPU on one machine.",
        epilog="`workbench` alone shows the screen (--ascii: without blocks and braille); `workbench COMMAND "
        "--help` explains a command.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"workbench {__version__}")
    top = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    groups: dict[str, Any] = {}
    for command in COMMANDS:
        *group, word = command.name.split()
        for name in group:
            if name not in groups:
                outer = _add_parser(top, name, GROUPS[name])
                groups[name] = outer.add_subparsers(title="commands", metavar="COMMAND", required=True)
        added = _add_parser(groups[group[0]] if group else top, word, command.help)
        for argument in command.arguments:
            added.add_argument(*argument.names, **argument.options)
        added.set_defaults(command=command)
    return parser


def _add_parser(parsers: Any, name: str, help: str) -> argparse.ArgumentParser:
    description = help[0].upper() + help[1:] + "."
    added: argparse.ArgumentParser = parsers.add_parser(
        name, help=help, description=description, allow_abbrev=False
    )
    return added
