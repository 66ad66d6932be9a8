"""Comparing: curves of all runs on shared axes with letters and colours that stay, and what differs beneath."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from screen_host import NEVER_S, NoMonitor, text_of, until
from textual.app import App
from textual.pilot import Pilot

from workbench.config import load_config, to_toml
from workbench.presets import shipped_folder
from workbench.runs import MetricsWriter, RunDirectory, Status, record_resume, write_status
from workbench.tui.charts.chart import Chart
from workbench.tui.context import AppContext
from workbench.tui.glyphs import BLOCKS, PLAIN, Glyphs
from workbench.tui.screens.compare import CompareScreen

PRESET = shipped_folder() / "quickstart.toml"


class Host(App[None]):
    def __init__(self, screen: CompareScreen) -> None:
        super().__init__()
        self.compare_screen = screen

    def on_mount(self) -> None:
        self.push_screen(self.compare_screen)

    @property
    def text(self) -> str:
        return text_of(self)


@asynccontextmanager
async def shown(
    runs: list[RunDirectory],
    *,
    size: tuple[int, int] = (80, 24),
    glyphs: Glyphs = BLOCKS,
    interval_s: float = NEVER_S,
) -> AsyncIterator[tuple[Host, Pilot[None]]]:
    """Show these runs beside each other, once they were read."""
    context = AppContext(runs[0].path.parent, NoMonitor(), glyphs, interval_s=interval_s)
    host = Host(CompareScreen(context, runs))
    async with host.run_test(size=size) as pilot:
        await until(pilot, lambda: host.compare_screen.differences is not None)
        yield host, pilot


def new_run(
    root: Path, number: int, *overrides: str, steps: int = 20, phase: str = "stopped"
) -> RunDirectory:
    path = root / f"20260101-00000{number}-tiny{number}-00000{number}"
    path.mkdir()
    run = RunDirectory(path)
    run.config.write_text(to_toml(load_config(PRESET, overrides)))
    write_status(run, Status(phase=phase, step=steps, total_steps=750, loss=1.5 + number), durable=False)
    with MetricsWriter(run.metrics) as writer:
        for step in range(1, steps + 1):
            writer.append(
                step=step,
                loss=number + 5 / step,
                tokens_total=100 * step,
                step_s=0.5,
                validation_loss=number + 6 / step if step % 5 == 0 else None,
            )
    return run


@pytest.fixture
def runs(tmp_path: Path) -> list[RunDirectory]:
    return [
        new_run(tmp_path, 1),
        new_run(tmp_path, 2, "optimizer.learning_rate=1e-4", "train.seed=7"),
        new_run(tmp_path, 3, "train.seed=7", steps=10),
    ]


def lengths(chart: Chart) -> list[int]:
    return [len(curve.series) for curve in chart.curves]


async def test_losses_of_all_runs_are_drawn_with_their_letters_and_what_differs_stands_beneath(
    runs: list[RunDirectory],
) -> None:
    async with shown(runs, size=(100, 50)) as (host, pilot):
        await until(pilot, lambda: lengths(host.compare_screen.chart) == [20, 20, 10])
        chart = host.compare_screen.chart
        assert [list(curve.series.values[:2]) for curve in chart.curves] == [[6, 3.5], [7, 4.5], [8, 5.5]]
        assert [curve.colour for curve in chart.curves] == [0, 1, 2]
        legend = host.text.splitlines()[1]
        assert all(f"{sign} tiny{number}" in legend for number, sign in enumerate("ABC", start=1))
        table = {" ".join(line.strip(" │").split()) for line in host.text.splitlines()}
        assert "optimizer.learning_rate 0.004 0.0001 0.004" in table
        assert "train.seed 1234 7 7" in table
        assert "step 20/750 20/750 10/750" in table
        assert "Differences 2 of" in host.text and "train.steps" not in host.text


async def test_the_axis_goes_by_step_tokens_and_time_of_training(runs: list[RunDirectory]) -> None:
    async with shown(runs) as (host, pilot):
        chart = host.compare_screen.chart
        last = {}
        for _ in range(3):
            last[chart.view.axis] = [
                curve.series.positions.along(chart.view.axis)[-1] for curve in chart.curves
            ]
            await pilot.press("x")
        assert last == {"step": [20, 20, 10], "tokens": [2000, 2000, 1000], "time": [10, 10, 5]}
        assert chart.view.axis == "step"
        await pilot.press("tab", "x")
        assert not chart.has_focus and chart.view.axis == "tokens"


async def test_validation_losses_are_shown_instead_and_back(runs: list[RunDirectory]) -> None:
    async with shown(runs) as (host, pilot):
        await until(pilot, lambda: "Loss" in host.text)
        await pilot.press("v")
        await until(pilot, lambda: "Validation loss" in host.text)
        assert lengths(host.compare_screen.chart) == [4, 4, 2]
        assert host.focused is host.compare_screen.chart
        await pilot.press("v")
        await until(pilot, lambda: "Validation loss" not in host.text.splitlines()[0])
        assert lengths(host.compare_screen.chart) == [20, 20, 10]
        assert host.focused is host.compare_screen.chart


async def test_escape_goes_back(runs: list[RunDirectory]) -> None:
    async with shown(runs) as (host, pilot):
        await pilot.press("escape")
        assert host.screen is not host.compare_screen


async def test_a_run_that_goes_on_grows_and_one_that_is_resumed_is_read_anew(
    runs: list[RunDirectory],
) -> None:
    async with shown(runs, interval_s=0.1) as (host, pilot):
        chart = host.compare_screen.chart
        first = chart.curves[0].series
        with MetricsWriter(runs[0].metrics) as writer:
            writer.append(step=21, loss=0.5, tokens_total=2100, step_s=0.5)
            await until(pilot, lambda: lengths(chart)[0] == 21)
            assert chart.curves[0].series is first
            assert first.positions.along("time")[-1] == 10.5
            record_resume(runs[0], writer, from_step=11)
            writer.append(step=11, loss=0.25, tokens_total=1100, step_s=0.5)
        await until(pilot, lambda: lengths(chart) == [11, 20, 10])
        assert chart.curves[0].series.last == 0.25 and chart.curves[0].colour == 0


async def test_runs_that_cannot_be_read_are_told_and_the_others_compared(
    runs: list[RunDirectory], tmp_path: Path
) -> None:
    runs[1].metrics.write_bytes(b"nonsense")
    runs[2].config.unlink()
    empty = RunDirectory(tmp_path / "empty")
    empty.path.mkdir()

    async with shown([*runs, empty], size=(120, 60)) as (host, pilot):
        await until(pilot, lambda: lengths(host.compare_screen.chart) == [20, 0, 10, 0])
        words = " ".join(host.text.replace("│", " ").split())
        assert "metrics.bin is not a metrics file" in words
        assert f"run {runs[2].name}: config.toml is missing" in words
        assert "the folder is not a run" in words


@pytest.mark.parametrize("size", [(60, 16), (24, 8)])
@pytest.mark.parametrize("glyphs", [BLOCKS, PLAIN])
async def test_it_fits_every_terminal_and_plain_mode_draws_panels_in_ascii(
    runs: list[RunDirectory], size: tuple[int, int], glyphs: Glyphs
) -> None:
    async with shown(runs, size=size, glyphs=glyphs) as (host, pilot):
        await until(pilot, lambda: lengths(host.compare_screen.chart) == [20, 20, 10])
        await pilot.press("tab", "end", "pageup", "v", "x")
        text = "\n".join(host.text.splitlines()[:-1])  # the last line is the footer's
        assert text.isascii() is glyphs.ascii
        if size[0] >= 60:
            assert ("A tiny1" in text) and ("C tiny3" in text)
