"""The application: which screen is seen, and the answers to what screens ask for.

Three parts stand beside each other, each with its own stack of screens: presets, runs and the monitor. Screens know
nothing of each other; they post the messages of `messages.py`, which are answered here alone. A screen is imported when
it is first seen: the first picture waits for nothing that it does not show.

Invariant: whatever ends the application, the terminal is as it was before.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import signal
import threading
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from textual import work
from textual.app import App, SystemCommand
from textual.binding import Binding, BindingType
from textual.command import Provider
from textual.screen import Screen
from textual.scrollbar import ScrollBar, ScrollBarRender

from workbench.errors import WorkbenchError
from workbench.tui.context import AppContext, read_ui_state, write_ui_state
from workbench.tui.contrast import readable
from workbench.tui.messages import CompareRuns, HidePanels, OpenPreset, OpenRun, ResumeRun, StartRun

if TYPE_CHECKING:
    from workbench.runs import RunDirectory
    from workbench.tui.run.screen import RunScreen
    from workbench.tui.screens.configure import ConfigureScreen
    from workbench.tui.screens.top import TopScreen

PARTS = ("presets", "runs", "top")
LOOK_FOR_RUNS_S = 5.0
ENDING = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
"""Signals that end the screen without a question. (Control-C is a key here, no signal.)"""
HANGUP_S = 5.0
"""From the end of the terminal to that of the process, at most."""


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
    """The whole screen. It begins with `run`, else with the part named `part`, else with the one seen last."""

    TITLE = "workbench"
    CSS_PATH = Path(__file__).with_name("workbench.tcss")
    COMMANDS: ClassVar[set[type[Provider] | Callable[[], type[Provider]]]] = {
        _system_commands,
        _presets_and_runs,
    }
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("P", "show_part('presets')", "Presets", id="app.presets", show=False),
        Binding("H", "show_part('runs')", "Runs", id="app.runs", show=False),
        Binding("M", "show_part('top')", "Machine", id="app.top", show=False),
        Binding("question_mark", "help", "Help", key_display="?", id="app.help"),
        Binding("f1", "help", "Help", id="app.help_anywhere"),
        Binding("escape", "back", "Back", id="app.back", show=False),
        Binding("q", "leave", "Back, at last quit", id="app.leave", show=False),
        Binding("ctrl+q", "quit", "Quit", id="app.quit", priority=True),
    ]

    def __init__(self, context: AppContext, *, part: str = "", run: RunDirectory | None = None) -> None:
        self._ui_state = read_ui_state()
        self._remembers_part = not (part or run)
        first = "runs" if run else part or self._ui_state.mode
        # Textual begins with this one: no other screen is made, styled and laid out before it.
        self.DEFAULT_MODE = first if first in PARTS else PARTS[0]  # type: ignore[misc]
        super().__init__()
        self.context = context
        # Textual keeps it for all scroll bars at once.
        ScrollBar.renderer = PlainScrollBarRender if context.glyphs.ascii else ScrollBarRender
        self._run = run
        self._training: RunDirectory | None = None
        """The newest run that trains here."""
        self._top_screen: TopScreen | None = None
        self._run_screen: RunScreen | None = None
        """The last screen that showed a run; it may have been left since."""
        self._forms: list[ConfigureScreen] = []
        """The forms that were opened; they may have been left since."""
        for name, make in (("presets", self._presets), ("runs", self._runs), ("top", self._top)):
            self.add_mode(name, make)
        if self._ui_state.theme in self.available_themes and "TEXTUAL_THEME" not in os.environ:
            self.theme = self._ui_state.theme
        self._first_theme = self.theme

    def _presets(self) -> Screen[None]:
        from workbench.tui.screens.presets import PresetsScreen

        return PresetsScreen(self.context)

    def _runs(self) -> Screen[None]:
        from workbench.tui.screens.runs import RunsScreen

        screen = RunsScreen(self.context)
        screen.call_after_refresh(self._import_run_screen)
        return screen

    def _top(self) -> Screen[None]:
        from workbench.tui.screens.top import TopScreen

        self._top_screen = TopScreen(self.context, hidden=self._ui_state.hidden_panels)
        self._top_screen.follow(self._training)
        return self._top_screen

    @work(thread=True, group="import", exit_on_error=False)
    def _import_run_screen(self) -> None:
        """Import what opening a run would wait for, while somebody looks for one in the list."""
        import workbench.tui.run.screen  # noqa: F401

    def get_css_variables(self) -> dict[str, str]:
        theme = self.current_theme
        # Textual takes the colours within a text from its attribute, those of styles from what is returned.
        self.theme_variables = readable(super().get_css_variables(), ansi=theme.ansi, dark=theme.dark)
        return self.theme_variables

    # Beginning and ending

    async def on_mount(self) -> None:
        for number in ENDING:
            # Textual would leave the terminal as it is.
            with contextlib.suppress(NotImplementedError, RuntimeError, ValueError):
                asyncio.get_running_loop().add_signal_handler(number, self._end, number)
        if self._run:
            self._open_run(self._run)
        self.call_after_refresh(self._begin_work)

    def _end(self, number: int) -> None:
        """End by a signal. Of a terminal that is gone, Textual's writer may never hear of the end and hold it up."""
        if number == signal.SIGHUP and not self.is_headless:
            last = threading.Timer(HANGUP_S, os._exit, (128 + number,))
            last.daemon = True
            last.start()
        self.exit(return_code=128 + number)

    def _begin_work(self) -> None:
        """Begin what would hold up the first picture."""
        gc.enable()
        self._set_keys()
        self.context.monitor.start()
        self._watch_newest_run()
        self.set_interval(LOOK_FOR_RUNS_S, self._look_for_runs)

    def _look_for_runs(self) -> None:
        """Have the monitor follow a run that has begun while it is shown."""
        if self.current_mode == "top":
            self._watch_newest_run()

    @work(thread=True, exclusive=True, group="watch", exit_on_error=False)
    def _watch_newest_run(self) -> None:
        """Have the monitor sample the newest run that trains here and the runs' disk, until a run is shown."""
        from workbench.runs.finding import newest_training

        root = self.context.runs_root.absolute()
        folder = next(path for path in (root, *root.parents) if path.exists())
        found = newest_training(root)
        self.context.monitor.watch(pid=None if found is None else found[1], folders=(folder,))
        self.call_from_thread(self._set_training, None if found is None else found[0])

    def _set_training(self, run: RunDirectory | None) -> None:
        if run != self._training:
            self._training = run
            if self._top_screen is not None:
                self._top_screen.follow(run)

    def on_unmount(self) -> None:
        self.context.monitor.stop()
        if self.theme != self._first_theme:  # it was chosen here, not in the environment
            self._ui_state = replace(self._ui_state, theme=self.theme)
        if self._remembers_part:
            self._ui_state = replace(self._ui_state, mode=self.current_mode)
        write_ui_state(self._ui_state)

    @work(group="keys")
    async def _set_keys(self) -> None:
        """Take the user's own keys. Their names are checked in a thread: it imports every screen."""
        from workbench.presets import user_folder

        folder = user_folder()
        path = None if folder is None else folder.parent / "keymap.toml"
        if path is None or not path.exists():
            return
        from workbench.tui.keymap import places, read_keymap

        keymap = await asyncio.to_thread(lambda: read_keymap(path, places()))
        self.set_keymap(keymap.keys)
        for problem in keymap.problems:
            self.report(problem, severity="warning")

    # What screens ask for

    def on_open_preset(self, message: OpenPreset) -> None:
        from workbench.tui.screens.configure import ConfigureScreen

        self._open_form(ConfigureScreen(self.context, message.path))

    @work(group="go")
    async def _open_form(self, form: ConfigureScreen) -> None:
        self._forms = [*(each for each in self._forms if each.is_attached), form]
        await self._show("presets")
        await self.push_screen(form)

    def on_open_run(self, message: OpenRun) -> None:
        self._open_run(message.run)

    @work(group="go")
    async def _open_run(self, run: RunDirectory) -> None:
        """Show a run, in the place of another one that is shown."""
        from workbench.tui.run.screen import RunScreen

        await self._show("runs")
        shown = self.screen
        if isinstance(shown, RunScreen) and shown.run == run:
            return
        self._run_screen = RunScreen(self.context, run)
        if isinstance(shown, RunScreen):
            await self.switch_screen(self._run_screen)
        else:
            await self.push_screen(self._run_screen)

    @work(group="go")
    async def on_compare_runs(self, message: CompareRuns) -> None:
        from workbench.tui.screens.compare import CompareScreen

        await self._show("runs")
        await self.push_screen(CompareScreen(self.context, message.runs))

    async def _show(self, part: str) -> None:
        """Show a part as it was left."""
        if self.current_mode != part:
            await self.switch_mode(part)

    def on_start_run(self, message: StartRun) -> None:
        from workbench.runs import launch

        if self._may_change("nothing is started"):
            self._begin(partial(launch.start, message.text, message.name, self.context.runs_root))

    def on_resume_run(self, message: ResumeRun) -> None:
        if self._may_change("nothing is resumed"):
            self._resume(message.run)

    @work(group="resume", exclusive=True)
    async def _resume(self, run: RunDirectory) -> None:
        """Ask for changes, of a stopped run mostly none, and go on with it."""
        from workbench.runs import launch
        from workbench.tui.run.steering import ask_changes, overrides_in, steps_done

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

    def _may_change(self, consequence: str) -> bool:
        """Tell whether this is more than a look; report where it is not."""
        if self.context.read_only:
            self.report(f"Read-only mode: {consequence}.", severity="warning")
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
            self.report(str(error), severity="error")
        else:
            self._open_run(run)

    # Actions

    async def action_show_part(self, name: str) -> None:
        await self._show(name)
        if name == "top":
            self._watch_newest_run()

    def action_help(self) -> None:
        from workbench.tui.screens.help import HelpScreen

        if not isinstance(self.screen, HelpScreen):
            self.push_screen(HelpScreen(self.screen, self.context.glyphs))

    async def action_back(self) -> None:
        """Leave the screen that is on top of a part."""
        if len(self.screen_stack) > 1:
            await self.pop_screen()

    async def action_leave(self) -> None:
        """Go back where there is something to go back to, else quit."""
        if len(self.screen_stack) > 1:
            self.pop_screen()
        else:
            await self.action_quit()

    async def action_quit(self) -> None:
        """End the application; a form with changes and a run that is watched are asked about first, once."""
        if not any(worker.group == "quit" and not worker.is_finished for worker in self.workers):
            self._quit()

    @work(group="quit")
    async def _quit(self) -> None:
        for screen in (*self._forms, self._run_screen):
            if screen is not None and screen.is_attached and not await screen.may_quit():
                return
        self.exit()

    @property
    def last_run(self) -> RunDirectory | None:
        """The run that was looked at last."""
        return None if self._run_screen is None else self._run_screen.run

    def get_system_commands(self, screen: Screen[object]) -> Iterable[SystemCommand]:
        from workbench.tui.palette import actions_of

        yield from super().get_system_commands(screen)
        yield from actions_of(screen)

    def report(self, message: str, *, severity: str = "information") -> None:
        """Show a toast; `message` is plain text."""
        self.notify(message, severity=severity, markup=False)  # type: ignore[arg-type]
