"""The commands to a run's trainer, and the question before a run goes on, for the screens that show runs.

Invariant: nobody waits for an answer in the thread that draws, and read-only mode asks for nothing. What a checkpoint
cannot go on with is refused by the trainer.
"""

from __future__ import annotations

import asyncio
import os
import shlex
import signal
import socket
import time
from collections.abc import Callable
from functools import partial

from textual.worker import get_current_worker

from workbench.errors import ConfigurationError
from workbench.runs import RESUMABLE, RunDirectory, liveness, read_status
from workbench.runs.control import Answer, ask
from workbench.runs.status import process_started
from workbench.tui.dialogs import AskText, Confirm
from workbench.tui.glyphs import Glyphs
from workbench.tui.messages import ResumeRun
from workbench.tui.screens.live_screen import LiveScreen

STEPS = "train.steps="
FINISHED = "finished"
GOES_ON = (*RESUMABLE, FINISHED)
"""The states in which a run without a trainer can go on."""
CHANGING = {"pause", "save", "stop", "resume", "export", "delete"}
"""The actions that read-only mode leaves out."""
_SAME_PROCESS_S = 5.0
_BETWEEN_S = 0.2
_ENDS_WITHIN_S = 10.0


def steps_done(run: RunDirectory) -> int | None:
    """Return the steps of a run that has done all of them; else None. It reads the disk."""
    status = read_status(run)
    return status.step if liveness(status) == FINISHED else None


def ask_changes(run: RunDirectory, done: int | None, glyphs: Glyphs) -> AskText:
    """Return the dialog for a run of which `steps_done` is `done`; its answer is for `overrides_in`."""
    about = "It continues from its last checkpoint. Changes, if any, as table.key=value, separated by spaces:"
    if done is not None:
        about = (
            f"All its {done:,} steps are done. Give a larger total, as {STEPS}{2 * done}: it continues from its last "
            "checkpoint, and the learning rate follows the longer schedule. Other changes may follow."
        )
    return AskText(
        f"Resume {run.name}",
        "" if done is None else STEPS,
        partial(wrong_changes, run, done),
        yes="Resume",
        about=about,
        example="for example train.steps=2000 optimizer.learning_rate=1e-4",
        glyphs=glyphs,
    )


def stop_question(run: RunDirectory, glyphs: Glyphs) -> Confirm:
    """Return the question that comes before every stop."""
    text = f"Stop {run.name}? It finishes its step, saves a checkpoint and ends; R resumes it from there."
    return Confirm("Stop", text, "Stop and save", "Keep training", glyphs=glyphs)


def overrides_in(text: str) -> list[str]:
    """Split what was typed as a shell does. Raises ValueError for a quote without an end."""
    return shlex.split(text)


def wrong_changes(run: RunDirectory, done: int | None, text: str) -> str:
    """Return what is wrong with the changes in `text`, or with the configuration that they make; empty: nothing."""
    from workbench.config import parse_config
    from workbench.training.resume_check import check_same_model, check_steps_left

    more = "" if done is None else f"all {done:,} steps are done: give a larger number, as {STEPS}{2 * done}"
    if more and text.strip() in ("", STEPS):
        return more
    try:
        stored = run.config.read_text(encoding="utf-8")
        config = parse_config(stored, str(run.config), overrides_in(text))
        check_same_model(run, parse_config(stored, str(run.config)), config)
        if done is None:
            check_steps_left(run, config)
    except ConfigurationError as error:
        return str(error)
    except OSError as error:
        return f"{run.config}: cannot be read: {error.strerror or error}"
    except ValueError as error:
        return f"cannot be read: {str(error)[:1].lower()}{str(error)[1:]}"
    # The trainer alone knows how many steps an epoch has.
    return more if done is not None and not config.train.epochs and config.train.steps <= done else ""


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
        if await self.app.push_screen_wait(stop_question(run, self.context.glyphs)):
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
        return Answer(False, f"its process {status.pid} has ended already")
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
            return Answer(True, "ended; the last checkpoint is kept")
        sleep(_BETWEEN_S)
    return Answer(False, f"process {status.pid} has not ended yet")
