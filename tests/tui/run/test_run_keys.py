"""The keys of the run's screen: what they ask of the trainer, what they show, and the question before leaving."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from run_host import Host, add_steps, ended, live, look, new_run, picture, rewrite, shown
from sampled_machines import sample_at
from screen_host import until
from textual.pilot import Pilot

from workbench.runs import LaneSpan, RunDirectory, Status, append_event, write_lanes
from workbench.runs.control import Answer, ControlReader
from workbench.runs.records import read_lines
from workbench.tui.dialogs import Choice, Confirm
from workbench.tui.panels.status_line import KeyLine
from workbench.tui.run import screen as run_screen
from workbench.tui.run.charts import LinkedChart

CHANGING = {"pause", "save", "stop", "resume"}


def asked(run: RunDirectory) -> list[str]:
    """Return the commands that the trainer was asked for."""
    return [str(line["verb"]) for _, line in read_lines(run.control).records]


async def obey(run: RunDirectory, pilot: Pilot[None], command: str, message: str) -> None:
    """Be the trainer: wait for the command and answer it."""
    run.acquired_at = 0.0
    reader = ControlReader(run)
    found = None
    while found is None:
        found = next((each for each in reader.poll() if each.verb == command), None)
        await asyncio.sleep(0.005)
    reader.acknowledge(found, message)


async def dialog(host: Host, pilot: Pilot[None], key: str, kind: type) -> None:
    """Press a key, and wait for the question that it asks."""
    await pilot.press(key)
    await until(pilot, lambda: isinstance(host.screen, kind))


async def back(host: Host, pilot: Pilot[None], key: str) -> None:
    """Answer the question with a key, and wait until it is gone."""
    await pilot.press(key)
    await until(pilot, lambda: host.screen is host.run_screen)


async def left(host: Host, pilot: Pilot[None]) -> None:
    await until(pilot, lambda: host.run_screen not in host.screen_stack)


async def test_commands_are_seen_at_once_and_their_answers_reported(tmp_path: Path) -> None:
    run = new_run(tmp_path, live())
    async with shown(run) as (host, pilot):
        line = host.run_screen.line
        for key, command, word, answer, phase in (
            ("p", "pause", "pausing", "paused after step 20", "paused"),
            ("p", "resume", "continuing", "continuing after step 20", "training"),
            ("k", "save", "saving", "saved checkpoints/step-00000020", "training"),
        ):
            await pilot.press(key)
            assert word in picture(line)
            await obey(run, pilot, command, answer)
            await until(pilot, lambda answer=answer: any(answer in toast for toast in host.toasts))
            assert word not in picture(line)
            rewrite(run, phase=phase)
            await look(host, pilot)
        assert asked(run) == ["pause", "resume", "save"]


async def test_s_asks_first_and_then_stops(tmp_path: Path) -> None:
    run = new_run(tmp_path, live())
    async with shown(run) as (host, pilot):
        screen = host.run_screen
        await dialog(host, pilot, "s", Confirm)
        await back(host, pilot, "n")
        assert asked(run) == [] and not screen.stopping
        await dialog(host, pilot, "s", Confirm)
        await pilot.press("y")
        await until(pilot, lambda: screen.stopping)
        await obey(run, pilot, "stop", "stopping after step 21, then saving")
        await until(pilot, lambda: bool(host.toasts))
        await look(host, pilot)
        assert "stopping" in picture(screen.line)
        rewrite(run, phase="stopped", exit_code=143, message="stopped")
        await look(host, pilot)
        assert "stopping" not in picture(screen.line) and not screen.stopping


async def test_a_second_s_asks_whether_to_end_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = new_run(tmp_path, live())
    ends: list[RunDirectory] = []
    monkeypatch.setattr(
        run_screen, "end_at_once", lambda run: (ends.append(run), Answer(True, "it is over"))[1]
    )
    append_event(run, "control", id="x", verb="stop", message="stopping after step 20, then saving")
    async with shown(run) as (host, pilot):
        # It was asked to stop by somebody else, before this screen was there.
        assert host.run_screen.stopping and "stopping" in picture(host.run_screen.line)
        for key in ("enter", "escape", "n"):
            await dialog(host, pilot, "s", Confirm)
            assert "at once" in host.text.lower()
            await back(host, pilot, key)
        assert ends == []
        await dialog(host, pilot, "s", Confirm)
        await pilot.press("y")
        await until(pilot, lambda: any("it is over" in toast for toast in host.toasts))
        assert ends == [run] and asked(run) == []


async def test_a_stop_that_an_earlier_trainer_took_is_none_of_this_ones(tmp_path: Path) -> None:
    run = new_run(tmp_path, live())
    text = '{"version": 1, "time": 5.0, "kind": "control", "id": "x", "verb": "stop", "message": ""}\n'
    run.events.write_text(text + run.events.read_text())
    async with shown(run) as (host, _):
        assert not host.run_screen.stopping


@pytest.mark.parametrize(
    ("status", "read_only", "holds"),
    [
        (live(), False, {"pause", "save", "stop"}),
        (live(phase="paused"), False, CHANGING),
        (ended("finished", 0, "100 steps"), False, {"resume"}),
        (ended("stopped", 143, "stopped"), False, {"resume"}),
        (ended("failed", 1, "no memory"), False, {"resume"}),
        (live(), True, set()),
    ],
    ids=["running", "paused", "finished", "stopped", "failed", "read-only"],
)
async def test_only_what_can_be_done_to_the_run_is_offered(
    tmp_path: Path, status: Status, read_only: bool, holds: set[str]
) -> None:
    run = new_run(tmp_path, status)
    async with shown(run, read_only=read_only) as (host, pilot):
        bindings = host.run_screen.active_bindings.values()
        assert {each.binding.action for each in bindings if each.enabled} & CHANGING == holds
        assert ("read-only" in host.text) == read_only
        keys = {"p": "pause", "k": "save", "s": "stop", "R": "resume"}
        await pilot.press(*(key for key, action in keys.items() if action not in holds))
        assert host.screen is host.run_screen and not asked(run) and not host.toasts and not host.resumed
        if "resume" in holds and status.phase != "paused":
            await pilot.press("R")
            await until(pilot, lambda: host.resumed == [run])


async def test_the_keys_that_are_offered_follow_the_run(tmp_path: Path) -> None:
    run = new_run(tmp_path, live())
    async with shown(run) as (host, pilot):
        keys = host.run_screen.query_one(KeyLine)
        assert "Stop" in picture(keys) and "Resume" not in picture(keys)
        rewrite(run, phase="stopped", exit_code=143, message="stopped")
        await look(host, pilot)
        await until(pilot, lambda: "Resume" in picture(keys))
        assert "Stop" not in picture(keys) and "Pause" not in picture(keys)


async def test_z_freezes_the_picture_and_lets_it_catch_up(tmp_path: Path) -> None:
    run = new_run(tmp_path, live())
    async with shown(run, sample=sample_at()) as (host, pilot):
        screen = host.run_screen
        await pilot.press("z")
        assert "frozen at" in picture(screen.line)
        before, looks = picture(screen.charts), screen.reader.looks
        add_steps(run, 21, 60)
        host.monitor.latest = sample_at(2000.0, gpus=0)
        screen.tick()
        await pilot.pause()
        assert picture(screen.charts) == before and screen.reader.looks == looks
        assert "GPU 87 % of 8" in picture(screen.machine.panels[2])
        await pilot.press("z")
        await until(pilot, lambda: len(screen.charts.curves) == 60)
        assert "frozen" not in picture(screen.line) and "No GPU" in picture(screen.machine.no_gpu)


async def test_y_copies_the_path_and_a_click_on_a_groups_name_shows_it(tmp_path: Path) -> None:
    run = new_run(tmp_path, live())
    async with shown(run, size=(80, 24)) as (host, pilot):
        await pilot.press("y")
        assert host.copied == str(run.path)
        screen = host.run_screen
        text = picture(screen.group_line)
        assert "[1 charts]" in text and " 2 machine " in text and text.rstrip().endswith("0a1b2c")
        await pilot.click("#run-groups", offset=(text.index("samples"), 0))
        await until(pilot, lambda: "Once upon a time" in host.text)
        assert screen.groups.chosen == "samples" and screen.focused is screen.samples


async def test_keys_of_the_horizontal_axis_work_on_all_charts_and_those_of_values_on_one(
    tmp_path: Path,
) -> None:
    async with shown(new_run(tmp_path, live(), steps=100)) as (host, pilot):
        charts = host.run_screen.charts
        await pilot.press("x", "plus", "c", "G", "g")
        seen = charts.charts[:4]
        assert {chart.view.axis for chart in seen} == {"tokens"}
        assert all(chart.view.part is not None and chart.view.log for chart in seen)
        assert len({chart.cursor for chart in seen}) == 1 and charts.loss.cursor is not None
        assert [chart.log_y for chart in seen] == [True, False, False, False]
        assert all("tokens" in str(chart.border_subtitle) for chart in seen)
        await pilot.press("0")
        assert all(chart.view.part is None for chart in seen)
        # `s` is the run's, so that leaving out the start has another key.
        await pilot.press("S")
        assert charts.loss.view.skip == 10 and host.screen is host.run_screen


@pytest.mark.parametrize("size", [(60, 16), (120, 40)], ids=["one", "all"])
async def test_v_goes_through_all_charts(tmp_path: Path, size: tuple[int, int]) -> None:
    async with shown(new_run(tmp_path, live()), size=size) as (host, pilot):
        screen, found = host.run_screen, []
        await pilot.press("4")
        for _ in range(7):
            await pilot.press("v")
            assert screen.groups.seen[0] == "charts" or size[0] >= 120
            if isinstance(screen.focused, LinkedChart):
                assert screen.focused.region.area
                found.append(screen.focused.id)
            assert sum(chart.display for chart in screen.charts.charts) == (1 if size[0] == 60 else 5)
        assert len(set(found)) == 5 and found[0] == found[5]


@pytest.mark.parametrize("digit", ["1", "2", "3", "6"])
async def test_m_shows_one_panel_alone_and_m_escape_or_a_digit_all_again(tmp_path: Path, digit: str) -> None:
    async with shown(new_run(tmp_path, live()), sample=sample_at()) as (host, pilot):
        screen = host.run_screen
        await pilot.press(digit)
        focused = screen.focused
        assert focused is not None
        for key in ("m", "escape", "4"):
            await pilot.press("m")
            assert screen.maximized is focused
            assert focused.outer_size.width >= 118 and focused.outer_size.height >= 36
            await pilot.press(key)
            assert screen.maximized is None and host.screen is screen
            assert focused.outer_size.width <= 80 or not focused.region
        assert screen.focused is screen.log_view


async def test_escape_ends_a_search_in_the_log_before_it_leaves(tmp_path: Path) -> None:
    async with shown(new_run(tmp_path, live())) as (host, pilot):
        screen = host.run_screen
        await pilot.press("4")
        await until(pilot, lambda: "step 00020" in picture(screen.log_view))
        await pilot.press("slash", "q", "s", "2", "enter", "escape")
        assert host.screen is screen and screen.groups.chosen == "log"
        await dialog(host, pilot, "escape", Choice)


@pytest.mark.parametrize("key", ["q", "escape"])
async def test_leaving_a_living_run_asks_and_staying_and_detaching_leave_it_alone(
    tmp_path: Path, key: str
) -> None:
    run = new_run(tmp_path, live())
    async with shown(run) as (host, pilot):
        for stay in ("r", "escape"):
            await dialog(host, pilot, key, Choice)
            # Asked again meanwhile, it does not ask twice.
            assert not await host.run_screen.may_quit()
            await back(host, pilot, stay)
        await dialog(host, pilot, key, Choice)
        await pilot.press("2")  # a digit chooses a panel elsewhere, and answers nothing here
        assert isinstance(host.screen, Choice)
        await pilot.press("d")
        await left(host, pilot)
        assert asked(run) == []


async def test_stopping_asks_the_trainer_and_leaves_and_stays_where_it_cannot_be_asked(
    tmp_path: Path,
) -> None:
    run = new_run(tmp_path, live())
    run.control.mkdir()
    async with shown(run) as (host, pilot):
        await dialog(host, pilot, "q", Choice)
        await dialog(host, pilot, "s", Confirm)
        await back(host, pilot, "n")
        assert asked(run) == []
        await dialog(host, pilot, "q", Choice)
        await dialog(host, pilot, "s", Confirm)
        await pilot.press("y")
        await until(pilot, lambda: bool(host.toasts))
        assert host.screen is host.run_screen and "control.jsonl" in host.toasts[0]
        run.control.rmdir()
        await dialog(host, pilot, "q", Choice)
        await dialog(host, pilot, "s", Confirm)
        await pilot.press("y")
        await left(host, pilot)
        assert asked(run) == ["stop"]


@pytest.mark.parametrize("case", ["ended", "read-only", "ended since"])
async def test_with_nothing_of_ones_own_running_leaving_asks_nothing(tmp_path: Path, case: str) -> None:
    run = new_run(tmp_path, ended("finished", 0, "done") if case == "ended" else live())
    async with shown(run, read_only=case == "read-only") as (host, pilot):
        if case == "ended since":
            rewrite(run, phase="finished", exit_code=0)
        await pilot.press("q")
        await left(host, pilot)
        assert asked(run) == []


async def test_r_shows_the_lanes_and_the_log_of_the_next_rank(tmp_path: Path) -> None:
    run = new_run(tmp_path, live())
    second = RunDirectory(run.path / "ranks" / "1")
    second.path.mkdir(parents=True)
    write_lanes(second, 20, [LaneSpan("communicate", "reduce", 0, 0, 0.1, 0.3)])
    second.log.write_text("words of the second rank\n")
    async with shown(run, size=(200, 60)) as (host, pilot):
        screen = host.run_screen
        await look(host, pilot)
        assert "communicate" not in picture(screen.lanes)
        await pilot.press("r")
        await look(host, pilot)
        await until(pilot, lambda: "words of the second rank" in picture(screen.log_view))
        assert "communicate" in picture(screen.lanes) and "lanes and log of rank 1" in host.text
        await pilot.press("r")
        await look(host, pilot)
        await until(pilot, lambda: "step 00020/00100" in picture(screen.log_view))
        assert "download" in picture(screen.lanes) and "communicate" not in picture(screen.lanes)


async def test_r_is_not_offered_where_one_rank_trains(tmp_path: Path) -> None:
    async with shown(new_run(tmp_path, live())) as (host, pilot):
        await pilot.press("r")
        assert host.run_screen.rank == 0 and "Next rank" not in host.text
