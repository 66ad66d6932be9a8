"""The facts beside a form, kept up to date in the background: the plan of what it says, and the references in it.

Objects that a screen holds. They run coroutines as workers of the screen, and whatever blocks in threads. `show` is
called in the screen's own thread whenever there is something else to show.

Invariants: of several edits only the last one is planned, at most one model profile is taken, for the model as it is
now, and one thread at a time looks at the disk.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

from textual.screen import Screen

from workbench.config import RunConfig
from workbench.errors import WorkbenchError
from workbench.plan.fit import Fit
from workbench.plan.planner import Plan
from workbench.system import child_process
from workbench.tui.form.planner import ConfigPlanner, PlanResult
from workbench.tui.form.problems import References, check_references

Show = Callable[[], None]


class LivePlan:
    """The plan of a configuration that changes with every key."""

    profile_after_s = 0.4
    """A model profile is taken when there was no edit for so long."""

    def __init__(self, screen: Screen[None], planner: ConfigPlanner, show: Show) -> None:
        self.planner = planner
        self.config: RunConfig | None = None
        """None while the form has problems."""
        self.result: PlanResult | None = None
        """The result for `config`; None while it is being planned."""
        self.newest: PlanResult | None = None
        """The last result, of `config` or of an earlier one."""
        self.plan: Plan | None = None
        """The last plan, of `config` or of an earlier one."""
        self.status = ""
        """What goes on, in a sentence."""
        self._screen = screen
        self._show = show
        self._turn = threading.Lock()
        self._profiled: RunConfig | None = None
        """The configuration whose model profile is being taken."""
        self._measuring = False

    def update(self, config: RunConfig | None) -> None:
        """Plan `config` in the place of the one before."""
        self.config, self.result = config, None
        if self._profiled is not None and config is not None and not _same_model(self._profiled, config):
            self._cancel("profile")
        if self._profiled is None and not self._measuring:
            self.status = ""
        if config is None:
            self._cancel("plan")
            self._show()
        else:
            self._run(self._plan(config), "plan")

    def update_machine(self) -> None:
        """Plan again on the machine as it is now."""
        self.planner.forget_machine()
        self.update(self.config)

    async def search(self, config: RunConfig, keep: frozenset[str]) -> Fit | None:
        """Return the fastest configuration that fits; None where `config` was edited meanwhile.

        Raises:
            ConfigurationError: nothing is left to try.
        """
        self.status = "looking for what fits"
        self._show()
        try:
            found = await asyncio.to_thread(self.planner.fit, config, keep)
        finally:
            self.status = ""
            self._show()
        return found if config == self.config else None

    def toggle_measuring(self, config: RunConfig) -> bool:
        """Measure this machine, or stop measuring it; return whether it is being measured now."""
        self._cancel("profile")
        if self._measuring:
            self._cancel("measure")
            self.update(config)
            return False
        self._run(self._measure(config), "measure")
        return True

    # Coroutines

    async def _plan(self, config: RunConfig) -> None:
        result = await asyncio.to_thread(self._plan_if_newest, config)
        if result is None:
            return
        self.result = self.newest = result
        self.plan = result.plan or self.plan
        wants_profile = result.needs_profile and self._profiled is None and not self._measuring
        if wants_profile:
            self.status = "the model profile is taken in a moment"
        self._show()
        if wants_profile:
            await asyncio.sleep(self.profile_after_s)
            self._profiled = config
            self._run(self._take_profile(config), "profile")

    def _plan_if_newest(self, config: RunConfig) -> PlanResult | None:
        with self._turn:
            return self.planner.plan(config) if config is self.config else None

    async def _take_profile(self, config: RunConfig) -> None:
        try:
            await self._in_child(self.planner.take_profile, config, "taking the model profile")
        finally:
            self._profiled = None
        self.update(self.config)

    async def _measure(self, config: RunConfig) -> None:
        self._measuring = True
        try:
            await self._in_child(self.planner.measure, config, "measuring this machine, up to a minute")
        except (WorkbenchError, OSError) as error:
            self._screen.notify(str(error), severity="error", markup=False)
        finally:
            self._measuring = False
        self.update(self.config)

    async def _in_child(
        self,
        job: Callable[[RunConfig, Callable[[str], None], threading.Event], None],
        config: RunConfig,
        status: str,
    ) -> None:
        """Run `job` in a thread. Cancelling this coroutine cancels the child process that the job waits for."""
        cancelled = threading.Event()
        loop = asyncio.get_running_loop()

        def show(sentence: str) -> None:
            if not cancelled.is_set():
                self.status = sentence
                self._show()

        def report(sentence: str) -> None:
            loop.call_soon_threadsafe(show, sentence)

        show(status)
        try:
            await asyncio.to_thread(job, config, report, cancelled)
        except child_process.CancelledError:
            raise asyncio.CancelledError from None  # the process was stopped elsewhere
        finally:
            cancelled.set()
            self.status = ""

    def _run(self, coroutine: Any, group: str) -> None:
        self._screen.run_worker(coroutine, group=group, exclusive=True, exit_on_error=False)

    def _cancel(self, group: str) -> None:
        self._screen.workers.cancel_group(self._screen, group)
        if group == "profile":
            self._profiled = None


class LiveReferences:
    """The files, packages and architectures that a form names and that are missing, and its warnings.

    Looked for in a thread: a folder on a network that is gone may take a minute to answer.
    """

    def __init__(self, screen: Screen[None], values: Callable[[], dict[str, Any]], show: Show) -> None:
        """`values`: returns the values of the form as they are now."""
        self.found = References()
        """Found last, perhaps for the values before one key."""
        self._screen = screen
        self._values = values
        self._show = show
        self._is_looking = False
        self._is_stale = False

    def update(self) -> None:
        """Look again, as soon as the look that goes on has ended."""
        self._is_stale = True
        if not self._is_looking:
            self._is_looking = True
            self._screen.run_worker(self._look(), group="references")

    async def check_now(self) -> bool:
        """Look once; return False where the values were edited meanwhile."""
        values = self._values()
        self.found = await asyncio.to_thread(check_references, values)
        self._show()
        return values == self._values()

    async def _look(self) -> None:
        while self._is_stale:
            self._is_stale = False
            found = await asyncio.to_thread(check_references, self._values())
            if found != self.found:
                self.found = found
                self._show()
        self._is_looking = False


def _same_model(one: RunConfig, other: RunConfig) -> bool:
    return (one.model, one.adapter) == (other.model, other.adapter)
