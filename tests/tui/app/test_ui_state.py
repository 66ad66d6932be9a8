"""What the screen remembers between two times, and what the environment says instead."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from screen_host import until
from textual.constants import DEFAULT_THEME
from whole_app import App, House

from workbench.tui.context import UI_STATE_FILE, UiState, read_ui_state, write_ui_state
from workbench.tui.screens.top import TopScreen


async def test_theme_and_part_come_back_the_next_time(house: House) -> None:
    async with house.shown() as (app, pilot):
        app.theme = "nord"
        await pilot.press("H")
        await until(pilot, lambda: app.shown == "RunsScreen")
    assert read_ui_state() == UiState(theme="nord", mode="runs")
    async with house.shown() as (app, _):
        assert (app.theme, app.shown) == ("nord", "RunsScreen")
        assert app.has_class("-theme-nord")
    assert read_ui_state() == UiState(theme="nord", mode="runs")


async def test_hidden_panels_of_the_monitor_come_back_the_next_time(house: House) -> None:
    def hidden(app: App) -> list[str | None]:
        assert isinstance(app.screen, TopScreen)
        return [panel.id for panel in app.screen.panels if not panel.display]

    for before, keys in ([], ["2", "7"]), (["cores", "disk"], ["2"]), (["disk"], []):
        async with house.shown(part="top") as (app, pilot):
            assert hidden(app) == before
            await pilot.press(*keys)


async def test_the_theme_of_the_environment_stands_above_the_remembered_one_and_is_not_remembered(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_ui_state(UiState(theme="nord"))
    monkeypatch.setenv("TEXTUAL_THEME", "textual-light")

    async with house.shown() as (app, _):
        # Textual read the variable when it was imported; the remembered theme must not replace what it made of it.
        assert app.theme == DEFAULT_THEME != "nord"
    assert read_ui_state().theme == "nord"


async def test_a_part_that_was_asked_for_is_not_the_one_remembered(house: House) -> None:
    write_ui_state(UiState(mode="runs"))
    async with house.shown(part="top"):
        pass
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
async def test_a_damaged_memory_costs_nothing_but_the_memory(house: House, tmp_path: Path, text: str) -> None:
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / UI_STATE_FILE).write_text(text)

    async with house.shown() as (app, _):
        assert (app.shown, app.theme) == ("PresetsScreen", "textual-dark")
    assert json.loads((tmp_path / "cache" / UI_STATE_FILE).read_text())["mode"] == "presets"


async def test_panels_of_another_version_and_all_panels_hidden_leave_something_to_see(house: House) -> None:
    for names in (("unheard",), ("optimizer", "cores", "gpu", "memory", "threads", "pcie", "disk")):
        write_ui_state(UiState(hidden_panels=names))
        async with house.shown(part="top") as (app, _):
            assert isinstance(app.screen, TopScreen)
            assert all(panel.display for panel in app.screen.panels)


async def test_a_cache_that_cannot_be_written_is_no_trouble(house: House, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file where the folder should be")
    async with house.shown():
        pass
    assert read_ui_state() == UiState()
