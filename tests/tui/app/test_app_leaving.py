"""Going back, quitting, and quitting where a run trains; and how a failure and a signal end the application."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pty
import signal
import sys
import time
from typing import NoReturn

import pytest
from screen_host import text_of, until
from settled_pilot import settled
from whole_app import House

from workbench.runs.ending import ending
from workbench.tui import command
from workbench.tui.app import ENDING, WorkbenchApp
from workbench.tui.messages import OpenPreset, OpenRun
from workbench.tui.screens.configure import ConfigureScreen
from workbench.tui.screens.presets import PresetTable


@pytest.mark.parametrize("key", ["escape", "q"])
async def test_a_key_goes_back_to_the_part_and_ctrl_q_then_quits(house: House, key: str) -> None:
    path = house.preset("tiny")

    async with house.shown() as (app, pilot):
        app.screen.post_message(OpenPreset(path))
        await until(pilot, lambda: app.shown == "ConfigureScreen")
        await settled(pilot)
        app.screen.set_focus(None)  # where letters are typed, q is one
        await pilot.press(key)
        await until(pilot, lambda: app.stack == ["PresetsScreen"])
        await pilot.press("escape")
        await settled(pilot)
        assert app.is_running and app.return_code is None
        await pilot.press("ctrl+q")
        await until(pilot, lambda: app.return_code == 0)


@pytest.mark.parametrize(("part", "key"), [("presets", "ctrl+q"), ("runs", "ctrl+q"), ("top", "q")])
async def test_a_key_quits_from_every_part(house: House, part: str, key: str) -> None:
    async with house.shown(part=part) as (app, pilot):
        await pilot.press(key)
        await until(pilot, lambda: app.return_code == 0)


@pytest.mark.parametrize(
    "keys", [("M", "ctrl+q"), pytest.param(("P", "ctrl+q"), marks=pytest.mark.slow)], ids="+".join
)
async def test_quitting_asks_where_a_living_run_is_watched_from_whatever_part(
    house: House, keys: tuple[str, ...]
) -> None:
    run = house.run(living=True)
    async with house.shown() as (app, pilot):
        await app.open(pilot, OpenRun(run), "RunScreen")
        await pilot.press(*keys)
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
        await pilot.press("d")
        await until(pilot, lambda: app.return_code == 0)
    assert not run.control.exists()


@pytest.mark.parametrize("living", [False, True], ids=["ended", "left"])
async def test_quitting_asks_nothing_where_the_run_has_ended_or_was_left(house: House, living: bool) -> None:
    async with house.shown() as (app, pilot):
        await app.open(pilot, OpenRun(house.run(living=living)), "RunScreen")
        if living:
            await pilot.press("escape")
            await until(pilot, lambda: app.shown == "Choice")
            await pilot.press("d")
            await until(pilot, lambda: app.stack == ["RunsScreen"])
        await pilot.press("ctrl+q")
        await until(pilot, lambda: app.return_code == 0)


@pytest.mark.parametrize("number", ENDING)
def test_a_signal_ends_it_with_its_own_exit_code(house: House, number: signal.Signals) -> None:
    before = signal.getsignal(number)

    async def play() -> None:
        async with house.shown() as (app, pilot):
            os.kill(os.getpid(), number)
            await until(pilot, lambda: app.return_code == 128 + number)

    asyncio.run(play())
    assert signal.getsignal(number) == before


def fail(*_: object) -> NoReturn:
    raise RuntimeError("no [picture]")


async def fail_later() -> NoReturn:
    raise KeyError("of a worker")


@pytest.mark.parametrize(
    ("where", "message"),
    [("drawing", r"^RuntimeError: no \[picture\]$"), ("worker", "KeyError.*of a worker")],
)
def test_an_exception_ends_the_screen_and_is_raised_without_anything_printed(
    house: House,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    where: str,
    message: str,
) -> None:
    if where == "drawing":
        monkeypatch.setattr(PresetTable, "render_line", fail)
    else:
        monkeypatch.setattr(
            WorkbenchApp, "on_load", lambda self: self.run_worker(fail_later()), raising=False
        )
    run = WorkbenchApp.run
    monkeypatch.setattr(WorkbenchApp, "run", lambda self: run(self, headless=True, size=(80, 24)))
    with pytest.raises(command.ScreenError, match=message) as raised:
        command.show(house.runs)
    assert "Traceback" in str(raised.value.__cause__)
    printed = capsys.readouterr()
    assert printed.out == printed.err == ""


def test_a_terminal_that_goes_away_ends_the_screen(house: House) -> None:
    pid, terminal = pty.fork()
    if pid == 0:
        os.execvpe(
            sys.executable, [sys.executable, "-m", "workbench"], {**os.environ, "TERM": "xterm-256color"}
        )
    try:
        shown = b""
        while b"\x1b[?1049h" not in shown:  # it has begun
            shown += os.read(terminal, 65536)
        os.close(terminal)
        deadline = time.monotonic() + 60
        ended = 0, 0
        while not ended[0] and time.monotonic() < deadline:
            time.sleep(0.05)
            ended = os.waitpid(pid, os.WNOHANG)
        assert ended[0] == pid, "it did not end"
        assert os.waitstatus_to_exitcode(ended[1]) in (128 + signal.SIGHUP, -signal.SIGHUP)
    finally:
        with contextlib.suppress(ProcessLookupError, ChildProcessError):
            os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize(
    "keys", [pytest.param(("ctrl+q",), marks=pytest.mark.slow), ("M", "q")], ids="+".join
)
async def test_quitting_asks_where_a_form_has_changes_that_are_not_saved(
    house: House, keys: tuple[str, ...]
) -> None:
    path = house.preset("tiny")

    async with house.shown() as (app, pilot):
        app.screen.post_message(OpenPreset(path))
        await until(pilot, lambda: app.shown == "ConfigureScreen")
        await settled(pilot)
        form = app.screen
        assert isinstance(form, ConfigureScreen)
        form.draft.set("train.steps", 77)
        form._update()
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


def test_leaving_the_screen_prints_how_the_run_stands_and_the_commands_that_come_next(
    house: House, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = house.run(living=False)
    monkeypatch.setattr(WorkbenchApp, "run", lambda self: None)
    monkeypatch.setattr(WorkbenchApp, "last_run", run)
    assert command.show(house.runs) == 0
    printed = capsys.readouterr().out
    assert printed.splitlines() == ending(run).lines() and printed.count("workbench ") >= 3
    monkeypatch.setattr(WorkbenchApp, "last_run", None)
    assert command.show(house.runs) == 0 and not capsys.readouterr().out
