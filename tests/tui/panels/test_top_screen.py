"""The monitor's screen: laid out by width, frozen and hidden by keys, and drawing only when there is something new."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from sampled_machines import laptop, server
from screen_host import picture
from textual.app import App
from textual.pilot import Pilot
from textual.screen import ModalScreen, Screen

from workbench.monitor.samples import MonitorSample
from workbench.tui.context import AppContext
from workbench.tui.glyphs import BLOCKS, PLAIN, Glyphs
from workbench.tui.screens.top import LEAST_HEIGHT, TopScreen, arrange

SIZES = ((60, 16), (80, 24), (120, 40), (200, 60))


class FixedMonitor:
    """Gives what it was given."""

    def __init__(self, sample: MonitorSample | None) -> None:
        self.latest = sample

    def start(self) -> None: ...

    def stop(self) -> None: ...

    def watch(self, *, pid: int | None, folders: tuple[Path, ...]) -> None: ...


class OneScreen(App[None]):
    def __init__(self, screen: Screen[None]) -> None:
        super().__init__()
        self.only = screen

    def on_mount(self) -> None:
        self.push_screen(self.only)


Scenario = Callable[[Pilot[None], TopScreen, FixedMonitor], Awaitable[None]]


def with_top(
    scenario: Scenario, size: tuple[int, int], sample: MonitorSample | None, glyphs: Glyphs = BLOCKS
) -> None:
    async def run() -> None:
        monitor = FixedMonitor(sample)
        screen = TopScreen(AppContext(Path("runs"), monitor, glyphs, interval_s=3600.0))
        async with OneScreen(screen).run_test(size=size) as pilot:
            await pilot.pause()
            await scenario(pilot, screen, monitor)

    asyncio.run(run())


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
def test_panels_stand_side_by_side_as_the_width_allows(size: tuple[int, int]) -> None:
    async def scenario(pilot: Pilot[None], screen: TopScreen, monitor: FixedMonitor) -> None:
        columns = {panel.region.x for panel in screen.panels}
        assert len(columns) == (1 if size[0] < 80 else 2 if size[0] < 120 else 3)
        assert all(panel.outer_size.height >= LEAST_HEIGHT for panel in screen.panels)
        assert all(panel.outer_size.width >= size[0] // len(columns) - 1 for panel in screen.panels)

    with_top(scenario, size, server())


@pytest.mark.parametrize("glyphs", [BLOCKS, PLAIN], ids=["blocks", "plain"])
def test_every_panel_shows_the_newest_sample(glyphs: Glyphs) -> None:
    async def scenario(pilot: Pilot[None], screen: TopScreen, monitor: FixedMonitor) -> None:
        told = ["\n".join(picture(panel)) for panel in screen.panels]
        for text, word in zip(
            told, ("H200", "192 cores", "1,024 GiB", "host-adam", "GiB/s", "nvme0n1"), strict=True
        ):
            assert word in text
            assert text.isascii() or not glyphs.ascii
        monitor.latest = laptop(2000.0)
        screen.look()
        await pilot.pause()
        assert "No GPU" in "\n".join(picture(screen.panels[0]))
        assert "8 cores" in picture(screen.panels[1])[0]

    with_top(scenario, (120, 40), server(), glyphs)


def test_freezing_stops_the_picture_and_says_so() -> None:
    async def scenario(pilot: Pilot[None], screen: TopScreen, monitor: FixedMonitor) -> None:
        before = [picture(panel) for panel in screen.panels]
        await pilot.press("z")
        monitor.latest = laptop(2000.0)
        screen.look()
        await pilot.pause()
        assert [picture(panel) for panel in screen.panels] == before
        assert "frozen at" in picture(screen.line)[0] and "z goes on" in picture(screen.line)[0]
        await pilot.press("z")
        assert "frozen" not in picture(screen.line)[0]
        assert "No GPU" in "\n".join(picture(screen.panels[0]))

    with_top(scenario, (120, 40), server())


def test_digits_hide_and_show_panels_but_never_the_last() -> None:
    async def scenario(pilot: Pilot[None], screen: TopScreen, monitor: FixedMonitor) -> None:
        await pilot.press("2", "5")
        assert [panel.display for panel in screen.panels] == [True, False, True, True, False, True]
        await pilot.press("2")
        assert screen.panels[1].display
        await pilot.press("1", "2", "3", "4", "6")
        assert [panel.id for panel in screen.panels if panel.display] == ["disk"]
        await pilot.pause()
        assert screen.panels[5].outer_size.width >= 119

    with_top(scenario, (120, 40), server())


def test_a_small_terminal_scrolls_to_the_focused_panel() -> None:
    async def scenario(pilot: Pilot[None], screen: TopScreen, monitor: FixedMonitor) -> None:
        await pilot.press(*["tab"] * 5)
        await pilot.pause()
        focused = screen.focused
        assert focused is screen.panels[5]
        assert screen.region.contains_region(focused.region)

    with_top(scenario, (60, 16), server())


def test_q_leaves() -> None:
    async def scenario(pilot: Pilot[None], screen: TopScreen, monitor: FixedMonitor) -> None:
        await pilot.press("q")
        assert pilot.app.return_code == 0 and not pilot.app.is_running

    with_top(scenario, (80, 24), laptop())


def test_before_the_first_sample_it_waits_calmly() -> None:
    async def scenario(pilot: Pilot[None], screen: TopScreen, monitor: FixedMonitor) -> None:
        assert "Waiting" in "\n".join(picture(screen.panels[0]))
        assert "Waiting" in picture(screen.line)[0]
        monitor.latest = laptop()
        screen.look()
        await pilot.pause()
        assert "no training process" in picture(screen.line)[0]

    with_top(scenario, (80, 24), None)


def test_a_sample_that_was_shown_is_not_drawn_again() -> None:
    async def scenario(pilot: Pilot[None], screen: TopScreen, monitor: FixedMonitor) -> None:
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

    with_top(scenario, (120, 40), server())


def test_nothing_is_drawn_while_another_screen_is_seen() -> None:
    async def scenario(pilot: Pilot[None], screen: TopScreen, monitor: FixedMonitor) -> None:
        pilot.app.push_screen(Screen())
        await pilot.pause()
        monitor.latest = laptop(2000.0)
        screen.look()
        assert "H200" in "\n".join(picture(screen.panels[0]))
        pilot.app.pop_screen()
        await pilot.pause()
        assert "No GPU" in "\n".join(picture(screen.panels[0]))

    with_top(scenario, (120, 40), server())


def test_beneath_a_dialog_the_picture_goes_on() -> None:
    async def scenario(pilot: Pilot[None], screen: TopScreen, monitor: FixedMonitor) -> None:
        pilot.app.push_screen(ModalScreen())
        await pilot.pause()
        monitor.latest = laptop(2000.0)
        screen.look()
        assert "No GPU" in "\n".join(picture(screen.panels[0]))

    with_top(scenario, (120, 40), server())


def test_rows_share_the_height_and_none_is_lower_than_the_least() -> None:
    source = random.Random(5)
    for _ in range(200):
        width, height = source.randrange(20, 220), source.randrange(3, 70)
        wants = [source.randrange(3, 20) for _ in range(source.randrange(1, 7))]
        found = arrange(width, height, wants)
        rows = -(-len(wants) // found.columns)
        assert len(found.heights) == rows and min(found.heights) >= LEAST_HEIGHT
        assert sum(found.heights) == max(height, rows * LEAST_HEIGHT)
