"""The plan of a form that is edited, and the profiles that it needs, kept up to date in the background.

Invariants: of several edits only the last one is planned, at most one model profile is taken, for the model as it is
now, and whatever blocks runs in threads.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any

from textual.screen import Screen

from workbench.config import RunConfig
from workbench.errors import WorkbenchError
from workbench.plan.fit import Fit
from workbench.plan.planner import Plan
from workbench.system import child_process
from workbench.tui.form.planner import ConfigPlanner, PlanResult
from workbench.tui.screens.live_screen import Reader


class LivePlan:
    """The plan of a configuration that changes with every key. `show` is called after each change of it."""

    profile_after_s = 0.4
    """A model profile is taken when the model was not edited for so long."""

    def __init__(self, screen: Screen[None], planner: ConfigPlanner, show: Callable[[], None]) -> None:
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
        """The work that goes on, in a sentence."""
        self._screen = screen
        self._show = show
        self._reader = Reader(screen, planner.plan, self._take_result)
        self._profiled: RunConfig | None = None
        """The configuration whose model profile is being taken."""
        self._measuring = False

    def update(self, config: RunConfig | None) -> None:
        """Plan `config` in the place of the one before."""
        self.config, self.result = config, None
        if self._profiled is not None and not _same_model(self._profiled, config):
            self._cancel("profile")
        if self._profiled is None and not self._measuring:
            self.status = ""
        if config is None:
            self._show()
        else:
            self._reader.read(config)

    def update_machine(self) -> None:
        """Plan again on the machine as it is now."""
        self.planner.forget_machine()
        self.update(self.config)

    async def search(self, config: RunConfig, keep: frozenset[str]) -> Fit | None:
        """Return the fastest configuration that fits; None where `config` was edited meanwhile.

        Raises:
            ConfigurationError: nothing is left to try.
        """
        self.status = "searching for what fits"
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

    def _take_result(self, result: PlanResult) -> None:
        if result.config is not self.config:
            return  # edited meanwhile
        self.result = self.newest = result
        self.plan = result.plan or self.plan
        if result.needs_profile and self._profiled is None and not self._measuring:
            self._profiled = result.config
            self.status = "the model is profiled in a moment"
            self._run(self._take_profile(result.config), "profile")
        self._show()

    async def _take_profile(self, config: RunConfig) -> None:
        await asyncio.sleep(self.profile_after_s)
        try:
            await self._in_thread(self.planner.take_profile, config, "profiling the model")
        finally:
            if self._profiled is config:
                self._profiled = None
        self.update(self.config)

    async def _measure(self, config: RunConfig) -> None:
        self._measuring = True
        try:
            await self._in_thread(self.planner.measure, config, "measuring this machine, up to a minute")
        except (WorkbenchError, OSError) as error:
            self._screen.notify(str(error), severity="error", markup=False)
        finally:
            self._measuring = False
        self.update(self.config)

    async def _in_thread(
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

    def _run(self, coroutine: Coroutine[Any, Any, None], group: str) -> None:
        self._screen.run_worker(coroutine, group=group, exclusive=True, exit_on_error=False)

    def _cancel(self, group: str) -> None:
        self._screen.workers.cancel_group(self._screen, group)
        if group == "profile":
            self._profiled = None


def _same_model(one: RunConfig, other: RunConfig | None) -> bool:
    return other is not None and (one.model, one.adapter) == (other.model, other.adapter)
