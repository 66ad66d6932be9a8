"""The keys that steer a run's trainer, and the question that stands before leaving a run that goes on.

What was asked for is seen at once, before the trainer has answered. Invariant: nobody waits for an answer in the thread
that draws, and read-only mode asks for nothing.
"""

from __future__ import annotations

import asyncio
from typing import ClassVar, TypeVar

from textual import work
from textual.binding import Binding, BindingType
from textual.screen import ModalScreen, Screen
from textual.worker import get_current_worker

from workbench.errors import WorkbenchError
from workbench.runs import ACTIVE, Event, RunDirectory, liveness, read_status, send_control
from workbench.runs.control import Answer, ask
from workbench.tui.context import AppContext
from workbench.tui.dialogs import Choice, Confirm
from workbench.tui.messages import ResumeRun
from workbench.tui.run.ending import end_at_once
from workbench.tui.run.reading import RunLook
from workbench.tui.run.resuming import GOES_ON

CHANGING = ("pause", "save_now", "stop", "resume")
"""The actions that read-only mode leaves out."""
_ASKED = {"pause": "pausing", "resume": "going on", "save": "saving", "stop": "stopping"}

Result = TypeVar("Result")


class SteeredScreen(Screen[None]):
    """A screen of one run. The screen gives `run`, `context`, `latest` and `tell_notice`."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("p", "pause", "Pause/go on", id="run.pause"),
        Binding("k", "save_now", "Save now", id="run.save"),
        Binding("s", "stop", "Stop", id="run.stop"),
        Binding("R", "resume", "Resume", id="run.resume"),
        Binding("q,escape", "leave", "Leave", id="run.leave"),
    ]

    run: RunDirectory
    context: AppContext
    latest: RunLook | None = None
    """The last look; None before the first."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = ""
        """What was asked for and is not answered yet, in one word: "pausing"."""
        self.stopping = False
        """Whether the trainer was asked to stop, here or elsewhere, and has not ended yet."""
        self._offered_for = ""
        """The state of the run for which the keys that are shown hold."""
        self._asking_to_leave = False

    def tell_notice(self) -> None:
        """Show `asked` and `stopping`."""
        raise NotImplementedError

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Only what can be done to the run as it is now; before the first look, what a living one takes."""
        if action not in CHANGING:
            return True
        if self.context.read_only:
            return False
        if self.latest is None:
            return action != "resume"
        if action == "resume":
            return self.latest.state == "paused" or self.latest.state in GOES_ON
        return self.latest.living

    def note_control(self, look: RunLook) -> None:
        """See from events and status what has become of what was asked for, and which keys hold now."""
        if any(_is_stop(event, look) for event in look.events):
            self.stopping = True
        if not look.living:
            self.stopping, self.asked = False, ""
        elif look.state == "paused" and self.asked == _ASKED["pause"]:
            self.asked = ""
        if look.state != self._offered_for:
            self._offered_for = look.state
            self.refresh_bindings()

    # Keys.

    def action_pause(self) -> None:
        """Pause, or go on where it is paused or about to be."""
        if self._may("pause"):
            paused = self.latest is not None and self.latest.state == "paused"
            self.steer("resume" if paused or self.asked == _ASKED["pause"] else "pause")

    def action_save_now(self) -> None:
        if self._may("save"):
            self.steer("save")

    def action_stop(self) -> None:
        """Stop and save; of a run that is stopping already, end it at once."""
        if not self._may("stop"):
            return
        self._stop()

    def action_resume(self) -> None:
        look = self.latest
        if look is None:
            return
        if look.state == "paused":
            self.steer("resume")
        elif look.state in GOES_ON:
            self.post_message(ResumeRun(self.run))
        else:
            self._tell(f"It is {look.state}: there is nothing to resume.", severity="warning")

    def action_leave(self) -> None:
        self._leave()

    @work(group="stop", exclusive=True, exit_on_error=False)
    async def _stop(self) -> None:
        glyphs = self.context.glyphs
        if self.stopping:
            text = (
                f"{self.run.name} is stopping already: it finishes its step and saves. End it at once? What it did "
                "since its last checkpoint is lost."
            )
            dialog = Confirm("End at once", text, "End at once", "Let it save", danger=True, glyphs=glyphs)
            if await self._answer(dialog):
                self._tell("Ending at once ...")
                answer = await asyncio.to_thread(end_at_once, self.run)
                self._tell_answer(answer)
            return
        text = f"Stop {self.run.name}? It finishes its step, saves a checkpoint and ends; R resumes it from there."
        if await self._answer(Confirm("Stop", text, "Stop and save", "Go on", glyphs=glyphs)):
            self.steer("stop")

    @work(group="steer", exit_on_error=False)
    async def steer(self, verb: str) -> None:
        """Send a command and tell the answer; a thread waits for it, which touches nothing here."""
        word = self.asked = _ASKED[verb]
        if verb == "stop":
            self.stopping = True
        self.tell_notice()
        worker = get_current_worker()
        answer = await asyncio.to_thread(ask, self.run, verb, given_up=lambda: worker.is_cancelled)
        if self.asked == word:
            self.asked = ""
        if not answer.done and "no answer" not in answer.message and verb == "stop":
            self.stopping = False
        self.tell_notice()
        self._tell_answer(answer)

    # Leaving.

    async def may_leave(self) -> bool:
        """Whether this screen may be left: asks where a trainer lives, unless runs are only watched.

        For `App.action_quit` as well, which must then be a worker: a dialog is waited for.
        """
        if self.context.read_only or self._asking_to_leave:
            return self.context.read_only
        self._asking_to_leave = True
        try:
            status = await asyncio.to_thread(read_status, self.run)
            if liveness(status, self.context.clock()) not in ACTIVE:
                return True
            dialog = Choice(
                "Leave",
                (
                    ("detach", "Detach: training goes on"),
                    ("stop", "Stop and save: finish the step, save, end"),
                    ("stay", "Stay"),
                ),
                f"{self.run.name} is {'stopping' if self.stopping else 'training'}.",
                glyphs=self.context.glyphs,
            )
            choice = await self._answer(dialog)
            if choice != "stop":
                return choice == "detach"
            try:
                await asyncio.to_thread(send_control, self.run, "stop")
            except WorkbenchError as error:
                self._tell(str(error), severity="error")
                return False
            return True
        finally:
            self._asking_to_leave = False

    @work(group="leave", exit_on_error=False)
    async def _leave(self) -> None:
        if await self.may_leave():
            if len(self.app.screen_stack) > 1:
                self.dismiss()
            else:
                self.app.exit()

    # What they share.

    async def _answer(self, dialog: ModalScreen[Result]) -> Result | None:
        """What the dialog is answered with; None where it is taken away."""
        answered: asyncio.Future[Result | None] = asyncio.get_running_loop().create_future()

        def answer(result: Result | None) -> None:
            if not answered.done():
                answered.set_result(result)

        self.app.push_screen(dialog, answer)
        return await answered

    def _may(self, verb: str) -> bool:
        look = self.latest
        if look is not None and not look.living:
            self._tell(f"Cannot {verb}: it is {look.state}.", severity="warning")
        return look is not None and look.living

    def _tell_answer(self, answer: Answer) -> None:
        message = answer.message[:1].upper() + answer.message[1:]
        self._tell(message, severity="information" if answer.done else "warning")

    def _tell(self, message: str, *, severity: str = "information") -> None:
        self.notify(message, severity=severity, markup=False)  # type: ignore[arg-type]


def _is_stop(event: Event, look: RunLook) -> bool:
    """Whether this trainer, not one before it, has taken a stop."""
    stop = event.kind == "control" and event.fields.get("verb") == "stop"
    return stop and look.living and event.time >= look.status.pid_started
