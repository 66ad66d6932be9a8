"""What the tests of all screens share; the modules in this folder can be imported from those below it."""

from __future__ import annotations

from pathlib import Path

import pytest
import settled_pilot
from textual.pilot import Pilot


@pytest.fixture(autouse=True)
def settling(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every press and pause waits until the screen has settled, however busy the machine is."""
    monkeypatch.setattr(Pilot, "_wait_for_screen", settled_pilot.SETTLING)


@pytest.fixture
def own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty project, and folders of its own for what is kept of a user: that of presets, still to be made."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WORKBENCH_PRESETS", str(tmp_path / "user"))
    monkeypatch.setenv("WORKBENCH_CACHE", str(tmp_path / "cache"))
    return tmp_path / "user"
