"""The keys of the run's screen: what they ask of the trainer, what they show, and the question before leaving."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from run_host import Host, add_steps, drive, ended, live, look, new_run, picture, rewrite
from sampled_machines import sample_at
from screen_host import until
from textual.pilot import Pilot

from workbench.runs import RunDirectory, Status, append_event
from workbench.runs.control import Answer, ControlReader
from workbench.runs.writing import read_lines
from workbench.tui.dialogs import Choice, Confirm
from workbench.tui.panels.key_line import KeyLine
from workbench.tui.run import steering
from workbench.tui.run.linked_chart import LinkedChart


def asked(run: RunDirectory) -> list[str]:
    """The verbs that the trainer was asked for."""
    return [str(line["verb"]) for _, line in read_lines(run.control).records]


async def obey(run: RunDirectory, host: Host, pilot: Pilot[None], verb: str, message: str) -> None:
    """Be the trainer: wait for the verb and answer it."""
    run.acquired_at = 0.0
    reader = ControlReader(run)
    found = None
    while found is None:
        found = next((command for command in reader.poll() if command.verb == verb), None)
        await pilot.pause()
        await asyncio.sleep(0.002)
    reader.acknowledge(found, message)


def test_p_pauses_which_is_seen_at_once_and_goes_on_again(tmp_path: Path) -> None:
    run = new_run(tmp_path, live())

    async def scenario(host: Host, pilot: Pilot[None]) -> None:
        screen = host.run_screen
        await pilot.press("p")
        assert "pausing" in picture(screen.line)
        await obey(run, host, pilot, "pause", "paused after step 20")
        await until(pilot, lambda: "Paused after step 20" in host.toasts)
        assert "pausing" not in picture(screen.line)
        rewrite(run, phase="paused")
        await look(host, pilot)
        await pilot.press("p")
        assert "going on" in picture(screen.line)
        await obey(run, host, pilot, "resume", "going on after step 20")
        await until(pilot, lambda: "Going on after step 20" in host.toasts)
        assert asked(run) == ["pause", "resume"]

    drive(run, scenario)


def test_k_saves_now(tmp_path: Path) -> None:
    run = new_run(tmp_path, live())

    async def scenario(host: Host, pilot: Pilot[None]) -> None:
        await pilot.press("k")
        assert "saving" in picture(host.run_screen.line)
        await obey(run, host, pilot, "save", "saved checkpoints/step-00000020")
        await until(pilot, lambda: "Saved checkpoints/step-00000020" in host.toasts)
        assert asked(run) == ["save"]

    drive(run, scenario)


def test_s_asks_first_and_then_stops(tmp_path: Path) -> None:
    run = new_run(tmp_path, live())

    async def scenario(host: Host, pilot: Pilot[None]) -> None:
        screen = host.run_screen
        await pilot.press("s")
        await until(pilot, lambda: isinstance(host.screen, Confirm))
        await pilot.press("n")
        await until(pilot, lambda: host.screen is screen)
        assert asked(run) == [] and not screen.stopping
        await pilot.press("s")
        await until(pilot, lambda: isinstance(host.screen, Confirm))
        await pilot.press("y")
        await until(pilot, lambda: screen.stopping)
        assert "stopping" in picture(screen.line)
        await obey(run, host, pilot, "stop", "stopping after step 21, then saving")
        await until(pilot, lambda: bool(host.toasts))
        await look(host, pilot)
        assert "stopping" in picture(screen.line)
        rewrite(run, phase="stopped", exit_code=143, message="stopped")
        await look(host, pilot)
        assert "stopping" not in picture(screen.line) and not screen.stopping

    drive(run, scenario)


def test_a_second_s_asks_whether_to_end_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = new_run(tmp_path, live())
    ends: list[RunDirectory] = []

    def end(which: RunDirectory) -> Answer:
        ends.append(which)
        return Answer(True, "ended at once; the last checkpoint stands")

    monkeypatch.setattr(steering, "end_at_once", end)
    append_event(run, "control", id="x", verb="stop", message="stopping after step 20, then saving")

    async def scenario(host: Host, pilot: Pilot[None]) -> None:
        screen = host.run_screen
        # It was asked to stop by somebody else, before this screen was there.
        assert screen.stopping and "stopping" in picture(screen.line)
        for key in ("enter", "escape", "n"):
            await pilot.press("s")
            await until(pilot, lambda: isinstance(host.screen, Confirm))
            assert "At once" in host.text or "at once" in host.text
            await pilot.press(key)
            await until(pilot, lambda: host.screen is screen)
        assert ends == []
        await pilot.press("s")
        await until(pilot, lambda: isinstance(host.screen, Confirm))
        await pilot.press("y")
        await until(pilot, lambda: "Ended at once; the last checkpoint stands" in host.toasts)
        assert ends == [run] and asked(run) == []

    drive(run, scenario)


def test_a_stop_that_an_earlier_trainer_took_is_none_of_this_ones(tmp_path: Path) -> None:
    run = new_run(tmp_path, live())
    text = '{"version": 1, "time": 5.0, "kind": "control", "id": "x", "verb": "stop", "message": ""}\n'
    run.events.write_text(text + run.events.read_text())

    async def scenario(host: Host, pilot: Pilot[None]) -> None:
        assert not host.run_screen.stopping

    drive(run, scenario)


def offered(host: Host) -> set[str]:
    """The actions that keys of the run's screen stand for now."""
    return {binding.action for _, binding, enabled, _ in host.run_screen.active_bindings.values() if enabled}


