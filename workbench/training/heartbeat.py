"""The status of a run while its process works: written at every change, and every few seconds by a thread.

A reader can so tell a slow run from a dead one. No torch: a process that was announced as a run's trainer shows its
progress before it imports that. Invariant: a run that had done all its steps stays finished until it trains again.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from dataclasses import replace

from workbench.errors import EXIT_ERROR, WorkbenchError
from workbench.runs import (
    RunDirectory,
    Status,
    append_event,
    read_events,
    read_status,
    write_status,
)
from workbench.training.signals import StopBeforeTraining

HEARTBEAT_S = 5.0


class Heartbeat:
    """Writes the status of `run`; as a context manager also from a thread. With `timed` it counts `elapsed_s` on."""

    def __init__(self, run: RunDirectory, status: Status, *, timed: bool = True) -> None:
        self.run = run
        self.stays_finished = _is_done(run)
        """True where all steps were done before, until training begins anew."""
        self.written = 0.0
        """When the status was last written, on the monotonic clock."""
        self._status = status
        self._started = time.monotonic() - status.elapsed_s if timed else None
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._renew, name="heartbeat", daemon=True)

    @property
    def status(self) -> Status:
        return self._status

    def __enter__(self) -> Heartbeat:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def update(self, *, durable: bool = False, write: bool = True, **changes: object) -> None:
        """Change the status and write it, unless `write` is False. Raises WorkbenchError where the disk refuses."""
        with self._lock:
            self._status = replace(self._status, **changes)  # type: ignore[arg-type]
            if write:
                self.written = time.monotonic()
                if self._started is not None:
                    self._status = replace(self._status, elapsed_s=self.written - self._started)
                write_status(self.run, self._status, durable=durable)

    def end(self, phase: str, exit_code: int, message: str) -> None:
        """Record how the run ended. Raises WorkbenchError where the disk refuses."""
        step = self._status.step
        if self.stays_finished:
            append_event(
                self.run, "warning", message=f"the run could not go on, and stays finished: {message}"
            )
            phase, exit_code, message = "finished", 0, f"{step} steps; it could not go on: {message}"
            self.update(write=False, total_steps=step)
        self.update(durable=True, phase=phase, exit_code=exit_code, message=message, progress="", eta_s=None)
        append_event(self.run, "finished", phase=phase, exit_code=exit_code, message=message, step=step)

    def _renew(self) -> None:
        while not self._ended.wait(HEARTBEAT_S):
            # A full disk is met by the next real write, on the thread that can stop the run.
            with contextlib.suppress(WorkbenchError):
                self.update()


def _is_done(run: RunDirectory) -> bool:
    """Return True where the last session of `run` did all its steps. By its events: each start rewrites the status."""
    last = next((e for e in reversed(read_events(run).events) if e.kind in ("finished", "resume")), None)
    return last is not None and last.fields.get("phase") == "finished"


class StartupStatus:
    """The status of a run that was announced before its process came up, while the process prepares it.

    Whoever started the process watches the status and nothing else: it shows how far the preparation is, or how it
    failed. As a context manager around the preparation. `run` is None where nobody watches; nothing is written then.
    """

    def __init__(self, run: RunDirectory | None, report: Callable[[str], None]) -> None:
        self._report = report
        self._heartbeat = None if run is None else Heartbeat(run, read_status(run), timed=False)

    def report(self, message: str) -> None:
        """Report a message to the user, and show it as progress unless it is a warning."""
        self._report(message)
        if not message.startswith("warning:"):
            self.progress(message)

    def progress(self, message: str) -> None:
        """Show what is being done, in words."""
        if self._heartbeat:
            # A full disk is met by the training itself, which can say so.
            with contextlib.suppress(WorkbenchError):
                self._heartbeat.update(progress=message)

    def __enter__(self) -> StartupStatus:
        if self._heartbeat:
            self._heartbeat.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if not self._heartbeat:
            return
        self._heartbeat.__exit__()
        if error is None:
            return
        phase = "stopped" if isinstance(error, StopBeforeTraining) else "failed"
        code, message = EXIT_ERROR, f"{type(error).__name__}: {error}"
        if isinstance(error, (StopBeforeTraining, WorkbenchError)):
            code, message = error.exit_code, str(error)
        with contextlib.suppress(WorkbenchError):
            self._heartbeat.end(phase, code, message)
