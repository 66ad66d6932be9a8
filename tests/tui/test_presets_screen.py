"""The presets: rows arrive as they are planned, a filter narrows them, and every key does what it says."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from form_host import SMALL, OneScreen, PlannedMachine, context, large_lacks, ship_two_presets
from screen_host import text_of, until
from settled_pilot import settled
from textual.pilot import Pilot
from textual.widgets import Input

from workbench import presets
from workbench.presets import Preset, recent_presets, remember_preset
from workbench.tui.form.meter import FitMeter
from workbench.tui.form.planner import ConfigPlanner
from workbench.tui.glyphs import PLAIN
from workbench.tui.messages import OpenPreset, StartRun
from workbench.tui.screens.presets import (
    PresetAbout,
    PresetRow,
    PresetsScreen,
    forecast,
    match_score,
    preset_rows,
)
from workbench.tui.screens.row_table import begins_filter

SIZES = [(80, 24), (60, 16)]


@pytest.fixture(autouse=True)
def user(own_folders: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's folder; the project has no presets."""
    ship_two_presets(tmp_path / "shipped", monkeypatch)
    own_folders.mkdir()
    return own_folders


@asynccontextmanager
async def shown(
    tmp_path: Path,
    size: tuple[int, int] = (80, 24),
    machine: PlannedMachine | None = None,
    *,
    wait: bool = True,
    **others: Any,
) -> AsyncIterator[tuple[PresetsScreen, Pilot[None], OneScreen]]:
    """Show the presets, all planned where it is to `wait`."""
    machine = machine or PlannedMachine()
    screen = PresetsScreen(context(tmp_path / "runs", **others), machine)
    app = OneScreen(screen)
    async with app.run_test(size=size) as pilot:
        if wait:
            await settled(pilot)
        yield screen, pilot, app
        machine.may_answer.set()


def names(screen: PresetsScreen) -> list[str]:
    return [row.preset.name for row in screen.preset_table.shown]


def here(screen: PresetsScreen) -> str:
    row = screen.preset_table.highlighted
    return "" if row is None else row.preset.name


@pytest.mark.parametrize("size", [*SIZES, (120, 40), (200, 60)])
async def test_each_preset_has_its_parameters_and_whether_it_fits(
    size: tuple[int, int], tmp_path: Path
) -> None:
    async with shown(tmp_path, size) as (_screen, _pilot, app):
        lines = text_of(app).splitlines()
        (large,) = [line for line in lines if "▸" in line]
        (small,) = [line for line in lines if "quickstart" in line and "FIT" not in line]
        assert "gpt2-10b" in large and "10.28G" in large and "✗ no" in large
        assert "842.6k" in small and "✓ fits" in small
        assert "GPT-2" in large or size[0] == 60
        assert large_lacks() in text_of(app)


async def test_the_preview_follows_the_cursor(tmp_path: Path) -> None:
    async with shown(tmp_path) as (screen, pilot, app):
        meter, about = screen.query_one(FitMeter), screen.query_one(PresetAbout)
        assert here(screen) == "gpt2-10b" and meter.plan is not None and not meter.plan.fits
        await pilot.press("down")
        assert here(screen) == "quickstart" and meter.plan.fits
        assert "quickstart" in str(about.border_title) and "1 million parameters" in text_of(app)
        await pilot.press("end", "home")
        assert here(screen) == "gpt2-10b"


async def test_rows_are_there_before_they_are_planned_and_a_model_profile_does_not_hold_the_others_up(
    user: Path, tmp_path: Path
) -> None:
    (user / "a-new-one.toml").write_text(SMALL.read_text().replace("n_layer = 4", "n_layer = 5"))
    machine = PlannedMachine()
    machine.hold()

    async with shown(tmp_path, machine=machine, wait=False) as (screen, pilot, app):
        await until(pilot, lambda: bool(machine.asked))
        rows = {row.preset.name: row for row in screen.preset_table.shown}
        assert rows["quickstart"].verdict == "fits" and rows["gpt2-10b"].verdict == "no"
        assert rows["a-new-one"].pending and "..." in text_of(app)
        machine.may_answer.set()
        await settled(pilot)
        assert (
            next(row for row in screen.preset_table.shown if row.preset.name == "a-new-one").verdict == "fits"
        )


async def test_leaving_the_screen_calls_the_model_profile_off(user: Path, tmp_path: Path) -> None:
    (user / "a-new-one.toml").write_text(SMALL.read_text().replace("n_layer = 4", "n_layer = 5"))
    machine = PlannedMachine()
    machine.hold()

    async with shown(tmp_path, machine=machine, wait=False) as (_screen, pilot, app):
        await until(pilot, lambda: bool(machine.asked))
        app.pop_screen()
        await settled(pilot)
        assert machine.cancels[0].is_set()


