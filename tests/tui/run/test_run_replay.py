"""A run that has ended is replayed step by step: charts, lanes and machine move together."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from run_host import ended, live, look, new_run, picture, rewrite, shown
from screen_host import until

from workbench.monitor.recording import SYSTEM_COLUMNS
from workbench.runs import MetricsWriter, RunDirectory
from workbench.tui.glyphs import BLOCKS, PLAIN, Glyphs
from workbench.tui.run.replay import read_step


def ended_run(folder: Path) -> RunDirectory:
    """20 steps that end at 2e9 + step; the machine's records end at every tenth second."""
    run = new_run(folder, ended("finished", 0, "done", step=20))
    with MetricsWriter(run.system, SYSTEM_COLUMNS) as writer:
        for number in (1, 2):
            writer.append(step=number, time=2e9 + 10 * number, host_busy=number / 10)
    return run


def test_a_steps_seconds_are_those_of_its_record(tmp_path: Path) -> None:
    run = ended_run(tmp_path)
    found = read_step(run, 6)
    assert found is not None and (found.step, found.time, found.step_s) == (7, 2e9 + 7, 0.5)
    assert found.lanes["update"].busy_s == 0.1 and found.lanes["update"].exposed_s == 0.02
    assert found.lanes["update"].hidden_s == pytest.approx(0.08) and "download" not in found.lanes
    assert read_step(run, 20) is None


@pytest.mark.parametrize("glyphs", [BLOCKS, PLAIN], ids=["blocks", "plain"])
async def test_charts_lanes_and_machine_go_to_the_step_that_the_slider_is_on(
    tmp_path: Path, glyphs: Glyphs
) -> None:
    async with shown(ended_run(tmp_path), glyphs=glyphs) as (host, pilot):
        screen = host.run_screen
        await pilot.press("t")
        assert screen.slider.has_focus and "step 20 of 20" in picture(screen.slider)
        assert screen.slider.region.bottom == screen.groups.region.y
        for keys, step in (
            (["left"], 19),
            (["home"], 1),
            (["left"], 1),
            (["pagedown", "pagedown", "right"], 6),
            (["end"], 20),
            (["home", "right"], 2),
        ):
            await pilot.press(*keys)
            await until(pilot, lambda step=step: f"of step {step}" in picture(screen.lanes))  # type: ignore[misc]
            assert f"step {step} of 20" in picture(screen.slider)
            assert [chart.cursor for chart in screen.charts.available] == [step] * 5
        assert "spans are kept of the last step only" in picture(screen.lanes)
        assert "100.0 ms" in picture(screen.lanes) and "20.0 ms" in picture(screen.lanes)
        at = time.strftime("%H:%M:%S", time.localtime(2e9 + 10))
        assert at in picture(screen.recorded) and "then" in picture(screen.recorded)
        assert picture(screen.recorded).isascii() == glyphs.ascii
        await pilot.press("t")
        assert not screen.slider.display and screen.charts.loss.cursor is None
        assert "forward" in picture(screen.lanes) and "last" in picture(screen.recorded)


async def test_a_click_goes_to_a_step(tmp_path: Path) -> None:
    async with shown(ended_run(tmp_path)) as (host, pilot):
        await pilot.press("t")
        await pilot.click(host.run_screen.slider, offset=(118, 0))
        assert host.run_screen.slider.record == 19
        await pilot.click(host.run_screen.slider, offset=(25, 0))
        assert host.run_screen.slider.record == 0


async def test_a_run_that_trains_is_not_replayed_and_one_that_is_resumed_no_longer(tmp_path: Path) -> None:
    run = ended_run(tmp_path)
    async with shown(run) as (host, pilot):
        await pilot.press("t")
        rewrite(run, phase="training", exit_code=None, pid_started=live().pid_started)
        await look(host, pilot)
        screen = host.run_screen
        assert not screen.slider.display and "t" not in screen.active_bindings
        await pilot.press("t")
        assert not screen.slider.display
