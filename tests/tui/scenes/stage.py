"""What the scenes are played on: the application with a fixed clock, planned machines, and folders that are made anew.

Everything that differs between two machines is given here: time, samples, what is free, speeds, folders and the theme.
"""

from __future__ import annotations

import asyncio
import calendar
import os
import secrets
import shutil
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

from form_host import LARGE, SMALL, PlannedMachine
from screen_host import NEVER_S, NoMonitor
from settled_pilot import settled
from textual.pilot import Pilot
from textual.screen import Screen
from textual.widget import Widget
from textual.widgets import Input, TextArea

import workbench.tui
from scenes.picture import Picture, picture_of
from workbench.presets import Preset, list_presets
from workbench.tui.app import WorkbenchApp
from workbench.tui.context import AppContext
from workbench.tui.glyphs import BLOCKS, Glyphs
from workbench.tui.messages import OpenPreset
from workbench.tui.screens.configure import ConfigureScreen
from workbench.tui.screens.presets import PresetsScreen

NOW = float(calendar.timegm((2026, 3, 14, 15, 9, 26)))
"""When all scenes play, unix seconds."""
SHOWN_FOLDER = "/home/ada/train"
"""The folder of a scene as pictures show it; the real one is as long, and another each time."""
_ROOT = "/tmp/"
_THEME = "textual-dark"


class StagedApp(WorkbenchApp):
    """The application, planning on a machine that is given."""

    CSS_PATH = Path(workbench.tui.__file__).parent / "workbench.tcss"
    machine = "desktop-32gb"

    def _presets(self) -> Screen[None]:
        return PresetsScreen(self.context, PlannedMachine(self.machine))

    def on_open_preset(self, message: OpenPreset) -> None:
        screen = ConfigureScreen(self.context, message.path, PlannedMachine(self.machine))
        screen.live.profile_after_s = 0.001
        message.prevent_default()
        self._open_form(screen)


@dataclass
class Stage:
    """What a scene acts on."""

    app: StagedApp
    pilot: Pilot[None]
    monitor: NoMonitor
    folder: Path

    async def settle(self) -> None:
        """Until nothing is going on any more."""
        await settled(self.pilot)
        self._hold_cursors()
        await settled(self.pilot)

    def _hold_cursors(self) -> None:
        for field in self.app.screen.query("Input, TextArea"):
            assert isinstance(field, Input | TextArea)
            field.cursor_blink = False

    @property
    def widgets(self) -> list[Widget]:
        """All that are seen."""
        return [
            widget
            for widget in self.app.screen.walk_children(Widget)
            if widget.is_on_screen and widget.region
        ]

    async def press(self, *keys: str) -> None:
        await self.pilot.press(*keys)
        await self.settle()


@contextmanager
def _folder() -> Iterator[Path]:
    """A folder whose path is as long as SHOWN_FOLDER, gone at the end."""
    letters = "bcdfghjklmnpqrstvwxz"  # neither a word nor a number that a screen shows
    while True:
        name = "".join(secrets.choice(letters) for _ in range(len(SHOWN_FOLDER) - len(_ROOT)))
        folder = Path(_ROOT + name)
        with suppress(FileExistsError):
            folder.mkdir(mode=0o700)
            break
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


@contextmanager
def _environment(values: Mapping[str, str | None]) -> Iterator[None]:
    """With these variables set, or not set where None; the time zone follows."""
    before = {name: os.environ.get(name) for name in values}
    try:
        for name, value in values.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value
        time.tzset()
        yield
    finally:
        for name, old in before.items():
            os.environ.pop(name, None)
            if old is not None:
                os.environ[name] = old
        time.tzset()


def _few_presets() -> list[Preset]:
    """Those of the user, and of the others two: another one that is shipped changes no picture."""
    return [
        preset for preset in list_presets() if preset.origin != "shipped" or preset.path in (LARGE, SMALL)
    ]


@contextmanager
def _in_folder(folder: Path) -> Iterator[None]:
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


def photograph(
    play: Callable[[Stage], object],
    size: tuple[int, int],
    *,
    part: str = "presets",
    glyphs: Glyphs = BLOCKS,
    no_color: bool = False,
    prepare: Callable[[Path], object] | None = None,
    hold: Callable[[Path], Awaitable[None]] | None = None,
) -> Picture:
    """What is seen when `play`, a coroutine function, has been played on a screen of `size` cells.

    `part`: of the application, seen first. `prepare`: fills the folder that runs and presets lie in, "runs" and "own"
    below it, before that. `hold`: the screen is this process's terminal, and shows the scene until `hold`, called with
    that folder, returns; without it nothing is written to a terminal.
    """
    with _folder() as folder:
        variables = {
            "TZ": "UTC",
            "NO_COLOR": "1" if no_color else None,
            "WORKBENCH_PRESETS": str(folder / "own"),
            "WORKBENCH_CACHE": str(folder / "cache"),
            "WORKBENCH_RUNS": None,
        }
        few = patch("workbench.tui.screens.presets.list_presets", _few_presets)
        by_name = patch("workbench.presets.FIRST", "")  # what a scene goes to by its keys stays where it is
        with _environment(variables), _in_folder(folder), few, by_name:
            if prepare is not None:
                prepare(folder)
            picture = asyncio.run(_play(play, size, part, glyphs, folder, hold))
    return with_shown_folder(picture, str(folder))


def with_shown_folder(picture: Picture, folder: str) -> Picture:
    """With SHOWN_FOLDER in the place of `folder`, also where its end is cut off or hidden."""
    for end in range(len(folder), len(_ROOT), -1):
        picture = picture.replaced(folder[:end], SHOWN_FOLDER[:end])
    left = [
        line
        for line in picture.lines
        if any(folder[at : at + 4] in line for at in range(len(_ROOT), len(folder) - 3))
    ]
    assert not left, f"the folder's name shows: {left}"
    return picture


async def _play(
    play: Callable[[Stage], object],
    size: tuple[int, int],
    part: str,
    glyphs: Glyphs,
    folder: Path,
    hold: Callable[[Path], Awaitable[None]] | None,
) -> Picture:
    monitor = NoMonitor()
    context = AppContext(folder / "runs", monitor, glyphs, lambda: NOW, NEVER_S)
    app = StagedApp(context, part=part)
    app.animation_level = "none"
    app.theme = _THEME
    async with app.run_test(headless=hold is None, size=size) as pilot:
        stage = Stage(app, pilot, monitor, folder)
        await stage.settle()
        await play(stage)  # type: ignore[misc]
        await stage.settle()
        outside = [f"{widget}" for widget in stage.widgets if not _is_within(widget, size[0])]
        assert not outside, f"wider than the screen: {outside}"
        if hold is not None:
            await hold(folder)
        return picture_of(app)


def _is_within(widget: Widget, width: int) -> bool:
    """Whether it is not wider than what it lies in."""
    above = widget.parent
    room = above.region.right if isinstance(above, Widget) and not above.allow_horizontal_scroll else width
    return widget.region.x >= 0 and widget.region.right <= min(width, room)
