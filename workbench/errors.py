"""Errors in words for the user, and the exit code that each kind ends with.

An error raised here is a finished message: it names the file, the key, the value and what would be right. The
command line prints it as it stands, without a traceback, and exits with its `exit_code`.
"""

from __future__ import annotations

EXIT_DONE = 0
EXIT_ERROR = 1
EXIT_CONFIGURATION = 2
EXIT_DOES_NOT_FIT = 3
EXIT_DIVERGED = 4
EXIT_WARNINGS = 5
EXIT_INTERRUPTED = 130
EXIT_READER_LEFT = 141
"""As a shell has it for SIGPIPE."""
EXIT_TERMINATED = 143


class WorkbenchError(Exception):
    """A failure that the user is told about in one message; the run ends with `exit_code`."""

    exit_code = EXIT_ERROR


class ConfigurationError(WorkbenchError):
    """The request itself is wrong: a preset, a field, a data source, a folder."""

    exit_code = EXIT_CONFIGURATION


class DoesNotFitError(WorkbenchError):
    """The configuration needs more of some tier than this machine has free."""

    exit_code = EXIT_DOES_NOT_FIT


class DivergedError(WorkbenchError):
    """Training left the finite numbers and was stopped; the last checkpoint stands."""

    exit_code = EXIT_DIVERGED


class ScreenError(Exception):
    """An exception that nobody expected ended the screen: a bug. Its text is "TYPE: MESSAGE" of that exception."""


def brief(error: BaseException) -> str:
    """Return the first lines of an error's message as one line of at most 300 characters; its type without one."""
    lines = [" ".join(line.split()) for line in str(error).splitlines() if line.strip()]
    text = "; ".join(lines[:3]) or type(error).__name__
    return text if len(text) <= 300 else text[:297] + "..."
