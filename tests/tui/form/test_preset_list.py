"""Each preset has a forecast of its own, and a filter finds the ones that were meant."""

from __future__ import annotations

from pathlib import Path
from threading import Event

import pytest
from form_host import SMALL, PlannedMachine, ship_two_presets

from workbench import presets
from workbench.presets import Preset, remember_preset
from workbench.tui.form.planner import ConfigPlanner
from workbench.tui.screens.presets import PresetRow, forecast, match_score, preset_rows


@pytest.fixture(autouse=True)
def in_an_empty_project(own_folders: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    ship_two_presets(tmp_path / "shipped", monkeypatch)
    own_folders.mkdir()
    return own_folders


def row(name: str, description: str = "") -> PresetRow:
    return PresetRow(Preset(name, Path(f"/{name}.toml"), "user", description, None))


def test_the_ones_used_last_come_first_and_the_others_by_name(in_an_empty_project: Path) -> None:
    own = in_an_empty_project / "own.toml"
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
    in_an_empty_project: Path,
) -> None:
    (in_an_empty_project / "new.toml").write_text(SMALL.read_text().replace("n_layer = 4", "n_layer = 5"))
    machine = PlannedMachine()
    planner = ConfigPlanner(machine)
    listed = next(each for each in preset_rows() if each.preset.name == "new")
    assert forecast(listed, planner).pending and not machine.asked
    made = forecast(listed, planner, Event())
    assert made.verdict == "fits" and not made.pending and len(machine.asked) == 1


def test_a_preset_that_breaks_after_it_was_listed_has_its_error_and_no_plan(
    in_an_empty_project: Path,
) -> None:
    path = in_an_empty_project / "own.toml"
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
