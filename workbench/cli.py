"""The command line, and the one place that turns errors into messages and exit codes.

The commands are rows in `commands/table.py`; parser and help are made from them. Nothing heavy is imported before a
command needs it: `workbench --help` answers at once. stdout is data, stderr is diagnostics.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import importlib
import io
import os
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from workbench import __version__
from workbench.commands.table import COMMANDS, GROUPS, Command
from workbench.commands.usage_errors import unknown_argument, unknown_command
from workbench.errors import (
    EXIT_DONE,
    EXIT_ERROR,
    EXIT_INTERRUPTED,
    ConfigurationError,
    ScreenError,
    WorkbenchError,
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit code; no exception leaves."""
    words = list(sys.argv[1:] if argv is None else argv)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a terminal without UTF-8 is no reason to fail
    code = _guarded(words)
    if sys.stdout is None:  # closed by whoever started this
        return code
    try:
        sys.stdout.flush()
    except OSError as error:
        if not isinstance(error, BrokenPipeError) and code == EXIT_DONE:
            _report(f"workbench: the output could not be written: {error.strerror}")
        # What is left in the buffer goes nowhere, or Python would try again at exit and complain.
        with contextlib.suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return code or EXIT_ERROR
    return code


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


def _guarded(words: list[str]) -> int:
    """Run `words`; any error becomes a message on stderr and an exit code."""
    try:
        return _dispatch(words)
    except WorkbenchError as error:
        _report(f"workbench: {error}")
        return error.exit_code
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:  # the reader of stdout has seen enough
        return EXIT_ERROR
    except Exception as error:
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            _report(f"workbench: {error.strerror}: {error.filename or 'the output'}")
        else:
            _report(_bug_report(error))
        return EXIT_ERROR


def _dispatch(words: list[str]) -> int:
    if words in ([], ["--ascii"]):  # before a parser is built: the first picture waits for it
        from workbench.commands.screen import is_terminal, screen

        if is_terminal():
            return screen(plain=bool(words))
        build_parser().print_help()
        print("\nIn a terminal, `workbench` alone shows the screen. Without one: workbench run quickstart")
        return EXIT_DONE
    parser = build_parser()
    try:
        wrong = unknown_command(words)
        if wrong is not None:
            raise ConfigurationError(wrong)
        arguments, rest = parser.parse_known_args(words)
        options = vars(arguments)
        command: Command = options.pop("command")
        if rest:
            raise ConfigurationError(unknown_argument(command, rest))
        module, _, name = command.function.partition(":")
        code: int = getattr(importlib.import_module(module), name)(**options, **command.constants)
        return code
    except SystemExit as stop:  # argparse has printed its help or the version
        return stop.code if isinstance(stop.code, int) else EXIT_DONE


def _add_parser(parsers: Any, name: str, help: str) -> argparse.ArgumentParser:
    description = help[0].upper() + help[1:] + "."
    added: argparse.ArgumentParser = parsers.add_parser(
        name, help=help, description=description, allow_abbrev=False
    )
    return added


def _report(message: str) -> None:
    with contextlib.suppress(OSError, ValueError):  # nobody is left to be told
        print(message, file=sys.stderr, flush=True)


def _bug_report(error: Exception) -> str:
    """Return one line about an unexpected exception; its traceback goes to a file."""
    import tempfile
    import traceback

    try:
        with tempfile.NamedTemporaryFile(
            "w", prefix="workbench-traceback-", suffix=".txt", delete=False, errors="backslashreplace"
        ) as file:
            file.writelines(traceback.format_exception(error))
        place = f"the traceback is in {file.name}"
    except OSError as failure:
        place = f"the traceback could not be written: {failure.strerror}"
    what = str(error) if isinstance(error, ScreenError) else f"{type(error).__name__}: {error}"
    return f"workbench: this is a bug in workbench: {' '.join(what.splitlines())} ({place})"
