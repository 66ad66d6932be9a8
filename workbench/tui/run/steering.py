"""The commands to a run's trainer, for the screens that show runs.

Invariant: nobody waits for an answer in the thread that draws, and read-only mode asks for nothing.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import time
from collections.abc import Callable

from textual.worker import get_current_worker

from workbench.runs import RunDirectory, read_status
from workbench.runs.control import Answer, ask
from workbench.runs.status import process_started
from workbench.tui.dialogs import Confirm
from workbench.tui.messages import ResumeRun
from workbench.tui.run.resuming import GOES_ON
from workbench.tui.screens.live_screen import LiveScreen

CHANGING = {"pause", "save", "stop", "resume", "export", "delete"}
"""The actions that read-only mode leaves out."""
_SAME_PROCESS_S = 5.0
_BETWEEN_S = 0.2
_ENDS_WITHIN_S = 10.0


class SteeringScreen(LiveScreen):
    """A screen with keys for one run: `p` pauses, `k` saves, `s` stops, `R` resumes. A subclass binds the keys."""

    def steered(self) -> tuple[RunDirectory, str, bool] | None:
        """Return the run that the keys are for, its state, and whether it may have a trainer; None: there is no run."""
        raise NotImplementedError

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        return not (self.context.read_only and action in CHANGING)

    def action_pause(self) -> None:
        """Pause, or go on where it is paused."""
        if run := self._living("pause"):
            found = self.steered()
            self.steer(run, "resume" if found is not None and found[1] == "paused" else "pause")

    def action_save(self) -> None:
        if run := self._living("save"):
            self.steer(run, "save")

    def action_stop(self) -> None:
        if run := self._living("stop"):
            self.run_worker(self._confirm_stop(run), group="stop", exclusive=True, exit_on_error=False)

    def action_resume(self) -> None:
        """Wake a paused run; have the application start a trainer for one that has none."""
        found = self.steered()
        if found is None:
            return
        run, state, _ = found
        if state == "paused":
            self.steer(run, "resume")
        elif state in GOES_ON:
            self.post_message(ResumeRun(run))
        else:
            self.report(f"{run.name} is {state}: there is nothing to resume.", severity="warning")

    def _living(self, command: str) -> RunDirectory | None:
        """Return the run where it may have a trainer; else report why the command makes no sense."""
        found = self.steered()
        if found is not None and not found[2]:
            self.report(f"{found[0].name}: cannot {command}: it is {found[1]}.", severity="warning")
        return found[0] if found is not None and found[2] else None

    async def _confirm_stop(self, run: RunDirectory) -> None:
        text = f"Stop {run.name}? It finishes its step, saves a checkpoint and ends; R resumes it from there."
        dialog = Confirm("Stop", text, "Stop and save", "Go on", glyphs=self.context.glyphs)
        if await self.app.push_screen_wait(dialog):
            self.steer(run, "stop")

    def steer(self, run: RunDirectory, command: str) -> None:
        """Send a command and report the answer."""
        self.command_sent(run, command)
        self.run_worker(self._send(run, command), group="steer", exit_on_error=False)

    async def _send(self, run: RunDirectory, command: str) -> None:
        worker = get_current_worker()
        answer = await asyncio.to_thread(ask, run, command, given_up=lambda: worker.is_cancelled)
        self.command_answered(run, command, answer)
        severity = "information" if answer.done else "warning"
        self.report(f"{run.name}: {answer.message}", severity=severity)

    def command_sent(self, run: RunDirectory, command: str) -> None:
        """Show that the trainer was asked."""

    def command_answered(self, run: RunDirectory, command: str, answer: Answer) -> None:
        """Show that the trainer has answered."""


def end_at_once(
    run: RunDirectory,
    *,
    kill: Callable[[int, int], None] = os.kill,
    sleep: Callable[[float], None] = time.sleep,
) -> Answer:
    """End a trainer without saving, as a second ctrl+c in its terminal does. Never raises.

    Sends SIGINT twice, to the process that the run's status names and to no other: the first ends its step, the second
    everything. They come one after the other: two that are waiting together would be one.
    """
    status = read_status(run)
    if status.host not in ("", socket.gethostname()):
        return Answer(False, f"its trainer runs on {status.host}: end process {status.pid} there")

    def is_there() -> bool:
        started = process_started(status.pid)
        return started is not None and abs(started - status.pid_started) <= _SAME_PROCESS_S

    if not is_there():
        return Answer(False, f"its process {status.pid} is gone already")
    try:
        for _ in range(2):
            if is_there():
                kill(status.pid, signal.SIGINT)
                sleep(_BETWEEN_S)
    except ProcessLookupError:
        pass
    except OSError as error:
        return Answer(False, f"process {status.pid} cannot be ended: {error.strerror or error}")
    for _ in range(round(_ENDS_WITHIN_S / _BETWEEN_S)):
        if not is_there():
            return Answer(True, "ended at once; the last checkpoint stands")
        sleep(_BETWEEN_S)
    return Answer(False, f"process {status.pid} has not ended yet")
