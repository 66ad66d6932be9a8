"""Signals and control lines become requests that the loop looks at between steps.

SIGINT and SIGTERM: finish the step, save, exit 130 or 143; a second one exits at once. SIGUSR1: save now. SIGHUP is
ignored, so that a closed terminal stops nothing. Before the first step there is nothing to finish: a stop is raised
where it strikes.
"""

from __future__ import annotations

import os
import signal
from types import FrameType, TracebackType

from workbench.errors import EXIT_INTERRUPTED, EXIT_TERMINATED

EXIT_CODES = {signal.SIGINT: EXIT_INTERRUPTED, signal.SIGTERM: EXIT_TERMINATED}


class StopBeforeTraining(BaseException):
    """A stop that came while the run was still being set up; `exit_code` says which."""

    def __init__(self, exit_code: int) -> None:
        super().__init__(f"stopped before the first step (exit {exit_code})")
        self.exit_code = exit_code


class Requests:
    """What has been asked of the run. As a context manager it owns the process's signal handlers."""

    def __init__(self) -> None:
        self.stop_code: int | None = None
        self.save = False
        self.training = False
        """Set once steps run: from then on a stop waits for the end of the step."""
        self._before: dict[int, object] = {}

    def request_stop(self, exit_code: int) -> None:
        if self.stop_code is None:
            self.stop_code = exit_code

    @property
    def stop(self) -> bool:
        return self.stop_code is not None

    def __enter__(self) -> Requests:
        handlers = {
            signal.SIGINT: self._on_stop,
            signal.SIGTERM: self._on_stop,
            signal.SIGUSR1: self._on_save,
            signal.SIGHUP: signal.SIG_IGN,
        }
        for number, handler in handlers.items():
            self._before[number] = signal.signal(number, handler)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def _on_stop(self, number: int, frame: FrameType | None) -> None:
        code = EXIT_CODES[signal.Signals(number)]
        if self.stop_code is not None:
            os._exit(code)
        self.stop_code = code
        if not self.training:
            raise StopBeforeTraining(code)

    def _on_save(self, number: int, frame: FrameType | None) -> None:
        self.save = True
