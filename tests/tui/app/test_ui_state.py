"""What the screen remembers between two times, and what the environment says instead."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from screen_host import until
from textual.constants import DEFAULT_THEME
from textual.pilot import Pilot
from whole_app import App, House, settled

from workbench.tui.screens.top import TopScreen
from workbench.tui.ui_state import FILE_NAME, UiState, read_ui_state, write_ui_state


async def nothing(app: App, pilot: Pilot[None]) -> None:
    """Begin and end."""


def test_theme_and_part_come_back_the_next_time(house: House) -> None:
    async def change(app: App, pilot: Pilot[None]) -> None:
        app.theme = "nord"
        await pilot.press("H")
        await until(pilot, lambda: app.shown == "RunsScreen")

    async def look(app: App, pilot: Pilot[None]) -> None:
        assert (app.theme, app.shown) == ("nord", "RunsScreen")
        assert app.has_class("-theme-nord")

    house.drive(change)
    assert read_ui_state() == UiState(theme="nord", mode="runs")
    house.drive(look)
    assert read_ui_state() == UiState(theme="nord", mode="runs")


def test_hidden_panels_of_the_monitor_come_back_the_next_time(house: House) -> None:
    def hidden(app: App) -> list[str | None]:
        assert isinstance(app.screen, TopScreen)
        return [panel.id for panel in app.screen.panels if not panel.display]

    async def hide(app: App, pilot: Pilot[None]) -> None:
        await pilot.press("2", "6")
        await settled(pilot)
        assert hidden(app) == ["cores", "disk"]

    async def show_one(app: App, pilot: Pilot[None]) -> None:
        assert hidden(app) == ["cores", "disk"]
        await pilot.press("2")
        await settled(pilot)

    async def look(app: App, pilot: Pilot[None]) -> None:
        assert hidden(app) == ["disk"]

    for scenario in (hide, show_one, look):
        house.drive(scenario, part="top")


def test_the_theme_of_the_environment_stands_above_the_remembered_one_and_is_not_remembered(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_ui_state(UiState(theme="nord"))
    monkeypatch.setenv("TEXTUAL_THEME", "textual-light")

    async def look(app: App, pilot: Pilot[None]) -> None:
        # Textual read the variable when it was imported; the remembered theme must not replace what it made of it.
        assert app.theme == DEFAULT_THEME != "nord"

    house.drive(look)
    assert read_ui_state().theme == "nord"


def test_a_part_that_was_asked_for_is_not_the_one_remembered(house: House) -> None:
    write_ui_state(UiState(mode="runs"))
    house.drive(nothing, part="top")
    assert read_ui_state().mode == "runs"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        '{"theme": 3, "mode": ["runs"], "hidden_panels": "gpu"}',
        '{"theme": "gone", "mode": "x"}',
    ],
)
def test_a_damaged_memory_costs_nothing_but_the_memory(house: House, tmp_path: Path, text: str) -> None:
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / FILE_NAME).write_text(text)

    async def look(app: App, pilot: Pilot[None]) -> None:
        assert (app.shown, app.theme) == ("PresetsScreen", "textual-dark")

    house.drive(look)
    assert json.loads((tmp_path / "cache" / FILE_NAME).read_text())["mode"] == "presets"


def test_panels_of_another_version_and_all_panels_hidden_leave_something_to_see(house: House) -> None:
    async def look(app: App, pilot: Pilot[None]) -> None:
        assert isinstance(app.screen, TopScreen)
        assert all(panel.display for panel in app.screen.panels)

    for names in (("unheard",), ("gpu", "cores", "memory", "threads", "pcie", "disk")):
        write_ui_state(UiState(hidden_panels=names))
        house.drive(look, part="top")


def test_a_cache_that_cannot_be_written_is_no_trouble(house: House, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file where the folder should be")
    house.drive(nothing)
    assert read_ui_state() == UiState()
