"""What the status of a run says before its training begins, where another process has announced the run already.

Whoever started this process watches the status and nothing else: it must show that the preparation lives and how far
it is, and must not say "starting" for ever when the preparation fails.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from dataclasses import replace
from types import TracebackType

from workbench.errors import EXIT_ERROR, WorkbenchError
from workbench.runs import (
    RunDirectory,
    Status,
    append_event,
    done_before,
    read_status,
    still_done,
    write_status,
)
from workbench.training.signals import StopBeforeTraining

HEARTBEAT_S = 5.0


class Starting:
    """As a context manager around the preparation: heartbeats, progress, and the end where it ends there.

    `run`: the one that was announced; None where nobody watches, so that nothing is written.
    """

    def __init__(self, run: RunDirectory | None, tell: Callable[[str], None]) -> None:
        self._run = run
        self._tell = tell
        self._status = read_status(run) if run else Status()
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="heartbeat", daemon=True)

    def tell(self, message: str) -> None:
        """Tell the user, and take it for progress unless it is a warning."""
        self._tell(message)
        if not message.startswith("warning:"):
            self.progress(message)

    def progress(self, message: str) -> None:
        """What is being done, in words."""
        with self._lock:
            self._status = replace(self._status, progress=message)
        self._write()

    def __enter__(self) -> Starting:
        if self._run:
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._run:
            return
        self._over.set()
        self._thread.join()
        if error is None:
            return
        phase, code, message = _end(error)
        done = done_before(self._run)
        if done is not None:
            with contextlib.suppress(WorkbenchError):
                self._status = still_done(self._run, done, message)
            self._write(durable=True)
            return
        self._status = replace(
            self._status, phase=phase, exit_code=code, message=message, progress="", eta_s=None
        )
        self._write(durable=True)
        with contextlib.suppress(WorkbenchError):
            step = self._status.step
            append_event(self._run, "finished", phase=phase, exit_code=code, message=message, step=step)

    def _beat(self) -> None:
        while not self._over.wait(HEARTBEAT_S):
            self._write()

    def _write(self, *, durable: bool = False) -> None:
        # A disk that is full is met by the training itself, which can say so.
        with self._lock, contextlib.suppress(WorkbenchError):
            if self._run:
                write_status(self._run, self._status, durable=durable)


def _end(error: BaseException) -> tuple[str, int, str]:
    """Phase, exit code and sentence for what ended the preparation."""
    if isinstance(error, StopBeforeTraining):
        return "stopped", error.exit_code, str(error)
    if isinstance(error, WorkbenchError):
        return "failed", error.exit_code, str(error)
    return "failed", EXIT_ERROR, f"{type(error).__name__}: {error}"