@pytest.mark.parametrize(
    ("status", "holds"),
    [
        (live(), {"pause", "save_now", "stop"}),
        (live(phase="paused"), {"pause", "save_now", "stop", "resume"}),
        (ended("finished", 0, "100 steps"), {"resume"}),
        (ended("stopped", 143, "stopped"), {"resume"}),
        (ended("failed", 1, "no memory"), {"resume"}),
    ],
    ids=["running", "paused", "finished", "stopped", "failed"],
)
def test_only_what_can_be_done_to_the_run_is_offered(tmp_path: Path, status: Status, holds: set[str]) -> None:
    run = new_run(tmp_path, status)

    async def scenario(host: Host, pilot: Pilot[None]) -> None:
        assert offered(host) & {"pause", "save_now", "stop", "resume"} == holds
        if "pause" not in holds:
            await pilot.press("p", "k", "s")
            await pilot.pause()
            assert host.screen is host.run_screen and asked(run) == [] and not host.toasts
        if "resume" not in holds:
            await pilot.press("R")
            await pilot.pause()
            assert host.resumed == [] and asked(run) == []

    drive(run, scenario)


def test_the_keys_that_are_offered_follow_the_run(tmp_path: Path) -> None:
    run = new_run(tmp_path, live())

    async def scenario(host: Host, pilot: Pilot[None]) -> None:
        keys = host.run_screen.query_one(KeyLine)
        assert "Stop" in picture(keys) and "Resume" not in picture(keys)
        rewrite(run, phase="stopped", exit_code=143, message="stopped")
        await look(host, pilot)
        await until(pilot, lambda: "Resume" in picture(keys))
        assert "Stop" not in picture(keys) and "Pause" not in picture(keys)

    drive(run, scenario)


def test_shift_r_resumes_a_run_that_was_stopped(tmp_path: Path) -> None:
    run = new_run(tmp_path, ended("stopped", 143, "stopped"))

    async def scenario(host: Host, pilot: Pilot[None]) -> None:
        await pilot.press("R")
        await until(pilot, lambda: host.resumed == [run])

    drive(run, scenario)


def test_z_freezes_the_picture_and_lets_it_catch_up(tmp_path: Path) -> None:
    run = new_run(tmp_path, live())

    async def scenario(host: Host, pilot: Pilot[None]) -> None:
        screen = host.run_screen
        await pilot.press("z")
        assert "frozen at" in picture(screen.line)
        before, looks = picture(screen.charts), screen._reader.looks
        add_steps(run, 21, 60)
        host.monitor.latest = sample_at(2000.0, gpus=0)
        screen.tick()
        await pilot.pause()
        assert picture(screen.charts) == before and screen._reader.looks == looks
        assert "GPU 87 % of 8" in picture(screen.machine.panels[0])
        await pilot.press("z")
        await until(pilot, lambda: len(screen.charts.curves) == 60)
        assert "frozen" not in picture(screen.line)
        assert "No GPU" in picture(screen.machine.panels[0])

    drive(run, scenario, sample=sample_at())


