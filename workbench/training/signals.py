"""Signals and control lines become requests that the loop looks at between steps.

SIGINT and SIGTERM: finish the step, save, exit 130 or 143; a second one exits at once. SIGUSR1: save now. SIGHUP is
ignored, so that a closed terminal stops nothing. Before the first step there is nothing to finish: a stop is raised
where it strikes.

Python runs a handler only between two instructions of the main thread, and a step or a save may be one instruction
for minutes. So a thread beside it answers at once: it reports that the first stop has come, and ends the process at the
second.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from types import FrameType
from typing import Any

from workbench.errors import EXIT_INTERRUPTED, EXIT_TERMINATED

EXIT_CODES = {signal.SIGINT: EXIT_INTERRUPTED, signal.SIGTERM: EXIT_TERMINATED}


class StopBeforeTraining(BaseException):
    """A stop that came while the run was still being set up; `exit_code` says which."""

    def __init__(self, exit_code: int) -> None:
        super().__init__(f"stopped before the first step (exit {exit_code})")
        self.exit_code = exit_code


class Requests:
    """The requests to the run. As a context manager it owns the process's signal handlers."""

    def __init__(self) -> None:
        self.stop_code: int | None = None
        self.save = False
        self.training = False
        """Set once steps run: from then on a stop waits for the end of the step."""
        self._before: dict[int, Any] = {}

    def request_stop(self, exit_code: int) -> None:
        if self.stop_code is None:
            self.stop_code = exit_code

    def raise_if_stopped(self) -> None:
        """Raise the stop that came before training and that whatever it struck has swallowed."""
        if self.stop_code is not None:
            raise StopBeforeTraining(self.stop_code)

    @property
    def stop(self) -> bool:
        return self.stop_code is not None

    def __enter__(self) -> Requests:
        handlers: dict[int, Any] = {
            signal.SIGINT: self._on_stop,
            signal.SIGTERM: self._on_stop,
            signal.SIGUSR1: self._on_save,
            signal.SIGHUP: signal.SIG_IGN,
        }
        arrivals, self._arrived = os.pipe()
        os.set_blocking(self._arrived, False)
        self._watcher = threading.Thread(target=self._watch, args=(arrivals,), name="signals", daemon=True)
        self._watcher.start()
        self._arrived_before = signal.set_wakeup_fd(self._arrived, warn_on_full_buffer=False)
        for number, handler in handlers.items():
            self._before[number] = signal.signal(number, handler)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._arrived_before)
        os.close(self._arrived)
        self._watcher.join()

    def _watch(self, arrivals: int) -> None:
        """Read the number of every signal as it comes, until the pipe is closed."""
        stops = 0
        with open(arrivals, "rb", buffering=0) as pipe:
            while numbers := pipe.read(64):
                for number in numbers:
                    if number not in EXIT_CODES:
                        continue
                    stops += 1
                    if stops > 1:
                        os._exit(EXIT_CODES[signal.Signals(number)])
                    if self.training:
                        name = signal.Signals(number).name
                        with contextlib.suppress(OSError, ValueError):
                            print(
                                f"workbench: {name}: finishing the step, then saving; a second one exits at once",
                                file=sys.stderr,
                                flush=True,
                            )

    def _on_stop(self, number: int, frame: FrameType | None) -> None:
        code = EXIT_CODES[signal.Signals(number)]
        if self.stop_code is not None:
            os._exit(code)
        self.stop_code = code
        if not self.training:
            raise StopBeforeTraining(code)

    def _on_save(self, number: int, frame: FrameType | None) -> None:
        self.save = True
