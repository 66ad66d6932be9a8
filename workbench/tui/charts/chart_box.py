"""The box that a chart is drawn in: its picture and its titles.

Invariant: the picture is worked out anew only when data, view, size or colours have changed and somebody sees it; the
curves' series belong to whoever made them and are never changed here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from textual.strip import Strip

from workbench.tui.canvas import CanvasWidget
from workbench.tui.charts.curves import Curve
from workbench.tui.charts.labels import plain
from workbench.tui.charts.plot import Frame, Look, Plot, draw
from workbench.tui.charts.readings import newest_value, read_out, settings
from workbench.tui.charts.scale import Scale
from workbench.tui.charts.series import Axis
from workbench.tui.charts.view import View, bounds_of
from workbench.tui.glyphs import Glyphs

COLOURS = 8


class ChartBox(CanvasWidget):
    """Curves on shared axes. `title` says what is drawn, `unit` what its values are in ("s": times, "%": shares)."""

    DEFAULT_CSS = """
    ChartBox {
        height: 1fr;
        min-height: 3;
        border: round $panel-lighten-2;
        border-title-color: $foreground;
        border-subtitle-color: $text-muted;
    }
    ChartBox:focus { border: round $border; }
    ChartBox.-ascii { border: ascii $panel-lighten-2; }
    ChartBox.-ascii:focus { border: ascii $border; }
    ChartBox > .chart--axis { color: $text-muted; }
    ChartBox > .chart--cursor { color: $foreground; }
    ChartBox > .chart--spike { color: $text-warning; text-style: bold; }
    ChartBox > .chart--bad { color: $text-error; text-style: bold; }
    ChartBox > .chart--curve-1 { color: $text-primary; }
    ChartBox > .chart--curve-2 { color: $text-accent; }
    ChartBox > .chart--curve-3 { color: $foreground; }
    ChartBox > .chart--curve-4 { color: ansi_bright_magenta; }
    ChartBox > .chart--curve-5 { color: ansi_bright_cyan; }
    ChartBox > .chart--curve-6 { color: $text-secondary; }
    ChartBox > .chart--curve-7 { color: ansi_cyan; }
    ChartBox > .chart--curve-8 { color: ansi_magenta; }
    """
    COMPONENT_CLASSES: ClassVar[set[str]] = {
        "chart--axis",
        "chart--cursor",
        "chart--spike",
        "chart--bad",
        *(f"chart--curve-{number}" for number in range(1, COLOURS + 1)),
    }

    def __init__(
        self,
        title: str,
        curves: Sequence[Curve],
        *,
        glyphs: Glyphs,
        unit: str,
        axis: Axis,
        log_y: bool,
        id: str | None,
        classes: str | None,
    ) -> None:
        # Not by `set_class`, which styles the chart anew at once where an application runs.
        super().__init__(id=id, classes=" ".join(filter(None, (classes, "-ascii" if glyphs.ascii else None))))
        self.view = View(axis)
        """The horizontal axis; call `view_changed` after a change."""
        self.log_y = log_y
        self.with_spikes = False
        self.cursor: float | None = None
        """The place that is read out, relative to the axis's origin; None: no cursor."""
        self.unit = unit
        self.remark = ""
        """What is to be known of the curves: said beneath them with the next change."""
        self._title = title
        self._glyphs = glyphs
        self._curves: tuple[Curve, ...] = ()
        self._plot: Plot | None = None
        self._kept_look: Look | None = None
        self.set_curves(curves)

    @property
    def curves(self) -> tuple[Curve, ...]:
        return self._curves

    def set_curves(self, curves: Sequence[Curve]) -> None:
        """Draw these, the later ones above the earlier. The newest value of a single line is in the title."""
        self._curves = tuple(curves)
        self.changed()

    def view_changed(self) -> None:
        """Draw anew after a change of `view`, `log_y`, `with_spikes`, `cursor` or `unit`."""
        self.changed()

    def notify_style_update(self) -> None:
        super().notify_style_update()
        self._kept_look = None

    # What is shown

    def draw_rows(self, width: int, height: int) -> list[Strip]:
        self._plot = draw(self._frame_of_curves(), self._look(), self._glyphs, width, height)
        return [Strip(segments, width) for segments in self._plot.rows]

    def _bounds(self) -> tuple[float, float]:
        return bounds_of((curve.series for curve in self._curves), self.view) or (0.0, 1.0)

    def _scale(self) -> Scale:
        return self.view.scale(self._bounds())

    def _frame_of_curves(self) -> Frame:
        return Frame(
            self._curves,
            self._scale(),
            self.view.axis,
            self.log_y,
            self.with_spikes,
            self.unit,
            self.cursor,
        )

    def _look(self) -> Look:
        if self._kept_look is None:
            axis, cursor, spike, bad, *palette = (
                self.get_component_rich_style(f"chart--{name}")
                for name in (
                    "axis",
                    "cursor",
                    "spike",
                    "bad",
                    *(f"curve-{number}" for number in range(1, COLOURS + 1)),
                )
            )
            self._kept_look = Look(self.rich_style, axis, cursor, spike, bad, tuple(palette))
        return self._kept_look

    def border_texts(self) -> tuple[str, str]:
        """The newest value in the title, and beneath what is read out or how the axes are set."""
        lines = [curve.series for curve in self._curves if curve.form == "line"]
        value = newest_value(lines[0], self.unit) if len(lines) == 1 else ""
        if self.cursor is None:
            said = settings(self.view, log_y=self.log_y, with_spikes=self.with_spikes)
        else:
            said = read_out(self._curves, self.cursor, self.view.axis, self.unit)
        if self.remark:
            said.append(self.remark)
        text = f" {self._glyphs.separator} ".join(said)
        return (f"{self._title} {value}" if value else self._title, plain(text, self._glyphs))
