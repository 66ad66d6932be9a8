"""The run's screen in every state of a run and at every size: what is seen, what is read, and what is never asked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from run_host import PLAN, FixedMonitor, Host, add_steps, ended, live, look, new_run, picture, rewrite, shown
from sampled_machines import sample_at
from screen_host import NEVER_S, until
from textual.screen import Screen

from workbench.monitor.recording import SYSTEM_COLUMNS
from workbench.runs import MetricsWriter, RunDirectory, append_event, record_resume, write_plan
from workbench.runs.metrics import read_downsampled
from workbench.tui.charts.chart import Chart
from workbench.tui.charts.plot import newest_values
from workbench.tui.context import AppContext
from workbench.tui.glyphs import BLOCKS, PLAIN, Glyphs
from workbench.tui.panels.panel import Panel
from workbench.tui.panels.status_line import KeyLine
from workbench.tui.run import reading
from workbench.tui.run.charts import ChartGroup, RunCurves
from workbench.tui.run.groups import GROUPS
from workbench.tui.run.screen import RunScreen


@pytest.mark.parametrize(
    ("size", "glyphs"),
    [((60, 16), PLAIN), pytest.param((80, 24), BLOCKS, marks=pytest.mark.slow), ((120, 40), BLOCKS)],
    ids=["60x16", "80x24", "120x40"],
)
async def test_each_group_is_seen_whole_at_every_size_and_in_plain_characters(
    tmp_path: Path, size: tuple[int, int], glyphs: Glyphs
) -> None:
    run = new_run(tmp_path, live())
    run.log.write_text("größer — ok\n")
    append_event(run, "warning", message="größer")
    async with shown(run, size=size, glyphs=glyphs, sample=sample_at()) as (host, pilot):
        screen, groups = host.run_screen, host.run_screen.groups.groups
        for digit, group in enumerate(GROUPS, start=1):
            await pilot.press(str(digit))
            assert screen.region.contains_region(groups[group].region) and groups[group].region.area
            assert screen.focused is not None and groups[group] in screen.focused.ancestors_with_self
            assert sum(other.display for other in groups.values()) == (1 if size[0] < 120 else 4)
            # The scroll bars of containers are Textual's.
            drawn = [*screen.query(Panel), *screen.query(Chart), screen.line, screen.group_line]
            for widget in drawn:
                if widget.is_on_screen and widget.outer_size.area and glyphs.ascii:
                    assert picture(widget).isascii(), widget
        # Status and names of groups have a line each; keys have one or two.
        assert groups["events"].region.bottom == screen.query_one(KeyLine).region.y
        assert screen.query_one(KeyLine).region.bottom == size[1]


@pytest.mark.parametrize(
    ("run_of", "keys", "size", "words"),
    [
        (
            lambda root: new_run(root, live("allocating", step=0, progress="unit 12 of 50"), steps=0),
            [],
            (120, 40),
            ["allocating unit 12 of 50", "quickstart", "no values yet"],
        ),
        (
            lambda root: new_run(root, live()),
            [],
            (200, 60),
            [
                "running",
                "step 20/100",
                "eta 1h00m",
                "2,048 tok/s",
                "Loss 2.",
                "Gradient norm",
                "Learning rate",
            ],
        ),
        (
            lambda root: new_run(root, live()),
            [],
            (200, 60),
            [
                "Speed 2",
                "H200",
                "host-adam",
                "of step 20",
                "exposed",
                "0.3 GB/s",
                "Host optimizer",
                "step 00020",
            ],
        ),
        (lambda root: new_run(root, live("paused")), [], (120, 40), ["! paused"]),
        (
            lambda root: new_run(root, ended("stopped", 143, "stopped after step 20")),
            [],
            (120, 40),
            ["stopped, exit code 143", "was not recorded"],
        ),
        (
            lambda root: new_run(root, ended("failed", 1, "out of memory on the device")),
            ["6"],
            (200, 60),
            ["failed, exit code 1", "out of memory on the device", "step 00020/00100"],
        ),
        (
            lambda root: new_run(root, live(pid_started=1000.0)),
            ["6"],
            (200, 60),
            ["died, exit code N/A", "step 00020/00100"],
        ),
        (lambda root: RunDirectory(root / "gone"), ["6"], (80, 24), ["the folder is not a run", "unknown"]),
    ],
    ids=["set up", "active", "its machine", "paused", "stopped", "failed", "died", "gone"],
)
async def test_a_run_is_shown_in_every_state(
    tmp_path: Path,
    run_of: Callable[[Path], RunDirectory],
    keys: list[str],
    size: tuple[int, int],
    words: list[str],
) -> None:
    async with shown(run_of(tmp_path), size=size, sample=sample_at()) as (host, pilot):
        await pilot.press(*keys)
        for word in words:
            await until(pilot, lambda word=word: word in host.text)
        assert host.bells == 0 and host.toasts == []


async def test_before_anything_was_read_the_screen_says_what_it_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = new_run(tmp_path, live("starting", step=0), steps=0)
    monkeypatch.setattr(RunScreen, "_start_reading", lambda self: None)
    screen = RunScreen(AppContext(tmp_path, FixedMonitor(), interval_s=NEVER_S), run)
    async with Host(screen, FixedMonitor()).run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: f"Reading {run.name}" in picture(screen.line))


async def test_what_comes_is_drawn_and_only_what_is_new_is_read(tmp_path: Path) -> None:
    run = new_run(tmp_path, live())
    async with shown(run) as (host, pilot):
        screen = host.run_screen
        positions = screen.charts.curves.positions
        add_steps(run, 21, 40)
        rewrite(run, step=40, loss=2.9)
        append_event(run, "checkpoint", step=40, path="checkpoints/step-00000040", seconds=0.2)
        run.plan.write_text('{"version": 9}')
        await look(host, pilot)
        assert len(screen.charts.loss.curves[0].series) == 40
        assert screen.charts.curves.positions is positions and screen.reader.records == 40
        assert "step 40/100" in host.text and "loss 2.9000" in host.text
        assert screen.events.events[-1].text.startswith("step 40, saved")
        await pilot.press("6")
        assert "plan.json has version 9" in host.text


async def test_few_new_points_among_many_wait_for_others_but_not_for_long(tmp_path: Path) -> None:
    run = new_run(tmp_path, live(), steps=3000)
    async with shown(run, size=(160, 50)) as (host, pilot):
        charts = host.run_screen.charts

        def is_drawn() -> bool:
            return str(charts.loss.border_title) == f"Loss {newest_values(charts.curves.loss)[0]}"

        assert [len(chart.curves[0].series) for chart in charts.charts] == [3000] * 6
        for number in range(1, 9):
            add_steps(run, 3000 + number, 3000 + number, loss=lambda step: 100.0 + step)
            await look(host, pilot)
            assert is_drawn() == (number % 4 == 0), number
        add_steps(run, 3009, 3100, loss=lambda step: 50.0)
        await look(host, pilot)
        assert is_drawn(), "many are drawn at once"
        add_steps(run, 3101, 3101, loss=lambda step: 7.0)
        rewrite(run, phase="finished", exit_code=0)
        await look(host, pilot)
        await look(host, pilot)
        assert is_drawn(), "nothing more comes"


async def test_a_resumed_run_has_its_steps_taken_back(tmp_path: Path) -> None:
    run = new_run(tmp_path, live())
    async with shown(run) as (host, pilot):
        with MetricsWriter(run.metrics) as writer:
            record_resume(run, writer, 11)
        add_steps(run, 11, 13, loss=lambda step: 9.0)
        await look(host, pilot)
        curves = host.run_screen.charts.curves
        assert list(curves.positions.along("step")) == list(range(1, 14))
        assert list(curves.loss.values)[10:] == [9.0] * 3
        assert "continues from step 11" in host.run_screen.events.events[-1].text


@pytest.mark.parametrize("host_name", ["", "faraway"])
async def test_the_monitor_watches_the_trainer_while_it_lives_here_and_the_runs_disks(
    tmp_path: Path, host_name: str
) -> None:
    run = new_run(tmp_path, live(host=host_name))
    pid = None if host_name else live().pid
    async with shown(run) as (host, pilot):
        run.config.write_text('[offload]\nstate = "disk"\ndisk_path = "/fast"\n')
        await look(host, pilot)
        rewrite(run, phase="finished", exit_code=0)
        await look(host, pilot)
        await look(host, pilot)
        both = (run.path, Path("/fast"))
        expected = [(pid, (run.path,)), (pid, both), (None, both)]
        assert host.monitor.watched == list(dict.fromkeys(expected))


async def test_an_end_before_ones_eyes_rings_the_bell_once_and_the_summary_comes_up(tmp_path: Path) -> None:
    run = new_run(tmp_path, live())
    async with shown(run, size=(80, 24), sample=sample_at()) as (host, pilot):
        screen = host.run_screen
        assert not screen.summary.display and host.bells == 0
        write_plan(run, {**PLAN, "measured": {"step_s": 0.4, "host_peak_bytes": 3 << 30}})
        with MetricsWriter(run.system, SYSTEM_COLUMNS) as writer:
            writer.append(step=0, time=5.0, gpu_busy=0.5)
        rewrite(run, phase="finished", exit_code=0, message="100 steps", step=100)
        append_event(run, "finished", phase="finished", exit_code=0, message="100 steps", step=100)
        await look(host, pilot)
        await look(host, pilot)
        text = picture(screen.summary)
        for words in ("finished, exit code 0", "100 of 100", "2.3500 at step 20", "0.75", "0.80"):
            assert words in text, words
        assert str(run.path / "checkpoints/step-00000020") in text.replace("│\n│", "")
        assert host.bells == 1 and host.toasts == ["finished: 100 steps"]
        assert screen.groups.chosen == "events" and screen.summary.region.area
        await pilot.press("2")
        assert "Machine during the run" in host.text and "50 %" in host.text


async def test_a_run_that_goes_on_before_ones_eyes_is_shown_living_again(tmp_path: Path) -> None:
    run = new_run(tmp_path, ended("stopped", 143, "stopped"))
    async with shown(run, sample=sample_at()) as (host, pilot):
        screen = host.run_screen
        await pilot.press("6")
        assert screen.summary.region.area and screen.recorded.display and not screen.machine.display
        rewrite(run, phase="training", exit_code=None, message="")
        await look(host, pilot)
        assert screen.groups.chosen == "charts" and screen.charts.region.area and not screen.summary.display
        assert screen.machine.display and not screen.recorded.display and "GPU 87 % of 8" in host.text


async def test_alerts_are_toasts_and_stay_among_the_events_but_ring_no_bell(tmp_path: Path) -> None:
    run = new_run(tmp_path, live(), steps=200)
    async with shown(run, sample=sample_at()) as (host, pilot):
        assert host.toasts == []
        add_steps(run, 201, 203, loss=lambda step: float("nan"))
        await look(host, pilot)
        hot = sample_at(2000.0, gpus=1)
        for i in range(5):
            gpu = replace(hot.gpus[0], throttled_by=("thermal",))
            host.monitor.latest = replace(hot, time=2000.0 + i, gpus=(gpu,))
            await look(host, pilot)
        assert host.toasts == ["step 201: the loss is not finite", "GPU 0 is throttled: thermal"]
        listed = [event.text for event in host.run_screen.events.events if event.kind == "alert"]
        assert sorted(listed) == sorted(host.toasts) and host.bells == 0


async def test_nothing_is_read_while_another_screen_is_seen_or_a_look_still_goes_on(tmp_path: Path) -> None:
    run = new_run(tmp_path, live())
    async with shown(run) as (host, pilot):
        screen = host.run_screen
        screen.reading, looks = True, screen.reader.looks
        for _ in range(5):
            screen.tick()
        await pilot.pause()
        assert screen.reader.looks == looks
        screen.reading = False
        host.push_screen(Screen())
        await pilot.pause()
        screen.tick()
        await pilot.pause()
        assert screen.reader.looks == looks
        add_steps(run, 21, 22)
        host.pop_screen()
        await until(pilot, lambda: len(screen.charts.curves) == 22)


async def test_a_reader_that_fails_is_reported_and_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(now: float | None = None) -> None:
        raise RuntimeError("nobody expected this")

    async with shown(new_run(tmp_path, ended("stopped", 0, "")), size=(200, 60)) as (host, pilot):
        with monkeypatch.context() as patch:
            patch.setattr(host.run_screen.reader, "look", fail)
            await look(host, pilot)
            assert "nobody expected this" in picture(host.run_screen.events)
        await look(host, pilot)
        assert "nobody expected this" not in picture(host.run_screen.events)


async def test_a_long_run_is_seen_from_some_of_its_steps_and_says_so_until_all_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workbench.runs.metrics._PATIENCE_S", 60.0)  # however busy the machine is
    monkeypatch.setattr(reading, "read_downsampled", partial(read_downsampled, shortest=9_000))
    run = new_run(tmp_path, ended("finished", 0, "done"), steps=10_000)
    remarks: list[tuple[str, int]] = []
    show = ChartGroup.show

    def record(charts: ChartGroup, curves: RunCurves) -> None:
        show(charts, curves)
        remarks.append((charts.loss.remark, len(charts.loss.curves[0].series)))

    monkeypatch.setattr(ChartGroup, "show", record)
    async with shown(run, size=(200, 60)) as (host, _):
        assert "4,352 of 10,000 steps" in remarks[1][0] and remarks[1][1] == 4_352
        assert remarks[-1] == ("", 10_000)
        loss = host.run_screen.charts.loss
        assert "of 10,000 steps" not in str(loss.border_subtitle)
        loss.remark = remarks[1][0]
        loss.changed()
        assert loss.remark in str(loss.border_subtitle)


async def test_mfu_has_a_chart_where_it_is_recorded(tmp_path: Path) -> None:
    run = new_run(tmp_path, live(), steps=0)
    with MetricsWriter(run.metrics) as writer:
        for step in range(1, 5):
            writer.append(step=step, loss=2.0, mfu=0.4)
    async with shown(run, size=(200, 60)) as (host, _):
        assert host.run_screen.charts.mfu.display and "MFU 40.0 %" in host.text
