"""The application: which screen is seen, and what screens ask of it. Each screen is a file of its own in `screens/`.

Three parts stand beside each other, each with its own stack of screens: presets, runs and the monitor. Screens know
nothing of each other; they post the messages of `messages.py`, and these are answered here alone.

A screen is imported when it is first seen: the first picture waits for nothing that it does not show.

Invariant: whatever ends the application, the terminal is as it was before.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import sys
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from textual import work
from textual.app import App, SystemCommand
from textual.binding import Binding, BindingType
from textual.command import Provider
from textual.screen import Screen

from workbench.errors import WorkbenchError
from workbench.runs import RunDirectory, liveness, read_status
from workbench.tui.messages import CompareRuns, OpenPreset, OpenRun, ResumeRun, StartRun
from workbench.tui.remembered import Remembered, read_remembered, write_remembered
from workbench.tui.surroundings import Surroundings

if TYPE_CHECKING:
    from workbench.tui.screens.run import RunScreen

PARTS = ("presets", "runs", "top")
NEWEST = 20
"""Runs that are looked at for one that trains."""


def _system_commands() -> type[Provider]:
    from textual.system_commands import SystemCommandsProvider

    return SystemCommandsProvider


def _presets_and_runs() -> type[Provider]:
    from workbench.tui.palette import PresetsAndRuns

    return PresetsAndRuns


class WorkbenchApp(App[None]):
    """The whole screen. `run`: begin with this run; else with the part named `part`, or the one seen last."""

    TITLE = "workbench"
    CSS_PATH = "workbench.tcss"
    COMMANDS: ClassVar[set[type[Provider] | Callable[[], type[Provider]]]] = {
        _system_commands,
        _presets_and_runs,
    }
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("P", "show_part('presets')", "Presets", id="app.presets", show=False),
        Binding("H", "show_part('runs')", "Runs", id="app.runs", show=False),
        Binding("M", "show_part('top')", "Monitor", id="app.top", show=False),
        Binding("question_mark", "help", "Help", key_display="?", id="app.help"),
        Binding("f1", "help", "Help", id="app.help_anywhere"),
        Binding("escape", "back", "Back", id="app.back", show=False),
        Binding("q", "leave", "Quit", id="app.leave"),
        Binding("ctrl+q", "quit", "Quit", id="app.quit", show=False, priority=True),
    ]

    def __init__(
        self, surroundings: Surroundings, *, part: str = "", run: RunDirectory | None = None
    ) -> None:
        super().__init__()
        self.surroundings = surroundings
        self.failure: Exception | None = None
        """What nobody expected and ended the application."""
        self._remembered = read_remembered()
        self._part = part or self._remembered.mode or PARTS[0]
        self._run = run
        for name, make in (("presets", self._presets), ("runs", self._runs), ("top", self._top)):
            self.add_mode(name, make)

    def _presets(self) -> Screen[None]:
        from workbench.tui.screens.presets import PresetsScreen

        return PresetsScreen(self.surroundings)

    def _runs(self) -> Screen[None]:
        from workbench.tui.screens.runs import RunsScreen

        return RunsScreen(self.surroundings)

    def _top(self) -> Screen[None]:
        from workbench.tui.screens.top import TopScreen

        return TopScreen(self.surroundings)

    # Beginning and ending

    async def on_mount(self) -> None:
        self.surroundings.monitor.start()
        self._watch_newest()
        for number in (signal.SIGTERM, signal.SIGHUP):
            # Textual would leave the terminal as it is.
            with contextlib.suppress(NotImplementedError, RuntimeError, ValueError):
                asyncio.get_running_loop().add_signal_handler(number, self._end_by_signal, number)
        if self._remembered.theme in self.available_themes:
            self.theme = self._remembered.theme
        self._set_keys()
        await self.switch_mode("runs" if self._run else self._part if self._part in PARTS else PARTS[0])
        if self._run:
            self._open_run(self._run)

    @work(thread=True, group="watch", exit_on_error=False)
    def _watch_newest(self) -> None:
        """Until a run is shown: the newest one that trains here, and the disk of the runs."""
        root = self.surroundings.runs_root.absolute()
        folder = next(path for path in (root, *root.parents) if path.exists())
        trainer = None
        for run in reversed(RunDirectory.list(root)[-NEWEST:]):
            status = read_status(run)
            if liveness(status) in ("running", "paused") and status.host == socket.gethostname():
                trainer = status.pid
                break
        self.surroundings.monitor.watch(pid=trainer, folders=(folder,))

    def on_unmount(self) -> None:
        self.surroundings.monitor.stop()
        write_remembered(replace(self._remembered, theme=self.theme, mode=self._last_part))

    @property
    def _last_part(self) -> str:
        return self.current_mode if self.current_mode in PARTS else self._remembered.mode

    def _end_by_signal(self, number: int) -> None:
        self.exit(return_code=128 + number)

    def _fatal_error(self) -> None:
        """Kept for whoever started this, who turns it into one line; Textual would print a traceback."""
        self.failure = self._exception
        self._close_messages_no_wait()

    def _set_keys(self) -> None:
        from workbench.presets import user_folder
        from workbench.tui.keymap import FILE_NAME, read_keymap

        folder = user_folder()
        if folder is None or not (folder.parent / FILE_NAME).exists():
            return
        from workbench.tui.bindings import binding_names

        keymap = read_keymap(folder.parent / FILE_NAME, binding_names())
        if keymap.keys:
            self.set_keymap(keymap.keys)
        for problem in keymap.problems:
            self.tell(problem, severity="warning")

    # What screens ask for

    def on_open_preset(self, message: OpenPreset) -> None:
        from workbench.tui.screens.configure import ConfigureScreen

        self._go("presets", ConfigureScreen(self.surroundings, message.path))

    def on_open_run(self, message: OpenRun) -> None:
        self._open_run(message.run)

    def on_compare_runs(self, message: CompareRuns) -> None:
        from workbench.tui.screens.compare import CompareScreen

        self._go("runs", CompareScreen(self.surroundings, message.runs))

    def on_start_run(self, message: StartRun) -> None:
        from workbench import launch

        self._begin(partial(launch.start, message.text, message.name, self.surroundings.runs_root))

    def on_resume_run(self, message: ResumeRun) -> None:
        from workbench import launch

        def resume() -> RunDirectory:
            launch.resume(message.run)
            return message.run

        self._begin(resume)

    @work(group="begin", exit_on_error=False)
    async def _begin(self, begin: Callable[[], RunDirectory]) -> None:
        """Start a trainer, in a thread, and show its run."""
        try:
            run = await asyncio.to_thread(begin)
        except WorkbenchError as error:
            self.tell(str(error), severity="error")
            return
        self._open_run(run)

    def _open_run(self, run: RunDirectory) -> None:
        from workbench.tui.screens.run import RunScreen

        self._go("runs", RunScreen(self.surroundings, run))

    @work(group="go", exit_on_error=False)
    async def _go(self, part: str, screen: Screen[None]) -> None:
        """Put `screen` on top of a part and show that. A run that is shown already is shown once."""
        if self.current_mode != part:
            await self.switch_mode(part)
        seen = _run_screen(self.screen)
        if seen is not None and _run_screen(screen) is not None:
            if seen.run != screen.run:  # type: ignore[attr-defined]
                await self.switch_screen(screen)
            return
        await self.push_screen(screen)

    # Actions

    def action_show_part(self, name: str) -> None:
        """Show a part as it was left."""
        if self.current_mode != name:
            self.switch_mode(name)
            if name == "top":
                self._watch_newest()

    def action_help(self) -> None:
        from workbench.tui.screens.help import HelpScreen

        if not isinstance(self.screen, HelpScreen):
            self.push_screen(HelpScreen(self.screen, self.surroundings.glyphs))

    async def action_back(self) -> None:
        """Leave the screen that is on top of a part."""
        if len(self.screen_stack) > 1:
            await self.pop_screen()

    def action_leave(self) -> None:
        """Back where there is something to go back to, else quit."""
        if len(self.screen_stack) > 1:
            self.pop_screen()
        else:
            self.exit()

    async def action_quit(self) -> None:
        """End the application; a run that is watched is asked about first."""
        self._quit()

    @work(group="quit", exclusive=True, exit_on_error=False)
    async def _quit(self) -> None:
        shown = next(filter(None, map(_run_screen, reversed(self.screen_stack))), None)
        if shown is None or await shown.may_leave():
            self.exit()

    def get_system_commands(self, screen: Screen[object]) -> Iterable[SystemCommand]:
        from workbench.tui.palette import actions_of

        yield from super().get_system_commands(screen)
        yield from actions_of(screen)

    # Telling

    def tell(self, message: str, *, severity: str = "information") -> None:
        """A toast; `message` is plain text."""
        self.notify(message, severity=severity, markup=False)  # type: ignore[arg-type]

    def remember_hidden(self, panels: tuple[str, ...]) -> None:
        """Keep which panels of the monitor are hidden."""
        self._remembered = replace(self._remembered, hidden_panels=panels)

    @property
    def remembered(self) -> Remembered:
        return self._remembered


def _run_screen(screen: Screen[Any]) -> RunScreen | None:
    """`screen`, where it shows a run; asked without importing what has not been needed yet."""
    module = sys.modules.get("workbench.tui.screens.run")
    return screen if module is not None and isinstance(screen, module.RunScreen) else None
