"""The command line, and the one place that turns errors into messages and exit codes.

The commands are rows in `commands/table.py`; parser and help are made from them. Nothing heavy is imported before a
command needs it: `workbench --help` answers at once. stdout is data, stderr is diagnostics.
"""

from __future__ import annotations

import contextlib
import errno
import importlib
import io
import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from workbench.commands.parser import build_parser
from workbench.commands.table import COMMANDS, Command
from workbench.errors import (
    EXIT_DONE,
    EXIT_ERROR,
    EXIT_INTERRUPTED,
    EXIT_READER_LEFT,
    ConfigurationError,
    ScreenError,
    WorkbenchError,
)
from workbench.system.processor import spin_briefly
from workbench.system.terminal import error_text, escaped_output


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit code; no exception leaves."""
    words = list(sys.argv[1:] if argv is None else argv)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a terminal without UTF-8 is no reason to fail
    with escaped_output():
        code = _guarded(words)
    if sys.stdout is None:  # closed by whoever started this
        return code
    try:
        sys.stdout.flush()
    except OSError as error:
        if not isinstance(error, BrokenPipeError) and code == EXIT_DONE:
            _report(f"workbench: the output could not be written: {error.strerror}")
        # The rest of the buffer is dropped, or Python would try again at exit and complain.
        with contextlib.suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return code or (EXIT_READER_LEFT if isinstance(error, BrokenPipeError) else EXIT_ERROR)
    return code


_ALONE = ("-h", "--help", "--version")
"""Options that may stand before a command; `--ascii` may stand alone."""


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
        return EXIT_READER_LEFT
    except Exception as error:
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            _report(f"workbench: {error.strerror}: {error.filename or 'the output'}")
        else:
            _report(_bug_report(error))
        return EXIT_ERROR


def _dispatch(words: list[str]) -> int:
    _check_current_folder()
    spin_briefly()  # before anything imports torch, here or in a process that this one starts
    if words in ([], ["--ascii"]):  # before a parser is built: the first picture waits for it
        from workbench.commands.screen import is_terminal, screen

        if is_terminal():
            return screen(plain=bool(words))
        build_parser().print_help()
        print("\nIn a terminal, `workbench` alone shows the screen. Without one: workbench run quickstart")
        return EXIT_DONE
    parser = build_parser()
    try:
        _check_command(words)
        arguments, rest = parser.parse_known_args(words)
        options = vars(arguments)
        command: Command = options.pop("command")
        if rest:
            raise ConfigurationError(_unknown_argument(command, rest))
        module, _, name = command.function.partition(":")
        code: int = getattr(importlib.import_module(module), name)(**options, **command.constants)
        return code
    except SystemExit as stop:  # argparse has printed its help or the version
        return stop.code if isinstance(stop.code, int) else EXIT_DONE


def _check_current_folder() -> None:
    try:
        Path.cwd()
    except OSError as error:
        raise ConfigurationError("the current folder no longer exists; change to one that does") from error


def _report(message: str) -> None:
    with contextlib.suppress(OSError, ValueError):  # nobody is left to be told
        print(error_text(message), file=sys.stderr, flush=True)


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


# Wrong command lines: argparse names neither the mistake nor the nearest right thing


def _check_command(words: Sequence[str]) -> None:
    """Raise ConfigurationError where the first word (or two) is no command."""
    first, second = words[0], words[1] if len(words) > 1 else ""
    if first in _ALONE:
        return
    names = list(dict.fromkeys(command.name.split()[0] for command in COMMANDS))
    inner = [command.name for command in COMMANDS if command.name.startswith(f"{first} ")]
    if first.startswith("-"):
        option = first.split("=")[0]
        if any(option in command.options() for command in COMMANDS):
            raise ConfigurationError(f"{option} belongs behind a command: workbench COMMAND {option} ...")
        near = _nearest(option, (*_ALONE, "--ascii"))
        hint = near or "`workbench --help` lists the commands, which come first"
        raise ConfigurationError(f'there is no option "{option}"; {hint}')
    if first.endswith(".toml"):
        raise ConfigurationError(
            f'there is no command "{first}"; to train this preset: workbench run {first}'
        )
    if first not in names:
        # A slip of the finger must not end in a deletion.
        hint = (
            _nearest(first, [name for name in names if name != "rm"])
            or f"the commands are {', '.join(names)}"
        )
        raise ConfigurationError(f'there is no command "{first}"; {hint}')
    if inner and second not in _ALONE and f"{first} {second}" not in inner:
        name = f"{first} {second}".strip()
        hint = (second and _nearest(name, inner)) or f"the commands are {', '.join(inner)}"
        raise ConfigurationError(f'there is no command "{name}"; {hint}')


def _unknown_argument(command: Command, words: Sequence[str]) -> str:
    """Return the message for the words of a line that `command` does not take."""
    word = next((word for word in words if word.startswith("-")), words[0])
    more = f"`workbench {command.name} --help` lists its options"
    if not word.startswith("-") or word == "-":
        return f"{command.name}: unexpected argument {word!r}; {more}"
    option, options = word.split("=")[0], command.options()
    hint = _nearest(option, options) or more
    if "--set" in options:
        from workbench.config import fields  # imports pydantic: only for a line that is wrong

        wanted = option.strip("-").replace("-", "_")
        named = [field.name for field in fields() if wanted in (field.name, field.key)]
        if named:
            hint = "a field is set by " + " or ".join(f"--set {name}=VALUE" for name in named)
    return f'{command.name}: there is no option "{option}"; {hint}'


def _nearest(word: str, names: Iterable[str]) -> str:
    """Return a question for the name that `word` begins or nearly is; empty where there is none."""
    import difflib

    names = list(names)
    longer = [name for name in names if len(word) > 2 and name.startswith(word)]
    near = next(iter(longer or difflib.get_close_matches(word, names, n=1)), None)
    return f'did you mean "{near}"?' if near else ""
