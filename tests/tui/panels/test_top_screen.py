"""The monitor's screen: laid out by width, frozen and hidden by keys, and drawing only when there is something new."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from sampled_machines import laptop, server
from screen_host import NEVER_S, NoMonitor, picture
from textual.app import App
from textual.pilot import Pilot
from textual.screen import ModalScreen, Screen

from workbench.monitor.samples import MonitorSample
from workbench.tui.context import AppContext
from workbench.tui.glyphs import BLOCKS, PLAIN, Glyphs
from workbench.tui.run.machine import LEAST_HEIGHT
from workbench.tui.screens.top import TopScreen

SIZES = ((60, 16), (80, 24), (120, 40))


class OneScreen(App[None]):
    def __init__(self, screen: Screen[None]) -> None:
        super().__init__()
        self.only = screen

    def on_mount(self) -> None:
        self.push_screen(self.only)


@asynccontextmanager
async def shown(
    size: tuple[int, int], sample: MonitorSample | None, glyphs: Glyphs = BLOCKS
) -> AsyncIterator[tuple[Pilot[None], TopScreen, NoMonitor]]:
    monitor = NoMonitor(sample)
    screen = TopScreen(AppContext(Path("runs"), monitor, glyphs, interval_s=NEVER_S))
    async with OneScreen(screen).run_test(size=size) as pilot:
        await pilot.pause()
        yield pilot, screen, monitor


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
async def test_panels_stand_side_by_side_as_the_width_allows(size: tuple[int, int]) -> None:
    async with shown(size, server()) as (_, screen, _):
        columns = {panel.region.x for panel in screen.panels}
        assert len(columns) == (1 if size[0] < 80 else 2 if size[0] < 120 else 3)
        assert all(panel.outer_size.height >= LEAST_HEIGHT for panel in screen.panels)
        assert all(panel.outer_size.width >= size[0] // len(columns) - 1 for panel in screen.panels)


@pytest.mark.parametrize("glyphs", [BLOCKS, PLAIN], ids=["blocks", "plain"])
async def test_every_panel_shows_the_newest_sample(glyphs: Glyphs) -> None:
    async with shown((120, 40), server(), glyphs) as (pilot, screen, monitor):
        told = ["\n".join(picture(panel)) for panel in screen.panels]
        words = ("No run", "192 cores", "GPU 87 % of 8", "1,024 GiB", "host-adam", "GiB/s", "nvme0n1")
        for text, word in zip(told, words, strict=True):
            assert word in text
            assert text.isascii() or not glyphs.ascii
        monitor.latest = laptop(2000.0)
        screen.look()
        await pilot.pause()
        assert "No GPU" in picture(screen.machine.no_gpu)[0]
        assert not {"gpu", "pcie"} & {panel.id for panel in screen.panels if panel.display}
        assert "8 cores" in picture(screen.panels[1])[0]


async def test_freezing_stops_the_picture_and_says_so() -> None:
    async with shown((120, 40), server()) as (pilot, screen, monitor):
        before = [picture(panel) for panel in screen.panels]
        await pilot.press("z")
        monitor.latest = laptop(2000.0)
        screen.look()
        await pilot.pause()
        assert [picture(panel) for panel in screen.panels] == before
        assert "frozen at" in picture(screen.line)[0] and "z continues" in picture(screen.line)[0]
        await pilot.press("z")
        assert "frozen" not in picture(screen.line)[0]
        assert "No GPU" in picture(screen.machine.no_gpu)[0]


async def test_digits_hide_and_show_panels_but_never_the_last() -> None:
    async with shown((120, 40), server()) as (pilot, screen, _):
        await pilot.press("2", "5")
        seen = [panel.id for panel in screen.panels if panel.display]
        assert seen == ["optimizer", "gpu", "memory", "pcie", "disk"]
        await pilot.press("2")
        assert screen.panels[1].display
        await pilot.press("1", "2", "3", "4", "6", "7")
        assert [panel.id for panel in screen.panels if panel.display] == ["disk"]
        await pilot.pause()
        assert screen.panels[6].outer_size.width >= 119


async def test_a_small_terminal_scrolls_to_the_focused_panel() -> None:
    async with shown((60, 16), server()) as (pilot, screen, _):
        await pilot.press(*["tab"] * 5)
        await pilot.pause()
        focused = screen.focused
        assert focused is screen.panels[5]
        assert screen.region.contains_region(focused.region)


async def test_q_leaves() -> None:
    async with shown((80, 24), laptop()) as (pilot, _, _):
        await pilot.press("q")
        assert pilot.app.return_code == 0 and not pilot.app.is_running


async def test_before_the_first_sample_it_waits_calmly() -> None:
    async with shown((80, 24), None) as (pilot, screen, monitor):
        assert "Waiting" in "\n".join(picture(screen.panels[1]))
        assert "Waiting" in picture(screen.line)[0]
        monitor.latest = laptop()
        screen.look()
        await pilot.pause()
        assert "no training process" in picture(screen.line)[0]


async def test_a_sample_that_was_shown_is_not_drawn_again() -> None:
    async with shown((120, 40), server()) as (_, screen, monitor):
        drawings = 0

        def counted(width: int, height: int) -> list[object]:
            nonlocal drawings
            drawings += 1
            return []

        for panel in screen.panels:
            panel.lines = counted  # type: ignore[method-assign, assignment]
        screen.look()
        assert drawings == 0
        monitor.latest = server(2000.0)
        screen.look()
        assert drawings > 0


async def test_nothing_is_drawn_while_another_screen_is_seen() -> None:
    async with shown((120, 40), server()) as (pilot, screen, monitor):
        pilot.app.push_screen(Screen())
        await pilot.pause()
        monitor.latest = laptop(2000.0)
        screen.tick()
        assert "GPU 87 %" in picture(screen.panels[2])[0]
        pilot.app.pop_screen()
        await pilot.pause()
        assert "No GPU" in picture(screen.machine.no_gpu)[0]


async def test_beneath_a_dialog_the_picture_goes_on() -> None:
    async with shown((120, 40), server()) as (pilot, screen, monitor):
        pilot.app.push_screen(ModalScreen())
        await pilot.pause()
        monitor.latest = laptop(2000.0)
        screen.tick()
        await pilot.pause()
        assert "No GPU" in picture(screen.machine.no_gpu)[0]
