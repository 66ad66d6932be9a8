"""The helper process of trial.py, from outside: started at once, given a limit, and never waited for without one."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from types import TracebackType
from typing import Any, BinaryIO

from workbench.doctor.findings import one_line
from workbench.doctor.surroundings import Outcome
from workbench.doctor.trial import source
from workbench.system.child_process import package_environment

LIMIT_S = 90.0
"""From the start; torch on a slow disk and a server of eight GPUs together take most of a minute."""
KILLED_S = 2.0
"""A process that hangs in a driver cannot be killed: it is given so long to go, and then left."""


class TrialProcess:
    """The process; outcomes may be asked for by several threads. It ends with the `with` block.

    `program`: Python that is given a descriptor for its answers and a number of seconds. Where it cannot be started,
    every outcome says so.
    """

    def __init__(self, program: str | None = None, limit_s: float = LIMIT_S) -> None:
        self._limit_s = limit_s
        self._ends = time.monotonic() + limit_s
        self._lock = threading.Lock()
        self._outcomes: dict[str, Outcome] | None = None
        self._ending = ""
        self._process: subprocess.Popen[bytes] | None = None
        self._files = contextlib.ExitStack()
        try:
            self._answers = self._in_memory("answers")
            self._errors = self._in_memory("errors")
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    "-c",
                    program or source(),
                    str(self._answers.fileno()),
                    str(int(limit_s) + 5),
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=self._errors,
                pass_fds=[self._answers.fileno()],
                env=package_environment(),
            )
        except OSError as error:
            self._outcomes = {}
            self._ending = f"could not be started ({error.strerror or error})"

    def __enter__(self) -> TrialProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()
        self._files.close()

    def use_gpu(self) -> None:
        """Let it go on to CUDA: nobody counts the GPU's processes any more."""
        if self._process is not None and self._process.stdin is not None:
            with contextlib.suppress(OSError, ValueError):
                self._process.stdin.close()

    def outcome(self, stage: str) -> Outcome:
        """What became of `stage`; waits until the process ends or its time is up."""
        with self._lock:
            if self._outcomes is None:
                self._ending = self._wait()
                self._outcomes = self._read()
        return self._outcomes.get(stage, Outcome(problem=self._died(), reached=False))

    def _in_memory(self, name: str) -> BinaryIO:
        """A file that is never full, and needs no folder that can be written."""
        return self._files.enter_context(
            os.fdopen(os.memfd_create(f"workbench-doctor-{name}"), "w+b", buffering=0)
        )

    def _wait(self) -> str:
        """How it ended, in words that follow a subject."""
        assert self._process is not None
        try:
            code = self._process.wait(max(0.0, self._ends - time.monotonic()))
        except subprocess.TimeoutExpired:
            self._end()
            return f"gave no answer within {self._limit_s:.0f} s"
        if code < 0:
            return f"was ended by {signal.Signals(-code).name}{self._last_words()}"
        return f"ended with code {code}{self._last_words()}"

    def _end(self) -> None:
        self.use_gpu()
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(KILLED_S)

    def _read(self) -> dict[str, Outcome]:
        outcomes = {}
        for line in _text(self._answers).splitlines():
            try:
                told: dict[str, Any] = json.loads(line)
            except ValueError:  # cut off in the middle
                continue
            if "values" in told:
                outcomes[told["stage"]] = Outcome(values=told["values"])
            else:
                outcomes[told["stage"]] = Outcome(problem=one_line(told.get("problem", self._died())))
        return outcomes

    def _died(self) -> str:
        return f"the helper process {self._ending}"

    def _last_words(self) -> str:
        lines = [line for line in _text(self._errors).splitlines() if line.strip()]
        return f" ({one_line(lines[-1], 120)})" if lines else ""


def _text(file: BinaryIO) -> str:
    return os.pread(file.fileno(), 1 << 20, 0).decode("utf-8", errors="replace")
