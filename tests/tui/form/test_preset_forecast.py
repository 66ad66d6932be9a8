"""Rows arrive one by one, what has to wait comes last; and a filter finds what was meant."""

from __future__ import annotations

from pathlib import Path
from threading import Event

import pytest
from form_host import SMALL, PlannedMachine, ship_two_presets

from workbench import presets
from workbench.presets import Preset, remember_preset
from workbench.tui.form.planning import Planning
from workbench.tui.form.preset_forecast import PresetRow, forecasts, matches, preset_rows


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
    planning = Planning(PlannedMachine())
    made = {each.preset.name: each for each in forecasts(preset_rows(), planning, Event(), lambda: False)}
    assert made["quickstart"].verdict == "fits" and made["quickstart"].parameters == 842_624
    assert made["gpt2-10b"].verdict == "no" and "lacks" in made["gpt2-10b"].said


def test_a_model_whose_model_profile_is_not_known_is_pending_first_and_taken_last(
    in_an_empty_project: Path,
) -> None:
    (in_an_empty_project / "a-new-one.toml").write_text(
        SMALL.read_text().replace("n_layer = 4", "n_layer = 5")
    )
    machine = PlannedMachine()
    made = list(forecasts(preset_rows(), Planning(machine), Event(), lambda: False))
    assert [(each.preset.name, each.pending) for each in made] == [
        ("a-new-one", True), ("gpt2-10b", False), ("quickstart", False), ("a-new-one", False),
    ]  # fmt: skip
    assert made[-1].verdict == "fits" and len(machine.asked) == 1


def test_a_broken_preset_has_an_error_and_no_forecast(in_an_empty_project: Path) -> None:
    (in_an_empty_project / "broken.toml").write_text("[model]\narchitecture = 3\n")
    rows = preset_rows()
    assert "architecture = 3" in (rows[0].preset.error or "")
    made = [each.preset.name for each in forecasts(rows, Planning(PlannedMachine()), Event(), lambda: False)]
    assert "broken" not in made


def test_a_preset_that_breaks_after_it_was_listed_is_told(in_an_empty_project: Path) -> None:
    path = in_an_empty_project / "own.toml"
    path.write_text(SMALL.read_text())
    rows = [each for each in preset_rows() if each.preset.name == "own"]
    path.write_text("[model\n")
    (made,) = forecasts(rows, Planning(PlannedMachine()), Event(), lambda: False)
    assert made.preset.error is not None and made.plan is None


def test_nobody_waits_for_what_is_not_wanted_any_more() -> None:
    assert list(forecasts(preset_rows(), Planning(PlannedMachine()), Event(), lambda: True)) == []


@pytest.mark.parametrize("query", ["gpt2-10b", "10b", "GPT", "g10", "gb", "billion", "billion user"])
def test_a_filter_finds_by_part_by_letters_in_order_and_by_words(query: str) -> None:
    assert matches(query, row("gpt2-10b", "10.3 billion parameters")) is not None


@pytest.mark.parametrize("query", ["x", "b01", "trillion", "gpt3"])
def test_a_filter_leaves_out_what_was_not_meant(query: str) -> None:
    assert matches(query, row("gpt2-10b", "10.3 billion parameters")) is None


def test_a_part_of_the_name_is_a_better_answer_than_letters_of_it() -> None:
    names = ["long-lama-x", "llama", "big-llama"]
    scores = {name: matches("llama", row(name)) for name in names}
    assert scores["long-lama-x"] is not None
    assert sorted(names, key=lambda name: scores[name] or 0) == ["llama", "big-llama", "long-lama-x"]
