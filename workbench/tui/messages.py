"""What a screen asks of the application: another screen, or a run. Screens know each other through these alone."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from textual.message import Message

if TYPE_CHECKING:
    from workbench.runs import RunDirectory


class OpenPreset(Message):
    """Show the form of the preset in this file."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path


class OpenRun(Message):
    """Show this run, living or ended."""

    def __init__(self, run: RunDirectory) -> None:
        super().__init__()
        self.run = run


class StartRun(Message):
    """Train this configuration in a process of its own, then show the run. `text` is TOML, `name` the preset's."""

    def __init__(self, text: str, name: str) -> None:
        super().__init__()
        self.text = text
        self.name = name


class ResumeRun(Message):
    """Continue this run from its last checkpoint, in a process of its own, then show it."""

    def __init__(self, run: RunDirectory) -> None:
        super().__init__()
        self.run = run


class CompareRuns(Message):
    """Show these runs' curves on shared axes, and how their configurations differ."""

    def __init__(self, runs: tuple[RunDirectory, ...]) -> None:
        super().__init__()
        self.runs = runs


class HidePanels(Message):
    """From now on these panels of the monitor are hidden, next time too. `names` are their ids."""

    def __init__(self, names: tuple[str, ...]) -> None:
        super().__init__()
        self.names = names
