"""Something asked of another process that may be called off at any moment, from any thread.

The screen's process stays free of torch, and a thread cannot be ended: what takes seconds and may be unwanted by then
runs in a process. Invariant: when `lines` has ended, by whatever way, the process is gone.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import workbench


class CalledOffError(Exception):
    """The errand was called off."""


class Errand:
    """Runs modules of this package one after the other until it is called off."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._called_off = False
        self._process: subprocess.Popen[str] | None = None

    @property
    def called_off(self) -> bool:
        return self._called_off

    def call_off(self) -> None:
        """End it: `lines` raises CalledOffError, now and from now on."""
        with self._lock:
            self._called_off = True
            if self._process is not None:
                self._process.kill()

    def lines(self, arguments: tuple[str, ...], question: str = "") -> Iterator[str]:
        """What `python -m ARGUMENTS` prints, line by line, stderr among it; `question` is its stdin.

        Raises:
            CalledOffError: it was called off.
            OSError: no process could be started.
        """
        with self._lock:
            if self._called_off:
                raise CalledOffError
            self._process = process = subprocess.Popen(
                (sys.executable, "-m", *arguments),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                encoding="utf-8",
                errors="replace",
                env=_environment(),
            )
        try:
            assert process.stdin is not None and process.stdout is not None
            with contextlib.suppress(BrokenPipeError):
                process.stdin.write(question)
                process.stdin.close()
            yield from process.stdout
        finally:
            with self._lock:
                self._process = None
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    with contextlib.suppress(BrokenPipeError):
                        pipe.close()
        if self._called_off:
            raise CalledOffError


def _environment() -> dict[str, str]:
    """This process's own, with this very package ahead of whatever lies in the current folder."""
    paths = [str(Path(workbench.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        "PYTHONSAFEPATH": "1",
        "PYTHONUNBUFFERED": "1",
    }
