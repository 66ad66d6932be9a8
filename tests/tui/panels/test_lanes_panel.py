"""The lane timeline: what is exposed, what a cell shows, and its keys."""

from __future__ import annotations

import random

import pytest
from panel_host import BOXES, check_box, drawn, picture, shown_widget
from sampled_machines import step_lanes
from textual.events import MouseScrollUp

from workbench.runs import Lanes, LaneSpan
from workbench.tui.glyphs import BLOCKS, PLAIN, Glyphs
from workbench.tui.panels.lane_times import LaneTrack, StepLanes
from workbench.tui.panels.lanes import LanesPanel

SMALL = Lanes(
    step=7,
    spans=(
        LaneSpan("compute", "forward", -1, -1, 0.0, 1.0),
        LaneSpan("compute", "backward", -1, -1, 1.0, 3.0),
        LaneSpan("download", "download", 2, 0, 2.0, 3.0),
        LaneSpan("update", "update", 2, 5, 2.5, 4.0),
    ),
)


def spans_of(seed: int, count: int, lane: str) -> list[LaneSpan]:
    source = random.Random(seed)
    out = []
    for i in range(count):
        start = source.uniform(0.0, 10.0)
        out.append(LaneSpan(lane, f"kind {i % 3}", i, -1, start, start + source.uniform(0.0, 1.0)))
    return out


def test_exposed_is_what_a_lane_does_while_compute_does_nothing() -> None:
    seconds = StepLanes(SMALL).seconds
    assert (seconds["download"].busy_s, seconds["download"].exposed_s) == (1.0, 0.0)
    update = seconds["update"]
    assert (update.busy_s, update.hidden_s, update.exposed_s) == (1.5, 0.5, 1.0)
    assert seconds["compute"].exposed_s == 0.0 and StepLanes(SMALL).exposed_s == 1.0


@pytest.mark.parametrize("seed", range(2))
def test_seconds_are_those_of_counting_fine_slices_of_time(seed: int) -> None:
    lanes = StepLanes(Lanes(1, tuple(spans_of(seed, 12, "compute") + spans_of(seed + 99, 12, "update"))))
    step = 0.001
    busy = hidden = 0
    for i in range(11_500):
        time = (i + 0.5) * step
        working = [
            any(span.start_s <= time < span.end_s for span in lanes.tracks[name].spans)
            for name in ("compute", "update")
        ]
        busy += working[1]
        hidden += all(working)
    found = lanes.seconds["update"]
    assert found.busy_s == pytest.approx(busy * step, abs=0.02)
    assert found.hidden_s == pytest.approx(hidden * step, abs=0.02)
    assert found.exposed_s == pytest.approx((busy - hidden) * step, abs=0.02)


@pytest.mark.parametrize("seed", range(2))
def test_spans_between_two_times_are_those_of_a_plain_search(seed: int) -> None:
    track = LaneTrack(spans_of(seed, 40, "read"))
    source = random.Random(seed)
    for _ in range(50):
        start = source.uniform(0.0, 10.0)
        end = start + source.uniform(0.01, 3.0)
        expected = [span for span in track.spans if span.end_s > start and span.start_s < end]
        assert track.between(start, end) == expected


def test_a_cell_shows_the_kind_that_fills_most_of_it_and_never_loses_a_short_span() -> None:
    track = LaneTrack(
        [
            LaneSpan("update", "norm", 0, 0, 0.0, 0.3),
            LaneSpan("update", "update", 0, 0, 0.3, 1.0),
            LaneSpan("update", "update", 0, 1, 2.0, 2.0),
        ]
    )
    cells = track.cells(0.0, 4.0, 4)
    assert [kind for kind, _ in cells] == ["update", "", "update", ""]
    assert [full for _, full in cells] == pytest.approx([1.0, 0.0, 0.0, 0.0], abs=1e-6)
    assert cells[2][1] > 0


@BOXES
def test_the_timeline_fills_its_box_and_no_more(size: tuple[int, int], glyphs: Glyphs) -> None:
    odd = Lanes(
        3, (LaneSpan("gänge", "new\nkind", 1, 1, 0.0, 0.0), LaneSpan("compute", "forward", 0, 0, 0.0, 1e-9))
    )
    for lanes in (step_lanes(), SMALL, odd, Lanes(), Lanes(problem="lanes.json is damaged")):

        def prepare(panel: LanesPanel, lanes: Lanes = lanes) -> None:
            panel.show_lanes(lanes)
            panel.action_cursor()
            panel.action_jump(1)
            panel.action_zoom(0.1)

        check_box(drawn(LanesPanel(glyphs), size, prepare), size, ascii_only=glyphs.ascii)