def test_y_copies_the_path(tmp_path: Path) -> None:
    run = new_run(tmp_path, live())

    async def scenario(host: Host, pilot: Pilot[None]) -> None:
        await pilot.press("y")
        assert host.copied == str(run.path)

    drive(run, scenario)


def test_a_click_on_a_groups_name_shows_it(tmp_path: Path) -> None:
    async def scenario(host: Host, pilot: Pilot[None]) -> None:
        screen = host.run_screen
        at = picture(screen.groups_line).index("samples")
        await pilot.click("#run-groups", offset=(at, 0))
        await until(pilot, lambda: "Once upon a time" in host.text)
        assert screen.chosen == "samples" and screen.focused is screen.samples

    drive(new_run(tmp_path, live()), scenario, size=(80, 24))


def test_keys_of_the_horizontal_axis_work_on_all_charts_and_those_of_values_on_one(tmp_path: Path) -> None:
    async def scenario(host: Host, pilot: Pilot[None]) -> None:
        charts = host.run_screen.charts
        await pilot.press("x", "plus", "c", "G", "g")
        shown = charts.charts[:4]
        assert {chart.view.axis for chart in shown} == {"tokens"}
        assert all(chart.view.part is not None and chart.view.log for chart in shown)
        assert len({chart.cursor for chart in shown}) == 1 and charts.loss.cursor is not None
        assert [chart.log_y for chart in shown] == [True, False, False, False]
        assert all("tokens" in str(chart.border_subtitle) for chart in shown)
        await pilot.press("0")
        assert all(chart.view.part is None for chart in shown)
        # `s` is the run's, so that leaving out the start has another key.
        await pilot.press("S")
        assert charts.loss.view.skip == 10 and host.screen is host.run_screen

    drive(new_run(tmp_path, live(), steps=100), scenario)


@pytest.mark.parametrize("size", [(60, 16), (120, 40)], ids=["one", "all"])
def test_v_goes_through_all_charts(tmp_path: Path, size: tuple[int, int]) -> None:
    async def scenario(host: Host, pilot: Pilot[None]) -> None:
        screen, found = host.run_screen, []
        for _ in range(5):
            await pilot.press("v")
            assert isinstance(screen.focused, LinkedChart) and screen.focused.region.area
            found.append(screen.focused.id)
            shown = [chart for chart in screen.charts.charts if chart.display]
            assert len(shown) == (1 if size[0] == 60 else 4)
        assert len(set(found)) == 4 and found[0] == found[4]

    drive(new_run(tmp_path, live()), scenario, size=size)


def test_v_shows_the_charts_where_another_group_was_seen(tmp_path: Path) -> None:
    async def scenario(host: Host, pilot: Pilot[None]) -> None:
        await pilot.press("4", "v")
        assert host.run_screen.chosen == "charts"

    drive(new_run(tmp_path, live()), scenario, size=(80, 24))


@pytest.mark.parametrize("digit", ["1", "2", "3", "6"])
def test_m_shows_one_panel_alone_and_m_or_escape_all_again(tmp_path: Path, digit: str) -> None:
    async def scenario(host: Host, pilot: Pilot[None]) -> None:
        screen = host.run_screen
        await pilot.press(digit)
        focused = screen.focused
        assert focused is not None
        for back in ("m", "escape"):
            await pilot.press("m")
            await pilot.pause()
            alone = screen.maximized
            assert alone is focused
            assert focused.outer_size.width >= 118 and focused.outer_size.height >= 36
            await pilot.press(back)
            await pilot.pause()
            alone = screen.maximized
            assert alone is None and host.screen is screen
            assert focused.outer_size.width <= 80

    drive(new_run(tmp_path, live()), scenario, size=(120, 40), sample=sample_at())


def test_a_digit_leaves_the_panel_that_was_shown_alone(tmp_path: Path) -> None:
    async def scenario(host: Host, pilot: Pilot[None]) -> None:
        await pilot.press("m", "4")
        await pilot.pause()
        assert host.run_screen.maximized is None and host.run_screen.focused is host.run_screen.log_view

    drive(new_run(tmp_path, live()), scenario)


# Leaving.


async def leaving(host: Host, pilot: Pilot[None], key: str = "q") -> None:
    await pilot.press(key)
    await until(pilot, lambda: isinstance(host.screen, Choice))


async def left(host: Host, pilot: Pilot[None]) -> None:
    await until(pilot, lambda: host.run_screen not in host.screen_stack)


