"""The whole application on a planned machine, with runs made on the spot and a folder of its own for what it keeps."""

from __future__ import annotations

import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from form_host import PlannedMachine
from screen_host import NEVER_S, NoMonitor, until
from settled_pilot import settled
from textual.message import Message
from textual.notifications import SeverityLevel
from textual.pilot import Pilot

from workbench.runs import RunDirectory, Status, write_status
from workbench.runs.status import process_started
from workbench.tui.app import WorkbenchApp
from workbench.tui.context import AppContext
from workbench.tui.glyphs import BLOCKS, Glyphs

CONFIG = '[model]\narchitecture = "gpt2"\n[train]\nsteps = 100\n'


class Watched(NoMonitor):
    """Counts how often it was begun and ended."""

    def __init__(self) -> None:
        super().__init__()
        self.begun = self.ended = 0

    def start(self) -> None:
        self.begun += 1

    def stop(self) -> None:
        self.ended += 1


class App(WorkbenchApp):
    """Keeps what it reports."""

    def __init__(self, context: AppContext, **words: Any) -> None:
        self.reports: list[tuple[str, SeverityLevel]] = []
        super().__init__(context, **words)

    def notify(self, message: str, *, severity: SeverityLevel = "information", **others: Any) -> None:
        self.reports.append((message, severity))
        super().notify(message, severity=severity, **others)

    @property
    def shown(self) -> str:
        """The class of the screen that is seen."""
        return type(self.screen).__name__

    async def open(self, pilot: Pilot[None], message: Message, screen: str) -> None:
        """Post a request, and wait for the screen that answers it."""
        self.screen.post_message(message)
        await until(pilot, lambda: self.shown == screen)
        await settled(pilot)

    @property
    def stack(self) -> list[str]:
        return [type(screen).__name__ for screen in self.screen_stack]


class House:
    """The folders of one test, and applications in them."""

    def __init__(self, folder: Path) -> None:
        self.runs = folder / "runs"
        self.presets = folder / "config" / "workbench" / "presets"
        self.monitor = Watched()

    def preset(self, name: str, text: str = CONFIG) -> Path:
        self.presets.mkdir(parents=True, exist_ok=True)
        path = self.presets / f"{name}.toml"
        path.write_text(text)
        return path

    def keymap(self, text: str) -> None:
        self.presets.parent.mkdir(parents=True, exist_ok=True)
        (self.presets.parent / "keymap.toml").write_text(text)

    def run(self, number: int = 1, *, living: bool = False, finished: bool = False) -> RunDirectory:
        """A run that was stopped, or has done its 12 steps, or that this very process trains."""
        run = RunDirectory(self.runs / f"20260101-0000{number:02d}-tiny-{number:06x}")
        run.checkpoints.mkdir(parents=True)
        run.events.touch()
        run.config.write_text(CONFIG)
        pid = os.getpid() if living else 0
        status = Status(
            phase="training" if living else "finished" if finished else "stopped",
            step=12,
            total_steps=12 if finished else 100,
            loss=3.25,
            elapsed_s=75.0,
            pid=pid,
            host=socket.gethostname() if living else "",
            pid_started=(process_started(pid) or 0.0) if living else 0.0,
            exit_code=None if living else 0 if finished else 143,
        )
        write_status(run, status, durable=False)
        return run

    def app(self, *, read_only: bool = False, glyphs: Glyphs = BLOCKS, **words: Any) -> App:
        around = AppContext(self.runs, self.monitor, glyphs=glyphs, interval_s=NEVER_S, read_only=read_only)
        return App(around, **words)

    @asynccontextmanager
    async def shown(
        self, *, size: tuple[int, int] = (80, 24), **options: Any
    ) -> AsyncIterator[tuple[App, Pilot[None]]]:
        """Show the application until the block ends."""
        app = self.app(**options)
        async with app.run_test(size=size) as pilot:
            await settled(pilot)
            yield app, pilot


def house(folder: Path, monkeypatch: pytest.MonkeyPatch) -> House:
    """Nothing of the user's is read or written, and no machine is looked at."""
    for name in ("TEXTUAL_THEME", "NO_COLOR", "WORKBENCH_PRESETS", "SSH_CONNECTION"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("WORKBENCH_CACHE", str(folder / "cache"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(folder / "config"))
    monkeypatch.chdir(folder)
    machine = PlannedMachine()
    for module in ("form.planner", "screens.configure"):
        monkeypatch.setattr(f"workbench.tui.{module}.ThisMachine", lambda root: machine)
    return House(folder)
