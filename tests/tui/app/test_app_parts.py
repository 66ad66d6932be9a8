"""Presets, runs and the monitor stand beside each other, each as it was left; and what screens ask for is answered."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
from screen_host import text_of, until
from settled_pilot import settled
from textual.widgets import Input, Static
from whole_app import App, House

from workbench.errors import ConfigurationError
from workbench.runs import RunDirectory, launch
from workbench.tui.messages import CompareRuns, OpenPreset, OpenRun, ResumeRun, StartRun
from workbench.tui.screens.live_screen import LiveScreen


async def test_each_part_keeps_what_lies_on_it(house: House) -> None:
    path, run = house.preset("tiny"), house.run()

    async with house.shown() as (app, pilot):
        assert app.shown == "PresetsScreen"
        app.screen.post_message(OpenPreset(path))
        await until(pilot, lambda: app.shown == "ConfigureScreen")
        form = app.screen
        await app.action_show_part("runs")
        await until(pilot, lambda: app.shown == "RunsScreen")
        app.screen.post_message(OpenRun(run))
        await until(pilot, lambda: app.shown == "RunScreen")
        await pilot.press("M")
        await until(pilot, lambda: app.shown == "TopScreen")
        assert app.stack == ["TopScreen"]
        await pilot.press("H")
        await until(pilot, lambda: app.shown == "RunScreen")
        assert app.stack == ["RunsScreen", "RunScreen"]
        await pilot.press("P")
        await until(pilot, lambda: app.screen is form)
        assert app.stack == ["PresetsScreen", "ConfigureScreen"]


async def test_a_run_that_is_shown_is_shown_once_and_another_takes_its_place(house: House) -> None:
    first, second = house.run(1), house.run(2)

    async with house.shown() as (app, pilot):
        for asked in (first, first, second):
            app.post_message(OpenRun(asked))
            await until(pilot, lambda asked=asked: getattr(app.screen, "run", None) == asked)
            await settled(pilot)
            assert app.stack == ["RunsScreen", "RunScreen"]
        app.screen.post_message(CompareRuns((first, second)))
        await until(pilot, lambda: app.shown == "CompareScreen")
        assert app.screen.runs == (first, second)  # type: ignore[attr-defined]
        assert app.stack == ["RunsScreen", "RunScreen", "CompareScreen"]


async def test_a_configuration_is_started_and_its_run_shown(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = house.run()
    asked: list[tuple[str, str, Path]] = []

    def start(text: str, name: str, root: Path) -> RunDirectory:
        asked.append((text, name, root))
        return run

    monkeypatch.setattr(launch, "start", start)

    async with house.shown() as (app, pilot):
        app.screen.post_message(StartRun("[train]\nsteps = 3\n", "tiny"))
        await until(pilot, lambda: app.shown == "RunScreen")
        assert app.screen.run == run  # type: ignore[attr-defined]
    assert asked == [("[train]\nsteps = 3\n", "tiny", house.runs)]


@pytest.mark.parametrize(
    ("typed", "changes"),
    [("", []), ("train.steps=200 data.source='a b'", ["train.steps=200", "data.source=a b"])],
)
async def test_a_run_is_resumed_with_the_changes_that_are_typed_and_shown(
    house: House, monkeypatch: pytest.MonkeyPatch, typed: str, changes: list[str]
) -> None:
    run = house.run()
    resumed: list[tuple[RunDirectory, list[str]]] = []
    monkeypatch.setattr(launch, "resume", lambda run, overrides: resumed.append((run, overrides)))
    saved = SimpleNamespace(step=12, path=run.checkpoints / "step-00000012")
    monkeypatch.setattr("workbench.training.resume_check.newest_checkpoint", lambda _: saved)

    async with house.shown() as (app, pilot):
        await pilot.press("H")
        await until(pilot, lambda: app.shown == "RunsScreen")
        await settled(pilot)
        await pilot.press("R")
        await until(pilot, lambda: app.shown == "AskText")
        field = app.screen.query_one(Input)
        for wrong, words in {
            "train.step=3": "there is no such key in [train]",
            "train.steps": "has no '='",
            "train.steps='3": "no closing quotation",
            "optimizer.learning_rate=-1": "optimizer.learning_rate = -1",
            "train.steps=10": "has done 12 steps already; give a larger number",
            "model.architecture=llama": "continues with the model of its checkpoint",
        }.items():
            field.value = wrong
            await pilot.press("enter")
            await until(
                pilot, lambda words=words: words in str(app.screen.query_one("#wrong", Static).render())
            )
            assert not resumed
        field.value = typed
        await pilot.press("enter")
        await until(pilot, lambda: app.shown == "RunScreen")
    assert resumed == [(run, changes)]


@pytest.mark.parametrize(
    ("shown", "change"), [("RunsScreen", "train.steps=20"), ("RunScreen", "train.epochs=2")]
)
async def test_a_run_that_has_done_all_its_steps_is_asked_for_more_of_them(
    house: House, monkeypatch: pytest.MonkeyPatch, shown: str, change: str
) -> None:
    run = house.run(finished=True)
    run.config.write_text(run.config.read_text().replace("steps = 100", "steps = 12"))
    resumed: list[list[str]] = []
    monkeypatch.setattr(launch, "resume", lambda run, overrides: resumed.append(overrides))

    def problem(app: App) -> str:
        return str(app.screen.query_one("#wrong", Static).render())

    async with house.shown() as (app, pilot):
        await pilot.press("H")
        await until(pilot, lambda: app.shown == "RunsScreen")
        await settled(pilot)
        if shown == "RunScreen":
            await pilot.press("enter")
            await until(pilot, lambda: app.shown == "RunScreen")
            await settled(pilot)
        await pilot.press("R")
        await until(pilot, lambda: app.shown == "AskText")
        assert "All its 12 steps are done" in str(app.screen.query_one(".text", Static).render())
        field = app.screen.query_one(Input)
        assert field.value == "train.steps=" and field.cursor_position == len(field.value)
        for typed in ("train.steps=", "", "train.steps=12", "optimizer.learning_rate=1e-4"):
            field.value = typed
            await pilot.press("enter")
            await until(pilot, lambda: "all 12 steps are done: give a larger number" in problem(app))
            field.value = "train.steps=many"
            await pilot.press("enter")
            await until(pilot, lambda: "must be a whole number" in problem(app))
        assert not resumed
        field.value = change
        await pilot.press("enter")
        await until(pilot, lambda: bool(resumed))
    assert resumed == [[change]]


async def test_what_cannot_be_started_is_told_and_nothing_else_happens(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> RunDirectory:
        raise ConfigurationError("tiny: train.steps = 0: must be at least 1 [not markup]")

    monkeypatch.setattr(launch, "start", refuse)
    monkeypatch.setattr(launch, "resume", refuse)

    async with house.shown() as (app, pilot):
        for message in (StartRun("", "tiny"), ResumeRun(house.run())):
            app.reports.clear()
            app.screen.post_message(message)
            if isinstance(message, ResumeRun):
                await until(pilot, lambda: app.shown == "AskText")
                await pilot.press("enter")
            await until(pilot, lambda: bool(app.reports))
            assert app.reports == [("tiny: train.steps = 0: must be at least 1 [not markup]", "error")]
            assert app.stack == ["PresetsScreen"]


async def test_a_read_only_look_starts_and_resumes_nothing(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> RunDirectory:
        raise AssertionError("it was started")

    monkeypatch.setattr(launch, "start", fail)
    monkeypatch.setattr(launch, "resume", fail)
    run = house.run()

    async with house.shown(read_only=True) as (app, pilot):
        app.screen.post_message(StartRun("", "tiny"))
        app.screen.post_message(ResumeRun(run))
        await until(pilot, lambda: len(app.reports) == 2)
        await settled(pilot)
        assert all("read-only" in said.lower() for said, _ in app.reports)
        assert app.stack == ["PresetsScreen"]


async def test_the_monitor_samples_while_the_application_lasts(house: House) -> None:
    async with house.shown() as (_, pilot):
        await until(pilot, lambda: house.monitor.begun == 1)
        assert house.monitor.ended == 0
    assert (house.monitor.begun, house.monitor.ended) == (1, 1)


@pytest.mark.parametrize("part", ["runs", "top"])
async def test_it_begins_with_the_part_that_is_asked_for(house: House, part: str) -> None:
    async with house.shown(part=part) as (app, _):
        assert app.stack == [{"runs": "RunsScreen", "top": "TopScreen"}[part]]


async def test_it_begins_with_the_run_that_is_asked_for(house: House) -> None:
    run = house.run()

    async with house.shown(run=run) as (app, pilot):
        await until(pilot, lambda: app.shown == "RunScreen")
        assert app.stack == ["RunsScreen", "RunScreen"]


async def test_a_screen_that_is_covered_reads_nothing_until_it_can_be_seen(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = house.run()
    async with house.shown(part="runs") as (app, pilot):
        beneath = app.screen
        assert isinstance(beneath, LiveScreen)
        looks: list[str] = []
        await app.open(pilot, OpenRun(run), "RunScreen")
        monkeypatch.setattr(type(beneath), "look", lambda self: looks.append("runs"))
        monkeypatch.setattr(type(app.screen), "look", lambda self: looks.append("run"))
        for key, screen, expected in (
            ("", "RunScreen", ["run"]),
            ("question_mark", "HelpScreen", ["run"]),  # which lets it show through
            ("escape", "RunScreen", ["run"]),
            ("escape", "RunsScreen", ["runs"]),
        ):
            await pilot.press(*filter(None, [key]))
            await until(pilot, lambda screen=screen: app.shown == screen)
            looks.clear()
            for each in (beneath, *app.screen_stack[1:2]):
                if isinstance(each, LiveScreen) and each.is_attached:
                    each.tick()
            assert looks == expected[: len(app.screen_stack)], screen


async def test_the_monitor_follows_a_run_that_begins_while_it_is_shown(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workbench.tui.app.LOOK_FOR_RUNS_S", 0.05)
    async with house.shown(part="top") as (app, pilot):
        await until(pilot, lambda: house.monitor.begun == 1)
        assert app._training is None
        run = house.run(living=True)
        await until(pilot, lambda: app._training == run)
        assert app._top_screen is not None and app._top_screen._run is not None


@pytest.mark.parametrize("size", [(80, 24), (60, 16)], ids=["high", "low"])
async def test_every_screen_shows_the_parts_and_a_click_goes_to_one(
    house: House, size: tuple[int, int]
) -> None:
    run = house.run()
    high = size[1] == 24
    async with house.shown(size=size) as (app, pilot):

        def last() -> str:
            return text_of(app).splitlines()[-1]

        assert (" P Presets  H Runs  M Machine " if high else " P  H  M ") in last()
        for message, shown in (
            (OpenPreset(house.preset("tiny")), "ConfigureScreen"),
            (OpenRun(run), "RunScreen"),
        ):
            await app.open(pilot, message, shown)
            await settled(pilot)
            assert ("M Machine" if high else " M ") in last()
        await pilot.click(offset=(last().index(" M ") + 1, size[1] - 1))
        await until(pilot, lambda: app.shown == "TopScreen")
        await settled(pilot)
        assert ("M Machine" if high else " M ") in last()


async def test_the_last_line_has_the_keys_of_the_focused_panel_and_a_click_is_that_key(house: House) -> None:
    async with house.shown(size=(120, 40)) as (app, pilot):
        await app.open(pilot, OpenRun(house.run()), "RunScreen")
        await pilot.press("4")
        await settled(pilot)
        last = text_of(app).splitlines()[-1]
        assert "/ Search" in last and "g Go to step" in last and "Zoom" not in last
        await pilot.click(offset=(last.index("g Go to step"), 39))
        await until(pilot, lambda: "step _" in text_of(app))
        await pilot.press("escape", "1")
        await settled(pilot)
        assert "Zoom in" in text_of(app).splitlines()[-1]
