"""The run's screen in every state of a run and at every size: what is seen, what is read, and what is never asked."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from run_host import (
    PLAN,
    SIZES,
    FixedMonitor,
    Host,
    add_steps,
    drive,
    ended,
    live,
    look,
    new_run,
    picture,
    rewrite,
)
from sampled_machines import sample_at
from screen_host import NEVER_S, until
from textual.pilot import Pilot
from textual.screen import Screen

from workbench.monitor.recording import SYSTEM_COLUMNS
from workbench.runs import MetricsWriter, RunDirectory, append_event, record_resume, write_plan
from workbench.runs.metrics import read_downsampled
from workbench.tui.charts.chart import Chart
from workbench.tui.charts.readings import newest_value
from workbench.tui.context import AppContext
from workbench.tui.glyphs import BLOCKS, PLAIN, Glyphs
from workbench.tui.panels.panel import Panel
from workbench.tui.run import reading
from workbench.tui.run.panel_layout import GROUPS
from workbench.tui.run.screen import CurvesReady, RunScreen


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
def test_each_group_is_seen_whole_at_every_size(tmp_path: Path, size: tuple[int, int]) -> None:
    async def scenario(host: Host, pilot: Pilot[None]) -> None:
        screen = host.run_screen
        for digit, group in enumerate(GROUPS, start=1):
            await pilot.press(str(digit))
            widget = screen._groups[group]
            assert screen.region.contains_region(widget.region) and widget.region.area
            assert screen.focused is not None and widget in screen.focused.ancestors_with_self
            shown = [other for other in screen._groups.values() if other.display]
            assert len(shown) == (1 if size[0] < 120 else 4)
        # Status, names of groups and keys have a line each.
        assert {screen._groups["events"].region.bottom} == {size[1] - 1}

    drive(new_run(tmp_path, live()), scenario, size=size, sample=sample_at())


@pytest.mark.parametrize("glyphs", [BLOCKS, PLAIN], ids=["blocks", "plain"])
@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
def test_plain_mode_has_plain_characters_alone_in_every_group(
    tmp_path: Path, size: tuple[int, int], glyphs: Glyphs
) -> None:
    run = new_run(tmp_path, live())
    run.log.write_text("größer — ok\n")
    append_event(run, "warning", message="größer")

    async def scenario(host: Host, pilot: Pilot[None]) -> None:
        for digit in "123456":
            await pilot.press(digit)
            await until(pilot, lambda: not host.run_screen._reading)
            # The scroll bars of containers are Textual's.
            for widget in [*host.screen.query(Panel), *host.screen.query(Chart)]:
                if widget.is_on_screen and widget.outer_size.area and glyphs.ascii:
                    assert picture(widget).isascii(), widget
        if glyphs.ascii:
            assert picture(host.run_screen.line).isascii()
            assert picture(host.run_screen.groups_line).isascii()

    drive(run, scenario, size=size, glyphs=glyphs, sample=sample_at())


def test_before_anything_was_read_the_screen_says_what_it_reads(tmp_path: Path) -> None:
    run = new_run(tmp_path, live("starting", step=0), steps=0)

    async def go() -> None:
        monitor = FixedMonitor()
        screen = RunScreen(AppContext(tmp_path, monitor, BLOCKS, lambda: 0.0, NEVER_S), run)
        held = asyncio.Event()
        screen._look = lambda: held.set()  # type: ignore[method-assign]
        async with Host(screen, monitor).run_test(size=(80, 24)) as pilot:
            await until(pilot, held.is_set)
            assert f"Reading {run.name}" in picture(screen.line)
            assert "no values yet" in picture(screen.charts.loss)

    asyncio.run(go())


def test_a_run_that_is_being_set_up_says_its_phase_and_how_far_it_is(tmp_path: Path) -> None:
    run = new_run(tmp_path, live("allocating", step=0, progress="unit 12 of 50"), steps=0)

    async def scenario(host: Host, pilot: Pilot[None]) -> None:
        assert "allocating unit 12 of 50" in host.text
        rewrite(run, phase="loading", progress="")
        await look(host, pilot)
        assert "loading" in host.text and "quickstart" in host.text

    drive(run, scenario)


def test_a_living_run_shows_its_curves_its_machine_its_lanes_and_its_log(tmp_path: Path) -> None:
    async def scenario(host: Host, pilot: Pilot[None]) -> None:
        screen = host.run_screen
        await until(pilot, lambda: "step 00020" in picture(screen.log_view))
        text = host.text
        for words in (
            "running",
            "step 20/100",
            "eta 1h00m",
            "2,048 tok/s",
            "Loss 2.",
            "Gradient norm",
            "Learning rate",
            "Speed 2",
            "H200",
            "host-adam",
            "of step 20",
            "exposed",
            "0.3 GB/s",
        ):
            assert words in text, words
        assert len(screen.charts.loss.curves[1].series) == 2
        assert (
            screen.charts.loss.curves[0].series.positions
            is screen.charts.tokens_per_s.curves[0].series.positions
        )

    drive(new_run(tmp_path, live()), scenario, size=(200, 60), sample=sample_at())


def test_what_comes_is_drawn_and_only_what_is_new_is_read(tmp_path: Path) -> None:
    run = new_run(tmp_path, live())

    async def scenario(host: Host, pilot: Pilot[None]) -> None:
        screen = host.run_screen
        add_steps(run, 21, 40)
        rewrite(run, step=40, loss=2.9)
        append_event(run, "checkpoint", step=40, path="checkpoints/step-00000040", seconds=0.2)
        await look(host, pilot)
        assert len(screen.charts.loss.curves[0].series) == 40
        assert "step 40/100" in host.text and "loss 2.9000" in host.text
        assert screen.events.events[-1].text.startswith("step 40, saved")
        assert screen._reader.records.records_read == 40

    drive(run, scenario)


def test_many_records_at_once_are_worked_out_beside_and_drawn_all(tmp_path: Path) -> None:
    run = new_run(tmp_path, live(), steps=5000)

    async def scenario(host: Host, pilot: Pilot[None]) -> None:
        charts = host.run_screen.charts
        assert [len(chart.curves[0].series) for chart in charts.charts] == [5000] * 5
        add_steps(run, 5001, 5003)
        for _ in range(4):
            await look(host, pilot)
        assert "5003" in str(len(charts.curves)) and not charts._waiting
        assert host.run_screen._reader.records.records_read == 5003

    drive(run, scenario)


def test_a_chart_that_nobody_sees_works_nothing_out(tmp_path: Path) -> None:
    run = new_run(tmp_path, live())

    async def scenario(host: Host, pilot: Pilot[None]) -> None:
        charts = host.run_screen.charts
        add_steps(run, 21, 60)
        await look(host, pilot)
        assert charts.curves.loss._seen == 60
        assert charts.curves.grad_norm._seen == 0
        await pilot.press("v")
        await pilot.pause()
        assert charts.curves.grad_norm._seen == 60 and "Gradient norm" in picture(charts.grad_norm)

    drive(run, scenario, size=(60, 16))


def test_a_paused_run_says_so(tmp_path: Path) -> None:
    async def scenario(host: Host, pilot: Pilot[None]) -> None:
        assert "! paused" in host.text and host.run_screen.machine.living

    drive(new_run(tmp_path, live("paused")), scenario)


def test_a_resumed_run_has_its_steps_taken_back(tmp_path: Path) -> None:
    run = new_run(tmp_path, live())

    async def scenario(host: Host, pilot: Pilot[None]) -> None:
        curves = host.run_screen.charts.curves
        with MetricsWriter(run.metrics) as writer:
            record_resume(run, writer, 11)
        add_steps(run, 11, 13, loss=lambda step: 9.0)
        await look(host, pilot)
        assert list(curves.positions.along("step")) == list(range(1, 14))
        assert list(curves.loss.values)[10:] == [9.0] * 3
        assert "goes on from step 11" in host.run_screen.events.events[-1].text

    drive(run, scenario)


def test_the_monitor_watches_the_trainer_while_it_lives_here_and_the_runs_disks(tmp_path: Path) -> None:
    run = new_run(tmp_path, live())

    async def scenario(host: Host, pilot: Pilot[None]) -> None:
        run.config.write_text('[offload]\nstate = "disk"\ndisk_path = "/fast"\n')
        await look(host, pilot)
        rewrite(run, phase="finished", exit_code=0)
        await look(host, pilot)
        await look(host, pilot)
        both = (run.path, Path("/fast"))
        assert host.monitor.watched == [(live().pid, (run.path,)), (live().pid, both), (None, both)]

    drive(run, scenario)


def test_the_trainer_of_another_machine_is_not_looked_for_here(tmp_path: Path) -> None:
    run = new_run(tmp_path, live(host="faraway"))

    async def scenario(host: Host, pilot: Pilot[None]) -> None:
        assert host.monitor.watched == [(None, (run.path,))]
        assert "running" in host.text

    drive(run, scenario)


def test_an_end_before_ones_eyes_is_told_with_a_bell_and_the_summary_comes_up(tmp_path: Path) -> None:
    run = new_run(tmp_path, live())

    async def scenario(host: Host, pilot: Pilot[None]) -> None:
        screen = host.run_screen
        assert not screen.summary.display and host.bells == 0
        write_plan(run, {**PLAN, "measured": {"step_s": 0.4, "host_peak_bytes": 3 << 30}})
        with MetricsWriter(run.system, SYSTEM_COLUMNS) as writer:
            writer.append(step=0, time=5.0, gpu_busy=0.5)
        rewrite(run, phase="finished", exit_code=0, message="100 steps", step=100)
        append_event(run, "finished", phase="finished", exit_code=0, message="100 steps", step=100)
        await look(host, pilot)
        await pilot.pause()
        text = picture(screen.summary)
        for words in ("finished, exit code 0", "100 of 100", "2.3500 at step 20", "+33%", "+25%"):
            assert words in text, words
        assert str(run.path / "checkpoints/step-00000020") in text.replace("│\n│", "")
        assert host.bells == 1 and host.toasts == ["finished: 100 steps"]
        assert screen.chosen == "events" and screen.summary.region.area
        await look(host, pilot)
        assert host.bells == 1
        await pilot.press("2")
        assert "Machine then" in host.text and "50 %" in host.text

    drive(run, scenario, size=(80, 24), sample=sample_at())


def test_a_run_that_goes_on_before_ones_eyes_shows_its_curves_again(tmp_path: Path) -> None:
    run = new_run(tmp_path, ended("stopped", 143, "stopped"))

    async def scenario(host: Host, pilot: Pilot[None]) -> None:
        screen = host.run_screen
        await pilot.press("6")
        assert screen.summary.region.area
        rewrite(run, phase="training", exit_code=None, message="")
        await look(host, pilot)
        assert screen.chosen == "charts" and screen.charts.region.area and not screen.summary.display

    drive(run, scenario)


def test_a_run_that_has_ended_rings_no_bell_and_shows_its_summary_where_there_is_room(tmp_path: Path) -> None:
    async def scenario(host: Host, pilot: Pilot[None]) -> None:
        assert host.bells == 0 and host.toasts == []
        assert "stopped, exit code 143" in host.text and "was not recorded" in host.text

    drive(new_run(tmp_path, ended("stopped", 143, "stopped after step 20")), scenario, sample=sample_at())


def test_a_failed_run_shows_its_last_words(tmp_path: Path) -> None:
    run = new_run(tmp_path, ended("failed", 1, "out of memory on the device"))
    with run.log.open("a") as file:
        file.write("RuntimeError: the very last word\n")

    async def scenario(host: Host, pilot: Pilot[None]) -> None:
        await pilot.press("6")
        assert "failed, exit code 1" in host.text and "out of memory on the device" in host.text
        assert "the very last word" in picture(host.run_screen.summary)

    drive(run, scenario, size=(200, 60))


def test_a_trainer_that_died_without_a_word_is_said_to_have_died(tmp_path: Path) -> None:
    run = new_run(tmp_path, live(pid_started=1000.0))

    async def scenario(host: Host, pilot: Pilot[None]) -> None:
        await pilot.press("6")
        assert "died, exit code N/A" in host.text
        assert "step 00020/00100" in picture(host.run_screen.summary)

    drive(run, scenario, size=(200, 60))


def test_a_run_that_comes_back_to_life_is_shown_living_again(tmp_path: Path) -> None:
    run = new_run(tmp_path, ended("stopped", 143, "stopped"))

    async def scenario(host: Host, pilot: Pilot[None]) -> None:
        screen = host.run_screen
        shown = [(screen.machine.living, screen.summary.display)]
        rewrite(run, phase="training", exit_code=None, message="")
        await look(host, pilot)
        await pilot.pause()
        shown.append((screen.machine.living, screen.summary.display))
        assert shown == [(False, True), (True, False)]
        assert "GPU 87 % of 8" in host.text

    drive(run, scenario, sample=sample_at())


def test_what_is_wrong_with_the_folder_stands_among_the_events(tmp_path: Path) -> None:
    run = new_run(tmp_path, live())
    run.plan.write_text('{"version": 9}')

    async def scenario(host: Host, pilot: Pilot[None]) -> None:
        await pilot.press("6")
        assert "plan.json has version 9" in host.text

    drive(run, scenario, size=(80, 24))


def test_an_empty_folder_is_shown_with_what_it_lacks(tmp_path: Path) -> None:
    async def scenario(host: Host, pilot: Pilot[None]) -> None:
        for digit in "123456":
            await pilot.press(digit)
        assert "the folder is no run" in host.text and "unknown" in host.text

    drive(RunDirectory(tmp_path / "gone"), scenario, size=(80, 24))


def test_alerts_are_toasts_and_stay_among_the_events_but_ring_no_bell(tmp_path: Path) -> None:
    run = new_run(tmp_path, live(), steps=200)

    async def scenario(host: Host, pilot: Pilot[None]) -> None:
        assert host.toasts == []
        add_steps(run, 201, 203, loss=lambda step: float("nan"))
        await look(host, pilot)
        hot = sample_at(2000.0, gpus=1)
        for i in range(5):
            gpu = replace(hot.gpus[0], throttled_by=("thermal",))
            host.monitor.latest = replace(hot, time=2000.0 + i, gpus=(gpu,))
            await look(host, pilot)
        assert host.toasts == ["step 201: the loss is not finite", "GPU 0 slows itself down: thermal"]
        kinds = [event.text for event in host.run_screen.events.events if event.kind == "alert"]
        assert sorted(kinds) == sorted(host.toasts) and host.bells == 0

    drive(run, scenario, sample=sample_at())


def test_nothing_is_read_while_another_screen_is_seen(tmp_path: Path) -> None:
    run = new_run(tmp_path, live())

    async def scenario(host: Host, pilot: Pilot[None]) -> None:
        screen = host.run_screen
        host.push_screen(Screen())
        await pilot.pause()
        looks = screen._reader.looks
        screen.tick()
        await pilot.pause()
        assert screen._reader.looks == looks
        add_steps(run, 21, 22)
        host.pop_screen()
        await until(pilot, lambda: len(screen.charts.curves) == 22)

    drive(run, scenario)


def test_a_look_that_still_goes_on_lets_the_next_one_drop(tmp_path: Path) -> None:
    async def scenario(host: Host, pilot: Pilot[None]) -> None:
        screen = host.run_screen
        screen._reading = True
        looks = screen._reader.looks
        for _ in range(5):
            screen.tick()
        await pilot.pause()
        assert screen._reader.looks == looks
        screen._reading = False

    drive(new_run(tmp_path, live()), scenario)


def test_a_reader_that_fails_is_told_and_tried_again(tmp_path: Path) -> None:
    async def scenario(host: Host, pilot: Pilot[None]) -> None:
        screen = host.run_screen
        works = screen._reader.look

        def fails(now: float | None = None) -> object:
            raise RuntimeError("nobody expected this")

        screen._reader.look = fails  # type: ignore[method-assign, assignment]
        await look(host, pilot)
        assert "nobody expected this" in picture(screen.events)
        screen._reader.look = works  # type: ignore[method-assign]
        await look(host, pilot)
        assert "nobody expected this" not in picture(screen.events)

    drive(new_run(tmp_path, ended("stopped", 0, "")), scenario, size=(200, 60))


def test_few_new_points_among_many_wait_for_others_but_not_for_long(tmp_path: Path) -> None:
    run = new_run(tmp_path, live(), steps=3000)

    async def scenario(host: Host, pilot: Pilot[None]) -> None:
        charts = host.run_screen.charts
        for number in range(1, 9):
            add_steps(run, 3000 + number, 3000 + number, loss=lambda step: 100.0 + step)
            await look(host, pilot)
            drawn = str(charts.loss.border_title) == f"Loss {newest_value(charts.curves.loss)}"
            assert drawn == (number % 4 == 0), number
        add_steps(run, 3009, 3100)
        await look(host, pilot)
        assert not charts._waiting, "many are drawn at once"
        add_steps(run, 3101, 3101, loss=lambda step: 7.0)
        rewrite(run, phase="finished", exit_code=0)
        await look(host, pilot)
        await look(host, pilot)
        assert not charts._waiting, "nothing more comes"

    drive(run, scenario, size=(160, 50))


def test_a_long_run_is_seen_from_some_of_its_steps_and_says_so_until_all_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "read_downsampled", partial(read_downsampled, shortest=9_000))
    run = new_run(tmp_path, ended("finished", 0, "done"), steps=10_000)
    said: list[str] = []
    counts: list[int] = []
    show = RunScreen.on_curves_ready

    def shown(screen: RunScreen, event: CurvesReady) -> None:
        show(screen, event)
        said.append(screen.charts.loss.remark)  # written down once the chart is laid out, which may be later
        counts.append(len(screen.charts.loss.curves[0].series))

    monkeypatch.setattr(RunScreen, "on_curves_ready", shown)

    async def scenario(host: Host, pilot: Pilot[None]) -> None:
        assert "4,352 of 10,000 steps" in said[0] and counts[0] == 4_352
        assert not said[-1] and counts[-1] == 10_000
        charts = host.run_screen.charts.charts
        assert not any("of 10,000 steps" in str(chart.border_subtitle) for chart in charts)
        charts[0].remark = said[0]
        charts[0].changed()
        assert said[0] in str(charts[0].border_subtitle)

    drive(run, scenario, size=(200, 60))


def test_mfu_has_a_chart_where_it_is_recorded(tmp_path: Path) -> None:
    run = new_run(tmp_path, live(), steps=0)
    with MetricsWriter(run.metrics) as writer:
        for step in range(1, 5):
            writer.append(step=step, loss=2.0, mfu=0.4)

    async def scenario(host: Host, pilot: Pilot[None]) -> None:
        assert host.run_screen.charts.mfu.display and "MFU 40.0 %" in host.text

    drive(run, scenario, size=(200, 60))
