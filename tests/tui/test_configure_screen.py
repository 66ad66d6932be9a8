"""The form: every key does what it says, problems stand at their fields and hold a run back, and plans follow edits."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest
from form_host import LARGE, SMALL, OneScreen, PlannedMachine, context, large_lacks
from screen_host import text_of, until
from settled_pilot import settled
from textual.pilot import Pilot
from textual.screen import Screen
from textual.widgets import Input, Static, TextArea

from workbench.config import load_config, parse_config
from workbench.presets import recent_presets, shipped_folder
from workbench.tui.form.choice import Choice, TableTabs
from workbench.tui.form.field_row import FieldHelp, FieldRow, Form
from workbench.tui.form.fields import TABLE_NAMES, fields_of
from workbench.tui.form.meter import FitMeter
from workbench.tui.form.problems import References, check_references
from workbench.tui.glyphs import PLAIN
from workbench.tui.messages import StartRun
from workbench.tui.screens.configure import ConfigureScreen

BROKEN = """\
# kept
[model]
architecture = "gpt2"   # yes
[model.config]
n_layer = 4
n_embd = 128
n_head = 4
n_positions = 128
vocab_size = 257
[data]
sequence_length = 128
[train]
steps = "many"          # how many
stepps = 4
"""


@pytest.fixture(autouse=True)
def _own_folders(own_folders: Path) -> None: ...


@asynccontextmanager
async def shown(
    tmp_path: Path,
    preset: Path = LARGE,
    size: tuple[int, int] = (80, 24),
    machine: PlannedMachine | None = None,
    **others: Any,
) -> AsyncIterator[tuple[ConfigureScreen, Pilot[None], OneScreen]]:
    """Show the form of `preset`, once it is planned."""
    machine = machine or PlannedMachine()
    screen = ConfigureScreen(context(tmp_path / "runs", **others), preset, machine)
    screen.live.profile_after_s = 0.001
    screen.ready_after_s = 1e6
    app = OneScreen(screen)
    async with app.run_test(size=size) as pilot:
        await settled(pilot)
        yield screen, pilot, app
        machine.may_answer.set()


def own(tmp_path: Path, text: str = BROKEN, name: str = "own") -> Path:
    path = tmp_path / "user" / f"{name}.toml"
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    return path


async def go_to(screen: ConfigureScreen, pilot: Pilot[None], field: str) -> FieldRow:
    """Give a field the focus."""
    await screen.go_to(field)
    await pilot.pause()
    row = screen.query_one(Form).row(field)
    assert row is not None and screen.focused_field == field
    return row


async def press(pilot: Pilot[None], *keys: str) -> None:
    await pilot.press(*keys)
    await settled(pilot)


async def write(pilot: Pilot[None], text: str) -> None:
    """Put `text` in the place of what stands in the focused input."""
    await press(pilot, "end", "ctrl+u", *text)


@pytest.mark.slow
@pytest.mark.parametrize("size", [(60, 16), (200, 60)])
async def test_every_field_of_every_table_can_be_seen(size: tuple[int, int], tmp_path: Path) -> None:
    async with shown(tmp_path, size=size) as (screen, pilot, app):
        form = screen.query_one(Form)
        for table in TABLE_NAMES:
            assert screen.query_one(TableTabs).value == table
            for field in fields_of(table):
                row = form.row(field.name)
                assert row is not None
                row.control.focus()
                await pilot.pause()
                assert field.key in text_of(app)
                assert field.name in str(screen.query_one(FieldHelp).border_title)
                assert " ".join(field.help.split()[:3]) in text_of(app)
            await pilot.press("pagedown")
        assert screen.query_one(TableTabs).value == TABLE_NAMES[0]


async def test_every_edit_moves_the_plan(tmp_path: Path) -> None:
    async with shown(tmp_path) as (screen, pilot, app):
        assert screen.live.plan is not None and screen.live.plan.time is not None
        before, step = screen.live.plan, f"{screen.live.plan.time.step_s:,.2f} s a step"
        assert step in text_of(app)
        await go_to(screen, pilot, "train.micro_batch_size")
        await write(pilot, "5")
        assert screen.live.plan is not before and screen.live.plan.time is not None
        assert screen.live.plan.config.train.micro_batch_size == 5
        assert f"{screen.live.plan.time.step_s:,.2f} s a step" in text_of(app) and step not in text_of(app)


@pytest.mark.parametrize("size", [(80, 24), pytest.param((60, 16), marks=pytest.mark.slow)])
async def test_a_wrong_value_is_told_under_its_field_and_holds_the_run_back(
    size: tuple[int, int], tmp_path: Path
) -> None:
    async with shown(tmp_path, size=size) as (screen, pilot, app):
        row = await go_to(screen, pilot, "train.micro_batch_size")
        await write(pilot, "0")
        lines = text_of(app).splitlines()
        at = next(number for number, line in enumerate(lines) if "micro_batch_size" in line)
        assert "is too small; must be a whole number from 1" in lines[at + 1]
        assert row.problem and "train*✗" in text_of(app)
        for key in ("f5", "ctrl+s", "f6"):
            await press(pilot, key)
        assert not app.asked and app.screen is screen
        assert all("train.micro_batch_size: is too small" in said for said in app.told) and len(app.told) == 3
        await write(pilot, "8")
        assert not row.problem and "too small" not in text_of(app)


async def test_a_key_lays_nothing_out_anew_and_the_end_of_a_long_text_is_seen(tmp_path: Path) -> None:
    laid_out: list[Screen[Any]] = []
    async with shown(tmp_path) as (screen, pilot, app):
        await go_to(screen, pilot, "sample.prompt")
        await write(pilot, "x")
        screen.screen_layout_refresh_signal.subscribe(screen, laid_out.append)
        await write(pilot, "a" * 60 + "END")
        assert "aEND" in text_of(app) and not laid_out
        await press(pilot, "home")
        assert "aEND" not in text_of(app) and "a" * 30 in text_of(app)


async def test_a_changed_value_is_marked_and_reset_gives_the_presets_back(tmp_path: Path) -> None:
    async with shown(tmp_path) as (screen, pilot, app):
        row = await go_to(screen, pilot, "train.steps")
        await write(pilot, "77")
        assert row.is_changed and "*▸steps" in text_of(app) and "1 changed" in text_of(app)
        await press(pilot, "ctrl+r")
        assert isinstance(row.control, Input) and row.control.value == "1000"
        assert not row.is_changed and "*▸steps" not in text_of(app)

        row = await go_to(screen, pilot, "train.deterministic")
        await pilot.press("space")
        assert screen.draft.value("train.deterministic") is True and row.is_changed
        await pilot.press("ctrl+r")
        assert isinstance(row.control, Choice) and row.control.value == "false"


async def test_starting_asks_for_a_run_of_what_the_form_says(tmp_path: Path) -> None:
    async with shown(tmp_path, SMALL) as (screen, pilot, app):
        await go_to(screen, pilot, "train.steps")
        await write(pilot, "5")
        await press(pilot, "f5")
    (asked,) = app.asked
    assert isinstance(asked, StartRun) and asked.name == "quickstart"
    assert parse_config(asked.text, "").train.steps == 5
    assert "# built" not in asked.text and "# blocks" in asked.text
    assert recent_presets() == [SMALL]


NAMES_A_FILE = SMALL.read_text().replace('source = "stdlib"', 'source = ["stdlib", "here/gone.txt"]')
NO_SUCH_FILE = '"here/gone.txt": there is no such file or folder'


async def test_a_file_that_is_not_there_is_a_problem_at_its_field_and_holds_a_run_back(
    tmp_path: Path,
) -> None:
    async with shown(tmp_path, own(tmp_path, NAMES_A_FILE)) as (screen, pilot, app):
        row = await go_to(screen, pilot, "data.source")
        assert row.problem.startswith(NO_SUCH_FILE) and "1 problem" in text_of(app)
        assert NO_SUCH_FILE in " ".join(text_of(app).split()) and screen.live.plan is not None
        await go_to(screen, pilot, "train.steps")
        await press(pilot, "f5")
        assert not app.asked and screen.focused_field == "data.source"
        assert app.told[-1].startswith(f"not started: data.source: {NO_SUCH_FILE}")
        (tmp_path / "here").mkdir()
        (tmp_path / "here" / "gone.txt").write_text("found again")
        await press(pilot, "f5")
        assert len(app.asked) == 1 and not row.problem


async def test_what_is_not_there_may_be_saved_and_is_told_beside_other_problems(tmp_path: Path) -> None:
    text = NAMES_A_FILE.replace("steps = 750", "steps = 0")
    assert text != NAMES_A_FILE

    async with shown(tmp_path, own(tmp_path, text)) as (screen, pilot, app):
        assert "2 problems" in text_of(app)
        await go_to(screen, pilot, "train.steps")
        await write(pilot, "7")
        assert "1 problem" in text_of(app)
        await press(pilot, "ctrl+s")
        await press(pilot, "enter")
        assert app.told[-1].startswith("saved: ")


async def test_what_will_hardly_have_been_meant_is_a_remark_and_holds_no_run_back(tmp_path: Path) -> None:
    text = SMALL.read_text().replace('tokenizer = "bytes"', 'tokenizer = "bpe:512"')
    async with shown(tmp_path, own(tmp_path, text), size=(120, 40)) as (screen, pilot, app):
        row = await go_to(screen, pilot, "model.config")
        assert "the model has 257 outputs" in row.note and not row.problem
        assert "name model.config.vocab_size = 512" in " ".join(text_of(app).split())
        await go_to(screen, pilot, "schedule.warmup_steps")
        await write(pilot, "2000")
        row = await go_to(screen, pilot, "schedule.warmup_steps")
        assert row.note.startswith("the run ends at step 750, before its learning rate has risen")
        await press(pilot, "f5")
        assert len(app.asked) == 1


async def test_a_disk_that_does_not_answer_holds_up_no_key_and_is_asked_by_one_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[object] = []
    may_answer = threading.Event()
    may_answer.set()

    def slow(values: dict[str, Any]) -> References:
        looked.append(values["train"]["steps"])
        may_answer.wait()
        return check_references(values)

    monkeypatch.setattr("workbench.tui.screens.configure.check_references", slow)

    async with shown(tmp_path, own(tmp_path, NAMES_A_FILE)) as (screen, pilot, app):
        await go_to(screen, pilot, "train.steps")
        looked.clear()
        may_answer.clear()
        try:
            await pilot.press("end", "ctrl+u", "1", "2", "3")
            assert (
                "123" in text_of(app)
                and screen.draft.config is not None
                and screen.draft.config.train.steps == 123
            )
            assert len(looked) == 1
        finally:
            may_answer.set()
        await settled(pilot)
        assert len(looked) == 2 and looked[-1] == 123, "what was typed last is looked for, nothing between"


async def test_what_does_not_fit_is_started_only_when_that_is_said_twice(tmp_path: Path) -> None:
    async with shown(tmp_path) as (_screen, pilot, app):
        await press(pilot, "f5")
        assert large_lacks() in " ".join(text_of(app).split())
        await pilot.press("enter")  # the focus is on no
        assert not app.asked
        await press(pilot, "f5")
        await pilot.press("y")
        assert len(app.asked) == 1


async def test_make_it_fit_shows_what_it_would_change_and_changes_it_when_told(tmp_path: Path) -> None:
    async with shown(tmp_path) as (screen, pilot, app):
        await press(pilot, "f6")
        said = " ".join(text_of(app).split())
        assert 'offload.state_format: "exact" -> "compact"' in said and "changes results" in said
        await press(pilot, "escape")
        assert screen.draft.changed == ()
        await press(pilot, "f6")
        await press(pilot, "y")
        assert screen.draft.value("offload.state_format") == "compact"
        assert screen.live.plan is not None and screen.live.plan.fits
        await go_to(screen, pilot, "offload.state_format")
        assert "[compact]" in text_of(app)


async def test_another_machine_is_planned_for_by_its_parts_until_the_key_is_pressed_again(
    tmp_path: Path,
) -> None:
    async with shown(tmp_path) as (screen, pilot, app):
        here = screen.live.plan
        await press(pilot, "f7")
        await press(pilot, *"V100-32GB", "down", *"lots", "enter")
        assert "lots" in text_of(app) and "64G" in text_of(app)  # what is wrong, and what would be right
        await press(pilot, *["backspace"] * 4, *"1.5T", "down", *"x", "enter")
        assert "--channels x: expected a whole number" in text_of(app)
        await press(pilot, "backspace", *"12")
        rates = screen.app.screen.query_one("#rates", Input)
        rates.value = "disk.x=1"
        await press(pilot, "enter")
        assert "--rate disk.x: there is no such figure" in text_of(app)
        rates.value = "host.read_bytes_per_s=1e9 host.copy_bytes_per_s=1e9"
        await press(pilot, "enter")
        there = screen.live.plan
        assert there is not None and here is not None and there.fits and not here.fits
        host = next(tier for tier in there.memory.tiers if tier.tier == "host")
        assert 1400 << 30 < host.free_bytes < 1536 << 30
        assert there.time is not None and there.time.step_s > 60  # by the rates of a slow host memory
        assert "a server with Tesla V100-SXM2-32GB" in " ".join(text_of(app).split())
        await press(pilot, "f5")
        assert not app.asked and "F7 plans for this machine" in app.told[-1]
        await press(pilot, "f7")
        assert screen.live.plan is not None and screen.live.plan.memory == here.memory
        await press(pilot, "f7")
        assert screen.app.screen.query_one("#memory", Input).value == "1.5T"


async def test_make_it_fit_can_keep_the_states_format(tmp_path: Path) -> None:
    async with shown(tmp_path) as (_screen, pilot, app):
        await press(pilot, "f6")
        await press(pilot, "k")
        assert "state_format" not in text_of(app).split("After it")[0].replace("offload.state_format = ", "")


async def test_a_preset_of_the_house_is_saved_under_another_name_with_its_comments(tmp_path: Path) -> None:
    before = SMALL.read_bytes()

    async with shown(tmp_path, SMALL) as (screen, pilot, app):
        await go_to(screen, pilot, "train.steps")
        await write(pilot, "5")
        await pilot.press("ctrl+s")
        await write(pilot, "mine")
        await press(pilot, "enter")
        assert screen.path == tmp_path / "user" / "mine.toml"
        assert screen.draft.changed == () and "mine" in text_of(app).splitlines()[0]
    assert (tmp_path / "user" / "mine.toml").read_text() == SMALL.read_text().replace(
        "steps = 750", "steps = 5", 1
    )
    assert SMALL.read_bytes() == before


async def test_ones_own_preset_is_saved_in_its_place_and_another_only_after_a_question(
    tmp_path: Path,
) -> None:
    path, other = own(tmp_path, SMALL.read_text()), own(tmp_path, "# precious", "other")

    async with shown(tmp_path, path) as (screen, pilot, app):
        await go_to(screen, pilot, "train.steps")
        await write(pilot, "6")
        await pilot.press("ctrl+s")
        await press(pilot, "enter")
        assert load_config(path).train.steps == 6
        await pilot.press("ctrl+s")
        await write(pilot, "other")
        await press(pilot, "enter")
        assert "Replace it?" in " ".join(text_of(app).split())
        await press(pilot, "n")
        assert other.read_text() == "# precious"
        await pilot.press("ctrl+s")
        await write(pilot, "other")
        await pilot.press("enter")
        await press(pilot, "y")
        assert load_config(other).train.steps == 6


async def test_a_name_that_cannot_be_is_told(tmp_path: Path) -> None:
    async with shown(tmp_path, SMALL) as (_screen, pilot, app):
        await pilot.press("ctrl+s")
        await write(pilot, "a/b")
        await press(pilot, "enter")
        assert any("cannot be a preset's name" in said for said in app.told)
    assert not (tmp_path / "user").exists()


async def test_a_preset_with_errors_opens_with_its_errors_and_can_be_mended(tmp_path: Path) -> None:
    path = own(tmp_path)

    async with shown(tmp_path, path) as (screen, pilot, app):
        assert "train.stepps = 4: there is no such key" in text_of(app)
        assert "2 problems" in text_of(app)
        row = await go_to(screen, pilot, "train.steps")
        assert row.problem.startswith("is a string") and isinstance(row.control, Input)
        assert row.control.value == "many"
        await write(pilot, "12")
        assert any(each.binding.action == "drop_unknown" for each in screen.active_bindings.values())
        await press(pilot, "f8")
        assert "problem" not in text_of(app)
        assert not any(each.binding.action == "drop_unknown" for each in screen.active_bindings.values())
        assert screen.live.result is not None and screen.live.result.plan is not None
        await pilot.press("ctrl+s")
        await press(pilot, "enter")
    wanted = BROKEN.replace(
        'steps = "many"          # how many\nstepps = 4\n', "steps = 12          # how many\n"
    )
    assert path.read_text() == wanted


async def test_a_file_that_is_no_toml_opens_and_the_editor_mends_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = own(tmp_path, "[model\n")
    fixed = tmp_path / "fixed.toml"
    fixed.write_text(SMALL.read_text())
    monkeypatch.setenv("VISUAL", f"cp {fixed}")
    monkeypatch.setattr(OneScreen, "suspend", lambda self: nullcontext())

    async with shown(tmp_path, path) as (screen, pilot, app):
        # The path before it may be long; what is seen is cut then.
        above = str(screen.query_one("#above", Static).content)
        assert "is not valid TOML" in above and "F4" in above
        await press(pilot, "f5")
        assert not app.asked
        await press(pilot, "f4")
        assert screen.draft.config == load_config(SMALL) and "architecture" in text_of(app)


async def test_what_the_editor_saved_is_taken_back_and_compared_with_the_preset(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "editor.sh"
    script.write_text("#!/bin/sh\nsed -i 's/^steps = .*/steps = 33  # by hand/' \"$1\"\n")
    script.chmod(0o755)
    monkeypatch.setenv("VISUAL", str(script))
    monkeypatch.setattr(OneScreen, "suspend", lambda self: nullcontext())

    async with shown(tmp_path, SMALL) as (screen, pilot, app):
        row = await go_to(screen, pilot, "train.steps")
        await press(pilot, "f4")
        assert isinstance(row.control, Input) and row.control.value == "33"
        assert screen.draft.changed == ("train.steps",) and "# by hand" in screen.draft.toml()
        monkeypatch.setenv("VISUAL", "false")
        await press(pilot, "f4")
        assert screen.draft.value("train.steps") == 33 and "ended with code 1" in app.told[-1]


async def test_without_a_terminal_to_lend_there_is_no_editor(tmp_path: Path) -> None:
    async with shown(tmp_path, SMALL) as (_screen, pilot, app):
        await press(pilot, "f4")
        assert app.told == ["an editor cannot run in this terminal"]


async def test_another_model_asks_for_its_model_profile_and_then_shows_its_plan(tmp_path: Path) -> None:
    machine = PlannedMachine()
    machine.hold()

    async with shown(tmp_path, machine=machine) as (screen, pilot, app):
        before = screen.live.plan
        row = await go_to(screen, pilot, "model.config")
        assert isinstance(row.control, TextArea)
        row.control.load_text(row.control.text.replace("n_layer = 50", "n_layer = 4"))
        await until(pilot, lambda: bool(machine.asked) and "as a test" in text_of(app))
        assert machine.asked[0]["config"]["n_layer"] == 4
        assert screen.query_one(FitMeter).stale and "profiling the model, as a test" in text_of(app)
        machine.may_answer.set()
        await settled(pilot)
        assert screen.live.plan is not before and screen.live.plan is not None
        assert screen.live.plan.memory.parameters == 842_624
        assert not screen.query_one(FitMeter).stale


async def test_a_model_profile_is_called_off_when_the_model_changes_again_and_when_the_screen_goes(
    tmp_path: Path,
) -> None:
    machine = PlannedMachine()
    machine.hold()

    async with shown(tmp_path, machine=machine) as (screen, pilot, app):
        row = await go_to(screen, pilot, "model.config")
        assert isinstance(row.control, TextArea)
        for layers in (4, 5):
            row.control.load_text(f"n_layer = {layers}")
            await until(pilot, lambda wanted=layers - 3: len(machine.asked) == wanted)
        assert [table["config"]["n_layer"] for table in machine.asked] == [4, 5]
        assert machine.cancels[0].is_set() and not machine.cancels[1].is_set()
        await pilot.press("escape")
        await press(pilot, "y")
        assert machine.cancels[1].is_set() and app.screen is not screen


async def test_an_unmeasured_machine_is_measured_when_asked_and_can_be_called_off(tmp_path: Path) -> None:
    machine = PlannedMachine(None)

    async with shown(tmp_path, machine=machine) as (screen, pilot, app):
        assert screen.live.plan is not None and screen.live.plan.time is None
        assert "F3 measures this machine" in text_of(app)
        machine.hold()
        await pilot.press("f3")
        await until(pilot, lambda: "measuring: the memory's speed" in text_of(app))
        await press(pilot, "f3")
        assert machine.cancels[0].is_set() and screen.live.plan.time is None
        machine.may_answer.set()
        await press(pilot, "f3")
        assert screen.live.plan.time is not None and "a step" in text_of(app)


async def test_leaving_asks_only_where_something_would_be_lost(tmp_path: Path) -> None:
    async with shown(tmp_path, SMALL) as (screen, pilot, app):
        await go_to(screen, pilot, "train.steps")
        await write(pilot, "5")
        await pilot.press("escape")
        await pilot.press("enter")  # stay
        assert app.screen is screen
        await press(pilot, "ctrl+r")
        await pilot.press("escape")
        assert app.screen is not screen


async def test_arrow_keys_walk_through_fields_and_up_from_the_first_to_the_tables(tmp_path: Path) -> None:
    async with shown(tmp_path) as (screen, pilot, _app):
        await go_to(screen, pilot, "train.device")
        await pilot.press("down")
        assert screen.focused_field == "train.steps"
        await pilot.press("up", "up")
        assert screen.query_one(TableTabs).has_focus
        await pilot.press("right")
        assert screen.query_one(TableTabs).value == "optimizer" and screen.query_one(TableTabs).has_focus


@pytest.mark.parametrize("size", [(80, 24), (200, 60)])
async def test_a_click_chooses_a_table_and_a_value(size: tuple[int, int], tmp_path: Path) -> None:
    async with shown(tmp_path, size=size) as (screen, pilot, app):
        lines = text_of(app).splitlines()
        y = next(number for number, line in enumerate(lines) if " offload " in line)
        await pilot.click(offset=(lines[y].index("offload") + 1, y))
        await settled(pilot)
        assert screen.query_one(TableTabs).value == "offload"
        lines = text_of(app).splitlines()
        y = next(number for number, line in enumerate(lines) if "state_format" in line)
        await pilot.click(offset=(lines[y].index("half") + 1, y))
        await settled(pilot)
        assert screen.draft.value("offload.state_format") == "half"


@pytest.mark.parametrize("size", [(60, 16), (120, 40)])
async def test_ascii_mode_draws_nothing_else(size: tuple[int, int], tmp_path: Path) -> None:
    async with shown(tmp_path, size=size, glyphs=PLAIN) as (screen, pilot, app):
        await go_to(screen, pilot, "train.steps")
        await write(pilot, "0")
        drawn = "\n".join(line for line in text_of(app).splitlines()[:-1])  # the last one is the footer
        assert {letter for letter in drawn if not letter.isascii()} <= set("▁▂▃▄▅▆▇█▔▎▊▋▍")


async def test_the_machine_is_looked_at_again_when_the_screen_comes_back_late(tmp_path: Path) -> None:
    machine = PlannedMachine()

    async with shown(tmp_path, machine=machine) as (screen, pilot, _app):
        before = machine.looks
        screen._looked_at -= 60
        screen.on_screen_resume()
        await settled(pilot)
        assert machine.looks == before + 1 and screen.live.plan is not None


@pytest.mark.slow
@pytest.mark.parametrize("preset", sorted(shipped_folder().glob("*.toml")), ids=lambda path: path.stem)
async def test_shipped_presets_open_without_problems(preset: Path, tmp_path: Path) -> None:
    async with shown(tmp_path, preset) as (screen, _pilot, _app):
        assert screen.draft.config is not None and screen.live.plan is not None


async def test_what_takes_a_model_profile_is_there_while_the_form_is_and_makes_room_for_a_run(
    tmp_path: Path,
) -> None:
    machine = PlannedMachine()

    async with shown(tmp_path, SMALL, machine=machine) as (screen, pilot, app):
        assert not machine.is_ready, "the first picture waits for nothing"
        screen.machine.start_profiler()
        assert machine.is_ready
        await press(pilot, "f5")
        assert app.asked and not machine.is_ready
        screen.machine.start_profiler()
        await pilot.press("escape")
        assert app.screen is not screen and not machine.is_ready


async def test_what_a_run_was_started_with_is_not_asked_about_again(tmp_path: Path) -> None:
    async with shown(tmp_path, SMALL) as (screen, pilot, app):
        await go_to(screen, pilot, "train.steps")
        await write(pilot, "5")
        assert screen.unsaved == "1 field is changed and not saved."
        await press(pilot, "f5")
        assert app.asked and screen.unsaved == ""
        await write(pilot, "6")
        assert screen.unsaved
