"""An application that shows one screen, on a planned machine and with model profiles that are given, not taken."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from screen_host import NoMonitor
from textual.app import App
from textual.message import Message
from textual.screen import Screen

from workbench import presets
from workbench.config import load_config
from workbench.errors import WorkbenchError
from workbench.plan.machine import Machine, planned_machine
from workbench.plan.planner import Plan, Planner
from workbench.presets import shipped_folder
from workbench.profiles.model_profile import ModelProfile
from workbench.profiles.named_machines import load_profile
from workbench.profiles.obtain import read_shipped
from workbench.system.child_process import CancelledError
from workbench.tui.app import WorkbenchApp
from workbench.tui.context import AppContext
from workbench.tui.contrast import CURVES
from workbench.tui.form.planner import Report, ThisMachine
from workbench.tui.glyphs import BLOCKS, Glyphs
from workbench.tui.messages import OpenPreset, StartRun

LARGE = shipped_folder() / "gpt2-10b.toml"
SMALL = shipped_folder() / "quickstart.toml"


def ship_two_presets(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let copies of LARGE and SMALL in `folder` be all the presets that come with workbench."""
    monkeypatch.setattr("workbench.presets.FIRST", "")
    folder.mkdir()
    for preset in (LARGE, SMALL):
        (folder / preset.name).write_bytes(preset.read_bytes())
    monkeypatch.setattr(presets, "shipped_folder", lambda: folder)


def shipped_model_profile(preset: Path) -> ModelProfile:
    model_profile = read_shipped(load_config(preset).model.model_dump())
    assert model_profile is not None
    return model_profile


def large_plan() -> Plan:
    """The plan of the large preset on the planned machine, on which it does not fit."""
    return Planner(shipped_model_profile(LARGE), PlannedMachine().now).plan(load_config(LARGE))


def large_lacks() -> str:
    """What it lacks, in words: "lacks 3.20 GiB of host"."""
    return f"lacks {large_plan().memory.lacking}"


class PlannedMachine(ThisMachine):
    """Sources that know the shipped model profiles; another model's has to be taken, and is the small one's.

    `asked`: the tables whose model profile was taken. With `hold` taking waits until it is let go or called off.
    """

    def __init__(self, profile: str | None = "desktop-32gb") -> None:
        super().__init__(Path("runs"))
        known = planned_machine(load_profile(Path(profile or "desktop-32gb")))
        self.now = known if profile else Machine(known.name, known.free, known.has_bfloat16, None)
        self.measured = known
        self.asked: list[dict[str, Any]] = []
        self.cancels: list[Event] = []
        self.looks = 0
        self.refusal: WorkbenchError | None = None
        self.may_answer = threading.Event()
        self.may_answer.set()
        self.is_ready = False
        """Whether what takes a model profile was asked to be there, and was not let go since."""

    def hold(self) -> None:
        self.may_answer.clear()

    def start_profiler(self) -> None:
        self.is_ready = True

    def stop_profiler(self) -> None:
        self.is_ready = False

    def known_model_profile(self, model: Mapping[str, Any]) -> ModelProfile | None:
        return read_shipped(model)

    def take_model_profile(self, model: Mapping[str, Any], report: Report, cancelled: Event) -> ModelProfile:
        self.asked.append(dict(model))
        self.cancels.append(cancelled)
        report("profiling the model, as a test")
        while not self.may_answer.wait(0.005):
            if cancelled.is_set():
                raise CancelledError
        if self.refusal is not None:
            raise self.refusal
        return shipped_model_profile(SMALL).model_copy(update={"positions": None})  # whatever the sequences

    def machine(self, device: str, disk_path: str) -> Machine:
        self.looks += 1
        return self.now

    def measure(self, device: str, disk_path: str, report: Report, cancelled: Event) -> None:
        self.cancels.append(cancelled)
        report("the memory's speed")
        while not self.may_answer.wait(0.005):
            if cancelled.is_set():
                raise CancelledError
        self.now = self.measured


def context(runs: Path, glyphs: Glyphs = BLOCKS, **others: Any) -> AppContext:
    return AppContext(runs, NoMonitor(), glyphs=glyphs, clock=lambda: 1_700_000_000.0, **others)


class OneScreen(App[None]):
    """Shows one screen and keeps what it asks for."""

    CSS_PATH = WorkbenchApp.CSS_PATH

    def __init__(self, screen: Screen[Any]) -> None:
        super().__init__()
        self.shown = screen
        self.asked: list[Message] = []
        self.told: list[str] = []

    def get_theme_variable_defaults(self) -> dict[str, str]:
        return CURVES

    def on_mount(self) -> None:
        self.push_screen(self.shown)

    def on_start_run(self, message: StartRun) -> None:
        self.asked.append(message)

    def on_open_preset(self, message: OpenPreset) -> None:
        self.asked.append(message)

    def notify(self, message: str, **options: Any) -> None:
        self.told.append(message)
        super().notify(message, **options)