async def test_what_is_typed_filters_and_escape_gives_all_back(tmp_path: Path) -> None:
    async with shown(tmp_path) as (screen, pilot, app):
        await pilot.press("q", "s")
        assert screen.query_one(Input).value == "qs" and names(screen) == ["quickstart"]
        await pilot.press("z")
        assert names(screen) == [] and 'No preset matches "qsz"' in text_of(app)
        await pilot.press("escape")
        assert names(screen) == ["gpt2-10b", "quickstart"] and screen.preset_table.has_focus


async def test_no_small_letter_acts_at_once_and_what_acts_is_a_capital(tmp_path: Path) -> None:
    async with shown(tmp_path) as (screen, pilot, app):
        small = [key for key in screen.active_bindings if key.isalpha() and len(key) == 1 and key.islower()]
        for key in (*"abcdefghijklmnopqrstuvwxyz", "0", "9"):
            await pilot.press(key)
            assert screen.query_one(Input).value == key and app.is_running and not app.asked
            await pilot.press("escape")
        assert all(begins_filter(key) for key in small)


async def test_a_filter_begins_with_any_letter_after_a_slash(tmp_path: Path) -> None:
    async with shown(tmp_path) as (screen, pilot, app):
        await pilot.press("slash", "r")
        assert screen.query_one(Input).value == "r" and not app.asked
        await pilot.press("down")
        assert screen.preset_table.has_focus


async def test_enter_opens_the_preset_from_the_list_and_from_the_filter(tmp_path: Path) -> None:
    async with shown(tmp_path) as (_screen, pilot, app):
        await pilot.press("enter")
        await pilot.press("q", "u", "enter")
    opened = [message.path for message in app.asked if isinstance(message, OpenPreset)]
    large, small = presets.shipped_folder() / "gpt2-10b.toml", presets.shipped_folder() / "quickstart.toml"
    assert opened == [large, small]
    assert recent_presets() == [small, large]


async def test_r_runs_what_fits_and_asks_about_what_does_not(tmp_path: Path) -> None:
    async with shown(tmp_path) as (_screen, pilot, app):
        await pilot.press("down", "R")
        (asked,) = app.asked
        assert isinstance(asked, StartRun)
        assert (asked.name, asked.text) == ("quickstart", SMALL.read_text())
        await pilot.press("up", "R")
        assert large_lacks() in " ".join(text_of(app).split())
        await pilot.press("enter")
        assert len(app.asked) == 1
        await pilot.press("R")
        await pilot.press("y")
        assert len(app.asked) == 2


async def test_a_preset_with_errors_is_listed_with_them_not_run_and_can_be_opened(
    user: Path, tmp_path: Path
) -> None:
    (user / "a-broken-one.toml").write_text("[model]\narchitecture = 3\n")

    async with shown(tmp_path) as (screen, pilot, app):
        assert here(screen) == "a-broken-one" and "✗ broken" in text_of(app)
        assert "model.architecture = 3" in text_of(app)
        await pilot.press("R")
        assert not app.asked and "has errors" in app.told[0]
        await pilot.press("enter")
        assert isinstance(app.asked[0], OpenPreset)


async def test_d_copies_into_the_users_folder_and_goes_to_the_copy(user: Path, tmp_path: Path) -> None:
    async with shown(tmp_path) as (screen, pilot, _app):
        await pilot.press("down", "D")
        assert (user / "quickstart-2.toml").read_text() == SMALL.read_text()
        assert here(screen) == "quickstart-2"


async def test_x_deletes_ones_own_after_a_question_and_nothing_of_the_house(
    user: Path, tmp_path: Path
) -> None:
    own = user / "a-own.toml"
    own.write_text(SMALL.read_text())

    async with shown(tmp_path) as (screen, pilot, app):
        assert here(screen) == "a-own"
        await pilot.press("X")
        assert "cannot be undone" in text_of(app)
        await pilot.press("enter")  # the focus is on no
        assert own.exists()
        await pilot.press("X")
        await pilot.press("y")
        assert not own.exists() and names(screen) == ["gpt2-10b", "quickstart"]
        await pilot.press("X")
        assert app.screen is screen and "never deleted" in app.told[-1]
    assert (presets.shipped_folder() / "quickstart.toml").exists()


async def test_a_read_only_look_changes_nothing(user: Path, tmp_path: Path) -> None:
    (user / "a-own.toml").write_text(SMALL.read_text())

    async with shown(tmp_path, read_only=True) as (screen, pilot, app):
        for key in ("r", "d", "x"):
            await pilot.press(key)
            await pilot.press("escape")
        assert app.screen is screen and not app.asked
    assert [path.name for path in user.iterdir()] == ["a-own.toml"]


