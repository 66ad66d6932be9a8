"""What the machine did while a run trained, from the run's own recording: for runs that have ended."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import ClassVar

from workbench.formatting import NOT_KNOWN, amount, number, percent, rate
from workbench.runs import Metrics
from workbench.tui.glyphs import Glyphs
from workbench.tui.panels.drawing import Line, clean
from workbench.tui.panels.panel import Panel
from workbench.tui.run.events import clock

_POINTS = 240
_SHOWN: tuple[tuple[str, str, Callable[[float | None], str]], ...] = (
    ("gpu_busy", "GPU busy", percent),
    ("gpu_memory_bytes", "GPU memory", amount),
    ("gpu_power_w", "GPU power", lambda value: number(value, 0, "W")),
    ("gpu_temperature_c", "GPU temperature", lambda value: number(value, 0, "C")),
    ("gpu_received_bytes_per_s", "PCIe to GPU", rate),
    ("gpu_sent_bytes_per_s", "PCIe to host", rate),
    ("host_busy", "CPU busy", percent),
    ("host_memory_bytes", "host memory", amount),
    ("swap_bytes", "swap", amount),
    ("trainer_busy", "trainer's cores", lambda value: number(value, 1)),
    ("trainer_memory_bytes", "trainer's memory", amount),
    ("disk_read_bytes_per_s", "disk read", rate),
    ("disk_written_bytes_per_s", "disk written", rate),
)
"""Column, name, and how its values are said."""
_NAME, _VALUE = 18, 13


class RecordedPanel(Panel):
    TITLE = "Machine then"
    HELP: ClassVar[str | None] = """\
### The machine during the run

From `system.bin`, which the trainer writes every ten seconds: the last value, the highest, and all of them over the
run's time. `N/A`: it was never known.
"""

    def __init__(self, glyphs: Glyphs, *, id: str | None = None) -> None:
        super().__init__(glyphs, id=id)
        self._recorded: Metrics | None = None
        self._series: dict[str, list[float | None]] = {}

    def show(self, recorded: Metrics) -> None:
        """What `workbench.monitor.recording.read_system` gives."""
        self._recorded = recorded
        self._series = {name: _thinned(recorded, name) for name, _, _ in _SHOWN}
        self.changed()

    def heading(self) -> tuple[str, ...]:
        last = self._recorded.last() if self._recorded else {}
        return (f"until {clock(last['time'])}",) if "time" in last else ()

    def lines(self, width: int, height: int) -> list[Line]:
        recorded = self._recorded
        if recorded is None:
            return self.note("Reading.", width)
        if not len(recorded):
            return self.note(
                clean(
                    "The machine was not recorded during this run."
                    if not recorded.problem or "missing" in recorded.problem
                    else recorded.problem,
                    self.glyphs,
                ),
                width,
            )
        last = recorded.last()
        out = [self.write(f"{'':{_NAME}}{'last':>{_VALUE}}{'highest':>{_VALUE}}", "dim")]
        for name, label, said in _SHOWN:
            values = self._series[name]
            highest = max((value for value in values if value is not None), default=None)
            text = NOT_KNOWN if highest is None else said(highest)
            line = [
                *self.write(f"{label:{_NAME}}", "dim"),
                *self.write(f"{said(last.get(name)):>{_VALUE}}{text:>{_VALUE}}"),
            ]
            room = width - _NAME - 2 * _VALUE - 2
            if room >= 8 and highest is not None:
                bars = self.spark_of(_resampled(values, room), highest)
                line += [*self.write("  "), *bars]
            out.append(line)
        return out

    def spark_of(self, values: list[float | None], top: float) -> Line:
        from workbench.tui.charts.sparkline import sparkline

        return self.write(sparkline(values, len(values), self.glyphs, high=top or None)[0], "good")


def _thinned(recorded: Metrics, name: str) -> list[float | None]:
    """At most _POINTS values over the whole run, of each stretch the highest."""
    values = [value if math.isfinite(value) else None for value in recorded.column(name)]
    return _resampled(values, min(_POINTS, len(values)))


def _resampled(values: list[float | None], count: int) -> list[float | None]:
    """`count` values over the same time: the highest of each stretch."""
    if not values:
        return []
    out: list[float | None] = []
    for i in range(count):
        start = i * len(values) // count
        stretch = values[start : max(start + 1, (i + 1) * len(values) // count)]
        out.append(max((value for value in stretch if value is not None), default=None))
    return out
