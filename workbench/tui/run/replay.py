"""The replay of a run that has ended: a slider over its steps, and what is known of one of them.

The spans of a step are kept of the last one alone; of the others the seconds of each lane are in the metrics.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import ClassVar, NamedTuple

from rich.segment import Segment
from textual import events
from textual.binding import Binding, BindingType
from textual.message import Message
from textual.strip import Strip

from workbench.runs import RunDirectory
from workbench.runs.metrics import HOST_LANES, read_metrics
from workbench.tui.canvas import CanvasWidget
from workbench.tui.charts.series import Floats
from workbench.tui.glyphs import Glyphs
from workbench.tui.panels.lane_times import LaneSeconds
from workbench.tui.panels.panel import cut, filled_up

_PAGES = 10
_LEAST_BAR = 10


class StepRecord(NamedTuple):
    """The metrics of one step. `time`: when it ended, seconds since 1970; None where that is not known."""

    step: int
    time: float | None
    step_s: float
    lanes: Mapping[str, LaneSeconds]


def read_step(run: RunDirectory, record: int) -> StepRecord | None:
    """Return the step of this record of the run's metrics; None where it cannot be read. It reads the disk."""
    found = read_metrics(run.metrics, record, 1)
    if not len(found):
        return None
    values = {
        name: value for name, value in found.last().items() if value is not None and math.isfinite(value)
    }
    compute = values.get("compute_s", 0.0)
    lanes = {"compute": LaneSeconds(compute, compute, 0.0)}
    for name in HOST_LANES:
        busy, exposed = values.get(f"{name}_s", 0.0), values.get(f"{name}_exposed_s", 0.0)
        if busy or name == "update":
            lanes[name] = LaneSeconds(busy, max(0.0, busy - exposed), exposed)
    return StepRecord(int(values.get("step", 0)), values.get("time"), values.get("step_s", 0.0), lanes)


class StepSlider(CanvasWidget):
    """A line with a mark at the chosen step."""

    HELP: ClassVar[str | None] = """\
### Replay

Left and right go from step to step, page up and down by a tenth of the run, home and end to its first and last step,
and a click to a step. The charts' cursor, the lanes' seconds and the machine's sample are those of the step. `t` ends
the replay.
"""
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left", "move(-1)", "Step back", id="replay.back", show=False),
        Binding("right", "move(1)", "Step ahead", id="replay.ahead", show=False),
        Binding("pageup", "page(-1)", "Back by a tenth", id="replay.page_back", show=False),
        Binding("pagedown", "page(1)", "Ahead by a tenth", id="replay.page_ahead", show=False),
        Binding("home", "move(-1e18)", "First step", id="replay.first", show=False),
        Binding("end", "move(1e18)", "Last step", id="replay.last", show=False),
    ]
    DEFAULT_CSS = """
    StepSlider { height: 1; display: none; background: $panel; }
    StepSlider > .slider--mark { color: $text-accent; text-style: bold; }
    StepSlider:focus > .slider--mark { text-style: bold reverse; }
    """
    COMPONENT_CLASSES: ClassVar[set[str]] = {"slider--mark"}
    can_focus = True

    class Moved(Message):
        """Another record is chosen."""

        def __init__(self, record: int) -> None:
            super().__init__()
            self.record = record

    def __init__(self, glyphs: Glyphs, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._glyphs = glyphs
        self._steps: Floats | None = None
        self.record = 0
        self._bar = (0, 1)
        """The first cell of the bar, and its cells."""

    def show(self, steps: Floats) -> None:
        """Slide over these steps, one or more, from the last one on."""
        self._steps = steps
        self._move_to(len(steps) - 1)

    def draw_rows(self, width: int, height: int) -> list[Strip]:
        steps = self._steps
        if steps is None or not len(steps):
            return []
        label = f" Replay: step {int(steps[self.record]):,} of {int(steps[-1]):,} "
        cells = width - len(label) - 1
        if cells < _LEAST_BAR:
            text = [Segment(cut(label, width, self._glyphs))]
            return [filled_up(text, width, self._glyphs, self.rich_style)]
        self._bar = len(label), cells
        at = round(self.record / max(1, len(steps) - 1) * (cells - 1))
        line, mark = ("-", "O") if self._glyphs.ascii else ("─", "●")
        bar = [
            Segment(label + line * at),
            Segment(mark, self.get_component_rich_style("slider--mark")),
            Segment(line * (cells - 1 - at)),
        ]
        return [filled_up(bar, width, self._glyphs, self.rich_style)]

    def action_move(self, records: float) -> None:
        self._move_to(self.record + records)

    def action_page(self, direction: int) -> None:
        self._move_to(self.record + direction * max(1, self._count // _PAGES))

    def on_click(self, event: events.Click) -> None:
        first, cells = self._bar
        self._move_to(round((event.x - first) / max(1, cells - 1) * (self._count - 1)))

    @property
    def _count(self) -> int:
        return 0 if self._steps is None else len(self._steps)

    def _move_to(self, record: float) -> None:
        self.record = int(min(max(0, record), max(0, self._count - 1)))
        self.changed()
        self.post_message(self.Moved(self.record))