@pytest.mark.parametrize("key", ["q", "escape"])
def test_leaving_a_living_run_asks_and_detaching_leaves_it_alone(tmp_path: Path, key: str) -> None:
    run = new_run(tmp_path, live())

    async def scenario(host: Host, pilot: Pilot[None]) -> None:
        await leaving(host, pilot, key)
        await pilot.press("1")
        await left(host, pilot)
        assert asked(run) == []

    drive(run, scenario)


def test_staying_stays_and_stopping_asks_the_trainer_and_leaves(tmp_path: Path) -> None:
    run = new_run(tmp_path, live())

    async def scenario(host: Host, pilot: Pilot[None]) -> None:
        for key in ("3", "escape"):
            await leaving(host, pilot)
            await pilot.press(key)
            await until(pilot, lambda: host.screen is host.run_screen)
            assert asked(run) == []
        await leaving(host, pilot)
        await pilot.press("2")
        await left(host, pilot)
        assert asked(run) == ["stop"]

    drive(run, scenario)


@pytest.mark.parametrize("read_only", [False, True], ids=["ended", "read-only"])
def test_with_nothing_of_ones_own_running_leaving_asks_nothing(tmp_path: Path, read_only: bool) -> None:
    run = new_run(tmp_path, live() if read_only else ended("finished", 0, "done"))

    async def scenario(host: Host, pilot: Pilot[None]) -> None:
        await pilot.press("q")
        await left(host, pilot)
        assert asked(run) == []

    drive(run, scenario, read_only=read_only)


def test_a_run_that_ended_since_the_last_look_is_left_without_a_question(tmp_path: Path) -> None:
    run = new_run(tmp_path, live())

    async def scenario(host: Host, pilot: Pilot[None]) -> None:
        rewrite(run, phase="finished", exit_code=0)
        await pilot.press("escape")
        await left(host, pilot)

    drive(run, scenario)


def test_an_application_that_quits_can_await_the_answer(tmp_path: Path) -> None:
    async def scenario(host: Host, pilot: Pilot[None]) -> None:
        for key, expected in (("3", False), ("1", True)):
            answer = asyncio.ensure_future(host.run_screen.may_leave())
            await until(pilot, lambda: isinstance(host.screen, Choice))
            # Asked again meanwhile, it does not ask twice.
            assert not await asyncio.wait_for(host.run_screen.may_leave(), 20)
            await pilot.press(key)
            assert await answer is expected
            await until(pilot, lambda: host.screen is host.run_screen)

    drive(new_run(tmp_path, live()), scenario)


def test_a_stop_that_cannot_be_asked_for_keeps_the_screen_and_says_why(tmp_path: Path) -> None:
    run = new_run(tmp_path, live())
    run.control.mkdir()

    async def scenario(host: Host, pilot: Pilot[None]) -> None:
        await leaving(host, pilot)
        await pilot.press("2")
        await until(pilot, lambda: bool(host.toasts))
        assert host.screen is host.run_screen and "control.jsonl" in host.toasts[0]

    drive(run, scenario)


def test_escape_ends_a_search_in_the_log_before_it_leaves(tmp_path: Path) -> None:
    async def scenario(host: Host, pilot: Pilot[None]) -> None:
        screen = host.run_screen
        await pilot.press("4")
        await until(pilot, lambda: "step 00020" in picture(screen.log_view))
        await pilot.press("slash", "q", "s", "2", "enter")
        assert screen.log_view.searched == "qs2" and host.screen is screen and screen.chosen == "log"
        await pilot.press("escape")
        assert screen.log_view.searched == "" and host.screen is screen
        await leaving(host, pilot, "escape")
        await pilot.press("3")

    drive(new_run(tmp_path, live()), scenario)


def test_read_only_mode_offers_and_does_nothing_that_changes_the_run(tmp_path: Path) -> None:
    run = new_run(tmp_path, live())

    async def scenario(host: Host, pilot: Pilot[None]) -> None:
        assert "read-only" in host.text
        await pilot.press("p", "k", "s", "R")
        await pilot.pause()
        assert host.screen is host.run_screen and asked(run) == [] and host.resumed == []
        offered = {binding.binding.action for binding in host.screen.active_bindings.values()}
        assert not offered & {"pause", "save_now", "stop", "resume"}

    drive(run, scenario, read_only=True)
