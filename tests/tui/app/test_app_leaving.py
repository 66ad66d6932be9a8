"""Going back, quitting, and quitting where a run trains; and how a failure and a signal end the application."""

from __future__ import annotations

import os
import signal
from typing import NoReturn

import pytest
from screen_host import text_of, until
from textual.pilot import Pilot
from whole_app import App, House, Scenario, settled

from workbench.runs import RunDirectory
from workbench.tui import command
from workbench.tui.app import ENDING, WorkbenchApp
from workbench.tui.form.preset_list import PresetTable
from workbench.tui.messages import OpenPreset, OpenRun
from workbench.tui.screens.configure import ConfigureScreen


@pytest.mark.parametrize("key", ["escape", "q"])
def test_a_key_goes_back_to_the_part_and_q_then_quits(house: House, key: str) -> None:
    path = house.preset("tiny")

    async def scenario(app: App, pilot: Pilot[None]) -> None:
        app.screen.post_message(OpenPreset(path))
        await until(pilot, lambda: app.shown == "ConfigureScreen")
        await settled(pilot)
        app.screen.set_focus(None)  # where letters are typed, q is one
        await pilot.press(key)
        await until(pilot, lambda: app.stack == ["PresetsScreen"])
        await pilot.press("escape")
        await settled(pilot)
        assert app.is_running and app.return_code is None
        await pilot.press("q")
        await until(pilot, lambda: app.return_code == 0)

    house.drive(scenario)


@pytest.mark.parametrize("part", ["presets", "runs", "top"])
def test_q_quits_from_every_part(house: House, part: str) -> None:
    async def scenario(app: App, pilot: Pilot[None]) -> None:
        await pilot.press("q")
        await until(pilot, lambda: app.return_code == 0)

    house.drive(scenario, part=part)


def quit_with_run(run: RunDirectory, *keys: str) -> Scenario:
    async def scenario(app: App, pilot: Pilot[None]) -> None:
        app.post_message(OpenRun(run))
        await until(pilot, lambda: app.shown == "RunScreen")
        await settled(pilot)
        await pilot.press(*keys)

    return scenario


@pytest.mark.parametrize("keys", [("ctrl+q",), ("M", "ctrl+q"), ("P", "q")], ids="+".join)
def test_quitting_asks_where_a_living_run_is_watched_from_whatever_part(
    house: House, keys: tuple[str, ...]
) -> None:
    run = house.run(living=True)

    async def scenario(app: App, pilot: Pilot[None]) -> None:
        await quit_with_run(run, *keys)(app, pilot)
        await until(pilot, lambda: app.shown == "Choice")
        await pilot.press("ctrl+q")  # a second time asks no second question
        await settled(pilot)
        assert app.stack.count("Choice") == 1
        await pilot.press("escape")
        await until(pilot, lambda: app.shown != "Choice")
        await settled(pilot)
        assert app.return_code is None
        await pilot.press(keys[-1])
        await until(pilot, lambda: app.shown == "Choice")
        await pilot.press("1")  # detach
        await until(pilot, lambda: app.return_code == 0)

    house.drive(scenario)
    assert not run.control.exists()


def test_quitting_asks_nothing_where_the_run_has_ended_or_was_left(house: House) -> None:
    ended, living = house.run(1), house.run(2, living=True)

    async def left(app: App, pilot: Pilot[None]) -> None:
        await quit_with_run(living, "escape")(app, pilot)
        await until(pilot, lambda: app.shown == "Choice")
        await pilot.press("1")
        await until(pilot, lambda: app.stack == ["RunsScreen"])
        await pilot.press("ctrl+q")
        await until(pilot, lambda: app.return_code == 0)

    async def over(app: App, pilot: Pilot[None]) -> None:
        await quit_with_run(ended, "ctrl+q")(app, pilot)
        await until(pilot, lambda: app.return_code == 0)

    house.drive(left)
    house.drive(over)


@pytest.mark.parametrize("number", ENDING)
def test_a_signal_ends_it_with_its_own_exit_code(house: House, number: signal.Signals) -> None:
    before = signal.getsignal(number)

    async def scenario(app: App, pilot: Pilot[None]) -> None:
        os.kill(os.getpid(), number)
        await until(pilot, lambda: app.return_code == 128 + number)

    house.drive(scenario)
    assert signal.getsignal(number) == before


def fail(*_: object) -> NoReturn:
    raise RuntimeError("no [picture]")


def test_a_screen_that_fails_ends_it_with_that_exception_alone(
    house: House, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(PresetTable, "render_line", fail)
    headless = WorkbenchApp.run
    monkeypatch.setattr(WorkbenchApp, "run", lambda self: headless(self, headless=True, size=(80, 24)))
    with pytest.raises(RuntimeError, match=r"no \[picture\]"):
        command.show(house.runs)
    printed = capsys.readouterr()
    assert printed.out == printed.err == ""


def test_a_worker_that_fails_ends_it_with_its_own_exception(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work() -> NoReturn:
        raise KeyError("of a worker")

    monkeypatch.setattr(WorkbenchApp, "on_load", lambda self: self.run_worker(work()), raising=False)
    headless = WorkbenchApp.run
    monkeypatch.setattr(WorkbenchApp, "run", lambda self: headless(self, headless=True, size=(80, 24)))
    with pytest.raises(KeyError, match="of a worker"):
        command.show(house.runs)


@pytest.mark.parametrize("keys", [("ctrl+q",), ("M", "q")], ids="+".join)
def test_quitting_asks_where_a_form_has_changes_that_are_not_saved(
    house: House, keys: tuple[str, ...]
) -> None:
    path = house.preset("tiny")

    async def scenario(app: App, pilot: Pilot[None]) -> None:
        app.screen.post_message(OpenPreset(path))
        await until(pilot, lambda: app.shown == "ConfigureScreen")
        await settled(pilot)
        form = app.screen
        assert isinstance(form, ConfigureScreen)
        form.draft.set("train.steps", 77)
        form.draft_changed()
        form.set_focus(None)  # where letters are typed, M is one
        await pilot.press(*keys)
        await until(pilot, lambda: app.shown == "Confirm")
        assert "In the form of tiny 1 field is changed" in " ".join(text_of(app).split())
        await pilot.press("ctrl+q")  # a second time asks no second question
        await settled(pilot)
        assert app.stack.count("Confirm") == 1
        await pilot.press("enter")  # the focus is on staying
        await until(pilot, lambda: app.shown != "Confirm")
        assert app.return_code is None and form.draft.value("train.steps") == 77
        await pilot.press(keys[-1])
        await until(pilot, lambda: app.shown == "Confirm")
        await pilot.press("y")
        await until(pilot, lambda: app.return_code == 0)

    house.drive(scenario)
