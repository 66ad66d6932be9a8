"""A screen that plans what it edits: plans, what they lack, searches and measuring, each in a thread of its own.

It knows nothing of a form; `ConfigureScreen` says what is to be planned and shows what comes of it. Threads only post
messages. Invariant: at most one thing is obtained at a time, for the configuration as it is now; another model or
machine cancels it.
"""

from __future__ import annotations

import threading
from threading import Event

from textual import on, work
from textual.message import Message
from textual.screen import Screen
from textual.timer import Timer
from textual.worker import get_current_worker

from workbench.config import RunConfig
from workbench.errors import ConfigurationError, WorkbenchError
from workbench.plan.fit import Fit
from workbench.plan.planner import Plan
from workbench.system.child_process import CancelledError
from workbench.tui.form.planning import Outlook, Planning
from workbench.tui.form.sources import Sources


class PlannedScreen(Screen[None]):
    """Call `plan_it` after every edit. `show_outlook` and `show_found` are told what came of it."""

    model_profile_after_s = 0.4
    """A model profile is taken when the model has stood still for so long."""
    ready_after_s = 1.0
    """What takes a model profile is started when the screen has been there for so long: nothing seen waits for it."""
    let_go_after_s = 60.0
    """It goes when nobody has seen the screen for so long: it holds memory that a run may want."""

    class Looked(Message):
        """A plan was worked out, or what it lacks is known."""

        def __init__(self, outlook: Outlook) -> None:
            super().__init__()
            self.outlook = outlook

    class Told(Message):
        """Progress of what is being obtained."""

        def __init__(self, cancelled: Event, sentence: str) -> None:
            super().__init__()
            self.cancelled = cancelled
            self.sentence = sentence

    class Ended(Message):
        """Obtaining has ended; `problem` is empty where it went well."""

        def __init__(self, cancelled: Event, problem: str = "") -> None:
            super().__init__()
            self.cancelled = cancelled
            self.problem = problem

    class Found(Message):
        """A search has ended."""

        def __init__(self, config: RunConfig, found: Fit | None, problem: str = "") -> None:
            super().__init__()
            self.config = config
            self.found = found
            self.problem = problem

    def __init__(self, sources: Sources, classes: str | None = None) -> None:
        super().__init__(classes=classes)
        self.planning = Planning(sources)
        self.outlook: Outlook | None = None
        """Of the configuration as it is now; None while it has problems or is being planned."""
        self.plan: Plan | None = None
        """The last one that was worked out, of this configuration or one before it."""
        self.said = ""
        """What is going on, in a sentence."""
        self._turn = threading.Lock()
        self._cancel: Event | None = None
        self._asked_for: object = None
        self._measuring = False
        self._waiting: Timer | None = None
        self._leaving: Timer | None = None

    # Being there

    async def on_mount(self) -> None:
        self.set_timer(self.ready_after_s, self._make_ready)

    def on_screen_suspend(self) -> None:
        self._leaving = self.set_timer(self.let_go_after_s, self.planning.sources.let_go)

    def on_screen_resume(self) -> None:
        if self._leaving is not None:
            self._leaving.stop()
            self._leaving = None
            self._make_ready()

    def on_unmount(self) -> None:
        self.call_off()
        self.planning.sources.let_go()

    def _make_ready(self) -> None:
        if self.is_current:
            self.planning.sources.make_ready()

    # What a subclass says

    @property
    def config(self) -> RunConfig | None:
        """What is to be planned; None while it has problems."""
        raise NotImplementedError

    def show_outlook(self) -> None:
        """Show `outlook`, `plan` and `said`."""
        raise NotImplementedError

    def show_found(self, config: RunConfig, found: Fit) -> None:
        """Show what a search for `config` found."""
        raise NotImplementedError

    # Plans

    def plan_it(self) -> None:
        """Work out the plan of the configuration as it is now."""
        config = self.config
        if self._cancel is not None and config is not None and self._asked_for != _key(config):
            self.call_off()
        self._wait_no_more()
        self.outlook = None
        if config is None:
            self.show_outlook()
        else:
            self._look(config)

    def plan_anew(self) -> None:
        """Ask anew what is free on the machine, and how fast it is."""
        self.call_off()
        self.planning.forget_machine()
        self.plan_it()

    @work(thread=True, exclusive=True, group="plan", exit_on_error=False)
    def _look(self, config: RunConfig) -> None:
        worker = get_current_worker()
        with self._turn:  # of several keys only the last is planned
            if worker.is_cancelled:
                return
            outlook = self.planning.look(config)
        if not worker.is_cancelled:
            self.post_message(self.Looked(outlook))

    @on(Looked)
    def _looked(self, event: Looked) -> None:
        event.stop()
        if event.outlook.config == self.config:
            self._take(event.outlook)

    def _take(self, outlook: Outlook) -> None:
        self.outlook = outlook
        if outlook.plan is not None:
            self.plan = outlook.plan
        if outlook.lacks and self._cancel is None:
            self._send(outlook.config, take=False)
        self.show_outlook()

    # What a plan lacks

    def _send(self, config: RunConfig, *, take: bool) -> None:
        self._cancel, self._asked_for = Event(), _key(config)
        self.said = "taking the model profile of the model" if take else "looking at the machine"
        self._obtain(config, self._cancel, take)

    @work(thread=True, group="obtain", exit_on_error=False)
    def _obtain(self, config: RunConfig, cancelled: Event, take: bool) -> None:
        try:
            self.planning.obtain(config, lambda said: self._pass_on(cancelled, said), cancelled, take=take)
        except CancelledError:
            return
        self.post_message(self.Ended(cancelled))

    def _pass_on(self, cancelled: Event, sentence: str) -> None:
        self.post_message(self.Told(cancelled, sentence))

    @on(Told)
    def _told(self, event: Told) -> None:
        event.stop()
        if event.cancelled is self._cancel:
            self.said = event.sentence
            self.show_outlook()

    @on(Ended)
    def _ended(self, event: Ended) -> None:
        event.stop()
        if event.cancelled is not self._cancel:
            return
        self._cancel, self._measuring, self.said = None, False, ""
        if event.problem:
            self.notify(event.problem, severity="error", markup=False)
        config = self.config
        outlook = None if config is None else self.planning.look(config)
        if config is not None and outlook is not None and outlook.lacks == {"model_profile"}:
            self.outlook = outlook
            self.said = "the model profile of the model is taken in a moment"
            self._waiting = self.set_timer(
                self.model_profile_after_s, lambda: self._send_for_model_profile(config)
            )
            self.show_outlook()
        else:
            self.plan_it()

    def _send_for_model_profile(self, config: RunConfig) -> None:
        self._waiting = None
        if self._cancel is None and self.config is not None and _key(self.config) == _key(config):
            self._send(config, take=True)
            self.show_outlook()

    def _wait_no_more(self) -> None:
        if self._waiting is not None:
            self._waiting.stop()
            self._waiting = None
            self.said = ""

    def call_off(self) -> None:
        """Cancel what is being obtained, if anything is."""
        self._wait_no_more()
        if self._cancel is not None:
            self._cancel.set()
            self._cancel, self._measuring, self.said = None, False, ""

    # Searching

    def search(self, config: RunConfig, keep: frozenset[str] = frozenset()) -> None:
        """Look for the fastest that fits; `show_found` is told."""
        self.said = "looking for what fits"
        self.show_outlook()
        self._search(config, keep)

    @work(thread=True, exclusive=True, group="fit", exit_on_error=False)
    def _search(self, config: RunConfig, keep: frozenset[str]) -> None:
        try:
            found, problem = self.planning.fit(config, keep), ""
        except ConfigurationError as error:
            found, problem = None, str(error)
        if not get_current_worker().is_cancelled:
            self.post_message(self.Found(config, found, problem))

    @on(Found)
    def _found(self, event: Found) -> None:
        event.stop()
        self.said = ""
        self.show_outlook()
        if event.config != self.config:
            return  # it was edited meanwhile
        if event.found is not None:
            self.show_found(event.config, event.found)
        else:
            message = event.problem or "there is nothing to search from"
            self.notify(message, severity="warning", markup=False)

    # Measuring

    def measure(self, config: RunConfig) -> None:
        """Measure this machine, which takes up to a minute; while that goes on: leave off."""
        if self._measuring:
            self.call_off()
            self.notify("measuring was called off")
            self.plan_it()
            return
        self.call_off()
        self._cancel, self._asked_for, self._measuring = Event(), _key(config), True
        self.said = "measuring this machine, up to a minute"
        self.show_outlook()
        self._measure(config, self._cancel)

    @work(thread=True, group="obtain", exit_on_error=False)
    def _measure(self, config: RunConfig, cancelled: Event) -> None:
        problem = ""
        try:
            self.planning.sources.measure(
                config.train.device,
                config.offload.disk_path,
                lambda said: self._pass_on(cancelled, f"measuring: {said}"),
                cancelled,
            )
        except CancelledError:
            return
        except (WorkbenchError, OSError) as error:
            problem = str(error)
        self.planning.forget_machine()
        self.post_message(self.Ended(cancelled, problem))


def _key(config: RunConfig) -> object:
    """Return what is obtained for a configuration: another value of it cancels."""
    return config.model.model_dump_json(), config.train.device, config.offload.disk_path
