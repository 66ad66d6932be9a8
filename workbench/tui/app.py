"""The application: which screen is seen, and what screens ask of it. Each screen is a file of its own in `screens/`.

Three parts stand beside each other, each with its own stack of screens: presets, runs and the monitor. Screens know
nothing of each other; they post the messages of `messages.py`, and these are answered here alone.

A screen is imported when it is first seen: the first picture waits for nothing that it does not show.

Invariant: whatever ends the application, the terminal is as it was before.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import signal
import sys
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from textual import work
from textual.app import App, SystemCommand
from textual.binding import Binding, BindingType
from textual.command import Provider
from textual.constants import DEFAULT_THEME
from textual.screen import Screen
from textual.scrollbar import ScrollBar, ScrollBarRender
from textual.worker import WorkerFailed

from workbench.errors import WorkbenchError
from workbench.tui.context import AppContext
from workbench.tui.hangup import ignore_continuing_without_terminal
from workbench.tui.messages import CompareRuns, HidePanels, OpenPreset, OpenRun, ResumeRun, StartRun
from workbench.tui.ui_state import read_ui_state, write_ui_state

if TYPE_CHECKING:
    from rich.console import RenderableType

    from workbench.runs import RunDirectory
    from workbench.tui.keymap import Keymap
    from workbench.tui.run.screen import RunScreen
    from workbench.tui.screens.configure import ConfigureScreen

PARTS = ("presets", "runs", "top")
ENDING = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
"""Signals that end the screen as `q` does, but unasked. (Control-C is a key here, no signal.)"""


def _system_commands() -> type[Provider]:
    from textual.system_commands import SystemCommandsProvider

    return SystemCommandsProvider


def _presets_and_runs() -> type[Provider]:
    from workbench.tui.palette import PresetsAndRuns

    return PresetsAndRuns


class PlainScrollBarRender(ScrollBarRender):
    """Scroll bars of whole cells, drawn with blanks alone."""

    VERTICAL_BARS: ClassVar[list[str]] = [" "] * 8
    HORIZONTAL_BARS: ClassVar[list[str]] = [" "] * 8


class WorkbenchApp(App[None]):
    """The whole screen. `run`: begin with this run; else with the part named `part`, or the one seen last."""

    TITLE = "workbench"
    CSS_PATH = Path(__file__).with_name("workbench.tcss")
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

    def __init__(self, context: AppContext, *, part: str = "", run: RunDirectory | None = None) -> None:
        self._ui_state = read_ui_state()
        self._chosen_part = bool(part or run)
        """Whether somebody asked for this part; then it is not remembered as the one seen last."""
        first = "runs" if run else part or self._ui_state.mode
        # Textual begins with this one: no other screen is made, styled and laid out before it.
        self.DEFAULT_MODE = first if first in PARTS else PARTS[0]  # type: ignore[misc]
        super().__init__()
        self.context = context
        # Textual keeps it for all scroll bars at once.
        ScrollBar.renderer = PlainScrollBarRender if context.glyphs.ascii else ScrollBarRender
        self.failure: Exception | None = None
        """What nobody expected and ended the application."""
        self._run = run
        self._shown_run: RunScreen | None = None
        """The screen that shows a run, in whatever part; it may have been left since."""
        self._forms: list[ConfigureScreen] = []
        """Those that were opened; they may have been left since."""
        for name, make in (("presets", self._presets), ("runs", self._runs), ("top", self._top)):
            self.add_mode(name, make)
        if self._ui_state.theme in self.available_themes and "TEXTUAL_THEME" not in os.environ:
            # The first picture has its colours; its classes follow.
            self.set_reactive(App.theme, self._ui_state.theme)
            self.stylesheet.set_variables(self.get_css_variables())
        self._first_theme = self.theme

    def _presets(self) -> Screen[None]:
        from workbench.tui.screens.presets import PresetsScreen

        return PresetsScreen(self.context)

    def _runs(self) -> Screen[None]:
        from workbench.tui.screens.runs import RunsScreen

        screen = RunsScreen(self.context)
        screen.call_after_refresh(self._import_run)
        return screen

    def _top(self) -> Screen[None]:
        from workbench.tui.screens.top import TopScreen

        return TopScreen(self.context, hidden=self._ui_state.hidden_panels)

    @work(thread=True, group="import", exit_on_error=False)
    def _import_run(self) -> None:
        """While somebody looks for a run in the list: what opening one would have to wait for."""
        import workbench.tui.run.screen  # noqa: F401

    # Beginning and ending

    async def on_mount(self) -> None:
        for number in ENDING:
            # Textual would leave the terminal as it is.
            with contextlib.suppress(NotImplementedError, RuntimeError, ValueError):
                asyncio.get_running_loop().add_signal_handler(number, self._end_by_signal, number)
        ignore_continuing_without_terminal()
        if self.theme != DEFAULT_THEME:
            self.mutate_reactive(App.theme)
        if self._run:
            self._open_run(self._run)
        self.call_after_refresh(self._begin_work)

    def _begin_work(self) -> None:
        """What would hold up the first picture."""
        gc.enable()
        self._set_keys()
        self.context.monitor.start()
        self._watch_newest()

    @work(thread=True, group="watch", exit_on_error=False)
    def _watch_newest(self) -> None:
        """Until a run is shown: the newest one that trains here, and the disk of the runs."""
        from workbench.runs.summary import newest_trainer

        root = self.context.runs_root.absolute()
        folder = next(path for path in (root, *root.parents) if path.exists())
        self.context.monitor.watch(pid=newest_trainer(root), folders=(folder,))

    def on_unmount(self) -> None:
        self.context.monitor.stop()
        if self.theme != self._first_theme:  # it was chosen here, not in the environment
            self._ui_state = replace(self._ui_state, theme=self.theme)
        if not self._chosen_part:
            self._ui_state = replace(self._ui_state, mode=self.current_mode)
        write_ui_state(self._ui_state)

    def _end_by_signal(self, number: int) -> None:
        self.exit(return_code=128 + number)

    def _fatal_error(self) -> None:
        """Kept for whoever started this, who turns it into one line; Textual would print a traceback."""
        error = self._exception
        self.failure = error.error if isinstance(error, WorkerFailed) else error  # type: ignore[assignment]
        self._close_messages_no_wait()

    def panic(self, *renderables: RenderableType) -> None:
        """The same for an exception that Textual can draw."""
        if self._exception is None:
            self._exception = RuntimeError(" ".join(map(str, renderables)))
        self._fatal_error()

    @work(group="keys")
    async def _set_keys(self) -> None:
        """Take the user's own keys. Their names are checked in a thread: it imports every screen."""
        from workbench.presets import user_folder
        from workbench.tui.keymap import FILE_NAME, read_keymap

        folder = user_folder()
        path = None if folder is None else folder.parent / FILE_NAME
        if path is None or not path.exists():
            return

        def read() -> Keymap:
            from workbench.tui.bindings import places

            return read_keymap(path, places())

        keymap = await asyncio.to_thread(read)
        self.set_keymap(keymap.keys)
        for problem in keymap.problems:
            self.tell(problem, severity="warning")

    @property
    def _background_screens(self) -> list[Screen[Any]]:
        """The screens that show through the one on top: none where that is opaque.

        Textual counts the one beneath it always, and each message to that one would redraw all of the one on top.
        """
        return [] if self.screen.styles.background.a == 1 else super()._background_screens

    # What screens ask for

    def on_open_preset(self, message: OpenPreset) -> None:
        from workbench.tui.screens.configure import ConfigureScreen

        form = ConfigureScreen(self.context, message.path)
        self._forms = [*(each for each in self._forms if each.is_attached), form]
        self._go("presets", form)

    def on_open_run(self, message: OpenRun) -> None:
        self._open_run(message.run)

    def on_compare_runs(self, message: CompareRuns) -> None:
        from workbench.tui.screens.compare import CompareScreen

        self._go("runs", CompareScreen(self.context, message.runs))

    def on_start_run(self, message: StartRun) -> None:
        from workbench.runs import launch

        if self._may_change("nothing is started"):
            self._begin(partial(launch.start, message.text, message.name, self.context.runs_root))

    def on_resume_run(self, message: ResumeRun) -> None:
        if self._may_change("nothing is resumed"):
            self._resume(message.run)

    @work(group="resume", exclusive=True)
    async def _resume(self, run: RunDirectory) -> None:
        """Ask what is to be changed, of a stopped run mostly nothing, and go on with it."""
        from workbench.runs import launch
        from workbench.tui.run.resuming import ask_changes, overrides_in, steps_done

        done = await asyncio.to_thread(steps_done, run)
        text = await self.push_screen_wait(ask_changes(run, done, self.context.glyphs))
        if text is None:
            return

        def resume() -> RunDirectory:
            launch.resume(run, overrides_in(text))
            return run

        self._begin(resume)

    def on_hide_panels(self, message: HidePanels) -> None:
        self._ui_state = replace(self._ui_state, hidden_panels=message.names)

    def _may_change(self, else_what: str) -> bool:
        """Whether this is more than a look; tells where it is not."""
        if self.context.read_only:
            self.tell(f"This is a read-only look: {else_what}.", severity="warning")
        return not self.context.read_only

    @work(group="begin")
    async def _begin(self, begin: Callable[[], RunDirectory]) -> None:
        """Start a trainer, in a thread, and show its run."""
        for form in self._forms:
            # What takes model profiles holds memory that plans give to the run.
            await asyncio.to_thread(form.release_memory)
        try:
            run = await asyncio.to_thread(begin)
        except WorkbenchError as error:
            self.tell(str(error), severity="error")
            return
        self._open_run(run)

    def _open_run(self, run: RunDirectory) -> None:
        from workbench.tui.run.screen import RunScreen

        self._go("runs", RunScreen(self.context, run))

    @work(group="go")
    async def _go(self, part: str, screen: Screen[None]) -> None:
        """Put `screen` on top of a part and show that. A run that is shown already is shown once."""
        if self.current_mode != part:
            await self.switch_mode(part)
        seen, wanted = _run_screen(self.screen), _run_screen(screen)
        if seen is not None and wanted is not None and seen.run == wanted.run:
            return
        self._shown_run = wanted or self._shown_run
        if seen is not None and wanted is not None:
            await self.switch_screen(screen)
        else:
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
            self.push_screen(HelpScreen(self.screen, self.context.glyphs))

    async def action_back(self) -> None:
        """Leave the screen that is on top of a part."""
        if len(self.screen_stack) > 1:
            await self.pop_screen()

    def action_leave(self) -> None:
        """Back where there is something to go back to, else quit."""
        if len(self.screen_stack) > 1:
            self.pop_screen()
        else:
            self._quit()

    async def action_quit(self) -> None:
        """End the application; a form with changes and a run that is watched are asked about first."""
        self._quit()

    @work(group="quit")
    async def _quit(self) -> None:
        for form in self._forms:
            if form.is_attached and not await form.may_quit():
                return
        shown = self._shown_run
        if shown is None or not shown.is_attached or await shown.may_leave():
            self.exit()

    def get_system_commands(self, screen: Screen[object]) -> Iterable[SystemCommand]:
        from workbench.tui.palette import actions_of

        yield from super().get_system_commands(screen)
        yield from actions_of(screen)

    # Telling

    def tell(self, message: str, *, severity: str = "information") -> None:
        """A toast; `message` is plain text."""
        self.notify(message, severity=severity, markup=False)  # type: ignore[arg-type]


def _run_screen(screen: Screen[Any]) -> RunScreen | None:
    """`screen`, where it shows a run; asked without importing what has not been needed yet."""
    module = sys.modules.get("workbench.tui.run.screen")
    return screen if module is not None and isinstance(screen, module.RunScreen) else None