def test_each_lane_has_a_row_and_forward_and_backward_differ_by_character() -> None:
    rows = drawn(LanesPanel(PLAIN), (80, 12), lambda panel: panel.show_lanes(SMALL))
    compute = next(row for row in rows if row.startswith("|compute"))
    cells = compute.split()[1]
    assert cells.strip("FB") == "" and cells.count("B") == pytest.approx(2 * cells.count("F"), abs=2)
    assert all(
        any(row.startswith(f"|{lane}") for row in rows) for lane in ("download", "update", "upload", "read")
    )
    assert "exposed 1.00 s" in rows[0]
    assert any("F forward" in row and "B backward" in row and "U update" in row for row in rows)
    update = next(row for row in rows if row.startswith("|update"))
    assert update.rstrip("|").split()[-6:] == ["1.50", "s", "500.0", "ms", "1.00", "s"]


def test_a_narrow_panel_has_the_seconds_below() -> None:
    rows = drawn(LanesPanel(PLAIN), (40, 20), lambda panel: panel.show_lanes(SMALL))
    assert any("update" in row and "1.50 s exposed 1.00 s" in row for row in rows)


def test_what_is_wrong_with_the_file_is_said() -> None:
    rows = drawn(LanesPanel(BLOCKS), (60, 6), lambda panel: panel.show_lanes(Lanes(problem="it is damaged")))
    assert "it is damaged" in rows[1]


async def test_the_cursor_reads_kind_unit_chunk_and_milliseconds() -> None:
    async with shown_widget(LanesPanel(BLOCKS), (80, 14)) as (pilot, panel):
        panel.show_lanes(SMALL)
        panel.focus()
        await pilot.press("c", "down", "down", "n")
        assert panel.under_cursor == SMALL.spans[3]
        text = "\n".join(picture(panel))
        assert "update: update  unit 2 chunk 5  1,500.0 ms  from 2,500.0 ms to 4,000.0 ms" in text
        await pilot.press("up", "b")
        assert panel.under_cursor == SMALL.spans[2]
        await pilot.press("c")
        assert panel.under_cursor is None and "unit" not in "\n".join(picture(panel))


async def test_keys_zoom_pan_and_show_all_again() -> None:
    async with shown_widget(LanesPanel(BLOCKS), (80, 14)) as (pilot, panel):
        panel.show_lanes(SMALL)
        panel.focus()
        await pilot.press("plus")
        assert panel.window == pytest.approx((1.0, 3.0))
        await pilot.press("right")
        assert panel.window == pytest.approx((1.25, 3.25))
        await pilot.press("h", "h")
        assert panel.window == pytest.approx((0.75, 2.75))
        assert "750.0 ms to 2,750.0 ms" in picture(panel)[-1]
        await pilot.press("minus")
        assert panel.window == (0.0, 4.0)
        await pilot.press("plus", "plus", *["l"] * 20)
        assert panel.window == pytest.approx((3.0, 4.0))
        await pilot.press("0")
        assert panel.window == (0.0, 4.0)


async def test_the_cursor_takes_the_window_along_when_it_leaves_it() -> None:
    async with shown_widget(LanesPanel(BLOCKS), (80, 14)) as (pilot, panel):
        panel.show_lanes(SMALL)
        panel.focus()
        await pilot.press("c", "plus", "plus")
        for _ in range(60):
            panel.action_move(1)
        start, end = panel.window
        assert end - start == pytest.approx(1.0) and start > 2.4


async def test_the_pointer_reads_and_the_wheel_zooms() -> None:
    async with shown_widget(LanesPanel(BLOCKS), (80, 14)) as (pilot, panel):
        panel.show_lanes(SMALL)
        await pilot.pause()
        update = next(y for y, row in enumerate(picture(panel)) if "▆" in row)
        x = picture(panel)[update].index("▆") + 2
        await pilot.hover(panel, offset=(x, update))
        assert panel.under_cursor == SMALL.spans[3]
        panel.post_message(MouseScrollUp(panel, x, update, 0, 0, 0, False, False, False))
        await pilot.pause()
        start, end = panel.window
        assert end - start == pytest.approx(2.0)


async def test_a_new_step_keeps_what_was_zoomed_to() -> None:
    async with shown_widget(LanesPanel(BLOCKS), (80, 14)) as (_, panel):
        panel.show_lanes(SMALL)
        panel.action_zoom(0.5)
        panel.show_lanes(step_lanes())
        assert panel.window == pytest.approx((1.0, 3.0))
        panel.show_lanes(Lanes(9, SMALL.spans[:1]))
        assert panel.window == (0.0, 1.0)
