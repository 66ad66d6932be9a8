"""`train.log`: all that a run prints, kept beside the terminal.

The terminal may go away at any moment; the run must not notice. The log holds whole lines, one `write` each,
and of a line that was redrawn with carriage returns only its last state.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
import threading
from pathlib import Path
from typing import TextIO

from workbench.runs.records import cannot_write
from workbench.system.terminal import escaped


class LogTee:
    """As a context manager: `sys.stdout` and `sys.stderr` go to the terminal and to the log, or to the log alone.

    A stream that already is the log (a detached run) goes there once. A terminal that is gone is dropped
    silently. Raises WorkbenchError where the log cannot be opened.
    """

    def __init__(self, path: Path, *, terminal: bool = True) -> None:
        self._path = path
        self._terminal = terminal
        self._before: tuple[TextIO, TextIO] | None = None

    def __enter__(self) -> LogTee:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        try:
            self._descriptor = os.open(self._path, flags, 0o666)
        except OSError as error:
            raise cannot_write(self._path, error) from error
        self._before = (sys.stdout, sys.stderr)
        lock = threading.RLock()
        sys.stdout = _TeeStream(sys.stdout if self._terminal else None, self._descriptor, lock)
        sys.stderr = _TeeStream(sys.stderr if self._terminal else None, self._descriptor, lock)
        return self

    def __exit__(self, *_: object) -> None:
        assert self._before is not None
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, _TeeStream):
                stream.finish()
        sys.stdout, sys.stderr = self._before
        self._before = None
        os.close(self._descriptor)


class _TeeStream(io.TextIOBase):
    """One stream of the two. Never raises for what the terminal or the disk do."""

    def __init__(self, terminal: TextIO | None, descriptor: int, lock: threading.RLock) -> None:
        self._terminal = None if terminal is None or _same_file(terminal, descriptor) else terminal
        self._log: int | None = descriptor
        self._lock = lock
        self._line = ""

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return "utf-8"

    @property
    def errors(self) -> str:  # type: ignore[override]
        return "replace"

    def writable(self) -> bool:
        return True

    def isatty(self) -> bool:
        try:
            return self._terminal is not None and self._terminal.isatty()
        except (OSError, ValueError):
            return False

    def fileno(self) -> int:
        if self._terminal is None:
            raise io.UnsupportedOperation("fileno")
        return self._terminal.fileno()

    def write(self, text: str, /) -> int:
        with self._lock:
            self._show(text)
            *lines, self._line = (self._line + text).split("\n")
            for line in lines:
                self._keep(line)
            self._line = _last_state(self._line)
        return len(text)

    def flush(self) -> None:
        with self._lock:
            self._show("")

    def finish(self) -> None:
        """Keep an unfinished last line, and take no more for the log."""
        with self._lock:
            if self._line:
                self._keep(self._line)
            self._line = ""
            self._show("")
            self._log = None

    def _keep(self, line: str) -> None:
        if self._log is not None:
            with contextlib.suppress(OSError):
                os.write(self._log, (escaped(_last_state(line)) + "\n").encode(errors="replace"))

    def _show(self, text: str) -> None:
        if self._terminal is None:
            return
        try:
            self._terminal.write(text)
            if not text or "\n" in text or "\r" in text:
                self._terminal.flush()
        except UnicodeEncodeError:
            encoding = self._terminal.encoding or "ascii"
            self._show(text.encode(encoding, "replace").decode(encoding))
        except (OSError, ValueError):
            _silence(self._terminal)
            self._terminal = None


def _last_state(line: str) -> str:
    """Return the part of a line with carriage returns that a terminal shows in the end."""
    return line.rstrip("\r").rpartition("\r")[2]


def _same_file(stream: TextIO, descriptor: int) -> bool:
    try:
        return os.path.samestat(os.fstat(stream.fileno()), os.fstat(descriptor))
    except (OSError, ValueError):
        return False


def _silence(stream: TextIO) -> None:
    """Point a terminal that is gone to nowhere; else what its buffer holds fails the exit of the process."""
    with contextlib.suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        try:
            os.dup2(nowhere, stream.fileno())
        finally:
            os.close(nowhere)
