"""What the tests of all screens share; the modules in this folder can be imported from those below it."""

from __future__ import annotations

import asyncio
import inspect
from pathlib import Path

import pytest
import settled_pilot
from textual.pilot import Pilot


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test that is a coroutine function to its end."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = inspect.signature(pyfuncitem.obj).parameters
    asyncio.run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names}))
    return True


@pytest.fixture(autouse=True)
def settling(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every press, click and pause waits until the picture no longer changes, however busy the machine is."""
    for name in ("press", "click"):
        monkeypatch.setattr(Pilot, name, settled_pilot.and_then_pause(getattr(Pilot, name)))
    monkeypatch.setattr(Pilot, "pause", settled_pilot.pause)


@pytest.fixture
def own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty project, and folders of its own for what is kept of a user: that of presets, still to be made."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WORKBENCH_PRESETS", str(tmp_path / "user"))
    monkeypatch.setenv("WORKBENCH_CACHE", str(tmp_path / "cache"))
    return tmp_path / "user"
