"""What panels share that show each GPU by itself: a block each where there is room, one line each where there is not.

Invariant: every GPU of the sample gets as many lines as the others, and at least one.
"""

from __future__ import annotations

from workbench.monitor.samples import GpuSample, MonitorSample
from workbench.tui.glyphs import Glyphs
from workbench.tui.panels.drawing import Line, clean
from workbench.tui.panels.panel import Panel


class PerGpuPanel(Panel):
    """A subclass keeps what it draws over time (`remember`) and draws one GPU (`block`)."""

    def __init__(self, glyphs: Glyphs, *, id: str | None = None, classes: str | None = None) -> None:
        super().__init__(glyphs, id=id, classes=classes)
        self.sample: MonitorSample | None = None
        self.rows_each = 1
        """Lines that each GPU has."""

    def remember(self, gpu: GpuSample) -> None:
        """Keep what is drawn over time of a new sample."""
        raise NotImplementedError

    def block(self, gpu: GpuSample, width: int, rows: int) -> list[Line]:
        """One GPU in `rows` lines; in more only where nothing can be left out."""
        raise NotImplementedError

    @property
    def gpus(self) -> tuple[GpuSample, ...]:
        return self.sample.gpus if self.sample is not None else ()

    def show(self, sample: MonitorSample) -> None:
        """Draw this sample; one that was shown already changes nothing."""
        if self.sample is not None and sample.time == self.sample.time:
            return
        self.sample = sample
        for gpu in sample.gpus:
            self.remember(gpu)
        self.changed()

    def part(self, first: int, last: int, total: int) -> tuple[str, str]:
        if self.rows_each == 1 and self.gpus:
            return "GPU", f"{first}-{last} of {len(self.gpus)}"
        return super().part(first, last, total)

    def lines(self, width: int, height: int) -> list[Line]:
        if self.sample is None:
            return self.note("Waiting for the first sample.", width)
        if not self.gpus:
            return self.note(clean(self.sample.gpu_note or "No GPU is shown here.", self.glyphs), width)
        self.rows_each = max(1, height // len(self.gpus))
        return [line for gpu in self.gpus for line in self.block(gpu, width, self.rows_each)]