async def test_a_click_chooses_and_a_second_one_opens(tmp_path: Path) -> None:
    async with shown(tmp_path) as (screen, pilot, app):
        y = next(number for number, line in enumerate(text_of(app).splitlines()) if "quickstart" in line)
        await pilot.click(offset=(10, y))
        assert here(screen) == "quickstart" and not app.asked
        await pilot.click(offset=(10, y))
        assert isinstance(app.asked[0], OpenPreset)


async def test_a_click_on_a_key_of_the_last_line_is_that_key(tmp_path: Path) -> None:
    async with shown(tmp_path) as (_screen, pilot, app):
        last = text_of(app).splitlines()[-2]
        await pilot.click(offset=(last.index("Open"), 22))
        assert isinstance(app.asked[0], OpenPreset)


@pytest.mark.parametrize("size", [*SIZES, (120, 40)])
async def test_ascii_mode_draws_nothing_else(size: tuple[int, int], user: Path, tmp_path: Path) -> None:
    (user / "a-broken-one.toml").write_text('[model]\narchitecture = "ä"\nx = 1\n')

    async with shown(tmp_path, size, glyphs=PLAIN) as (_screen, pilot, app):
        assert text_of(app).isascii()
        await pilot.press("down")
        assert text_of(app).isascii()


@pytest.mark.slow
async def test_a_hundred_presets_scroll(user: Path, tmp_path: Path) -> None:
    for number in range(100):
        (user / f"z{number:02}.toml").write_text(SMALL.read_text())

    async with shown(tmp_path) as (screen, pilot, app):
        assert len(names(screen)) == 102
        await pilot.press("end")
        assert here(screen) == "z99" and "z99" in text_of(app)
        await pilot.press("pageup", "home")
        assert here(screen) == "gpt2-10b" and "gpt2-10b" in text_of(app)


def row(name: str, description: str = "") -> PresetRow:
    return PresetRow(Preset(name, Path(f"/{name}.toml"), "user", description, None))


def test_the_ones_used_last_come_first_and_the_others_by_name(user: Path) -> None:
    own = user / "own.toml"
    own.write_text(SMALL.read_text())
    assert [each.preset.name for each in preset_rows()] == ["gpt2-10b", "own", "quickstart"]
    remember_preset(presets.shipped_folder() / "quickstart.toml")
    remember_preset(own)
    assert [each.preset.name for each in preset_rows()] == ["own", "quickstart", "gpt2-10b"]


def test_a_forecast_has_parameters_a_plan_and_a_verdict() -> None:
    planner = ConfigPlanner(PlannedMachine())
    made = {each.preset.name: forecast(each, planner) for each in preset_rows()}
    assert made["quickstart"].verdict == "fits" and made["quickstart"].parameters == 842_624
    assert made["gpt2-10b"].verdict == "no" and "lacks" in made["gpt2-10b"].words


def test_a_row_without_a_model_profile_stays_pending_until_one_may_be_taken(
    user: Path,
) -> None:
    (user / "new.toml").write_text(SMALL.read_text().replace("n_layer = 4", "n_layer = 5"))
    machine = PlannedMachine()
    planner = ConfigPlanner(machine)
    listed = next(each for each in preset_rows() if each.preset.name == "new")
    assert forecast(listed, planner).pending and not machine.asked
    made = forecast(listed, planner, Event())
    assert made.verdict == "fits" and not made.pending and len(machine.asked) == 1


def test_a_preset_that_breaks_after_it_was_listed_has_its_error_and_no_plan(
    user: Path,
) -> None:
    path = user / "own.toml"
    path.write_text(SMALL.read_text())
    listed = next(each for each in preset_rows() if each.preset.name == "own")
    path.write_text("[model\n")
    made = forecast(listed, ConfigPlanner(PlannedMachine()))
    assert made.preset.error is not None and made.plan is None


@pytest.mark.parametrize("query", ["gpt2-10b", "10b", "GPT", "g10", "gb", "billion", "billion user"])
def test_a_filter_finds_by_part_by_letters_in_order_and_by_words(query: str) -> None:
    assert match_score(query, row("gpt2-10b", "10.3 billion parameters"))


@pytest.mark.parametrize("query", ["x", "b01", "trillion", "gpt3"])
def test_a_filter_leaves_out_what_was_not_meant(query: str) -> None:
    assert not match_score(query, row("gpt2-10b", "10.3 billion parameters"))


def test_a_part_of_the_name_is_a_better_match_than_letters_of_it() -> None:
    names = ["long-lama-x", "llama", "big-llama"]
    scores = {name: match_score("llama", row(name)) for name in names}
    assert scores["long-lama-x"]
    assert sorted(names, key=lambda name: -scores[name]) == ["llama", "big-llama", "long-lama-x"]
