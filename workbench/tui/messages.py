"""The requests that a screen posts to the application: another screen, or a run. Screens know each other by these."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from textual.message import Message

if TYPE_CHECKING:
    from workbench.runs import RunDirectory


@dataclass
class OpenPreset(Message):
    """Show the form of the preset in this file."""

    path: Path


@dataclass
class OpenRun(Message):
    """Show this run, active or ended."""

    run: RunDirectory


@dataclass
class StartRun(Message):
    """Train this configuration in a process of its own, then show the run. `text` is TOML, `name` the preset's."""

    text: str
    name: str


@dataclass
class ResumeRun(Message):
    """Continue this run from its last checkpoint, in a process of its own, then show it."""

    run: RunDirectory


@dataclass
class CompareRuns(Message):
    """Show the curves of these runs on shared axes, and how their configurations differ."""

    runs: tuple[RunDirectory, ...]


@dataclass
class HidePanels(Message):
    """Remember that these panels of the monitor, named by their ids, are hidden."""

    names: tuple[str, ...]
