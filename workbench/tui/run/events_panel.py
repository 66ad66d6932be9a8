"""What has happened in a run as a list, the newest first: checkpoints, evaluations, warnings, alerts, and what is wrong
with the run's folder."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import ClassVar

from workbench.tui.glyphs import Glyphs
from workbench.tui.panels.drawing import Line, clean
from workbench.tui.panels.panel import Panel
from workbench.tui.run.events import RunEvent, clock

MOST = 1000
"""Older ones are in `events.jsonl`."""
_CLOCK = 15


class EventsPanel(Panel):
    TITLE = "Events"
    HELP: ClassVar[str | None] = """\
### Events

What has happened, the newest first: checkpoints, evaluations, samples, warnings of the trainer, answers to the keys of
this screen, resumptions and ends. What this screen itself has noticed is marked *alert*: a loss or a gradient norm that
is not finite or leaps, a GPU that slows itself down, growing swap, a disk that is nearly full.

Above all stands what is wrong with the run's folder. The last 1,000 are shown; all are in `events.jsonl`.
"""

    def __init__(self, glyphs: Glyphs, *, id: str | None = None) -> None:
        super().__init__(glyphs, id=id)
        self._happenings: deque[RunEvent] = deque(maxlen=MOST)
        self._problems: tuple[str, ...] = ()
        self._drawn_rows: tuple[int, deque[Line]] = (0, deque(maxlen=MOST))
        """The width that they are drawn for, and one line for each event."""

    @property
    def events(self) -> tuple[RunEvent, ...]:
        """The oldest first."""
        return tuple(self._happenings)

    def add(self, events: Iterable[RunEvent]) -> None:
        found = sorted(events, key=lambda event: event.time)
        if not found:
            return
        before = len(self._happenings)
        self._happenings.extend(found)
        width, rows = self._drawn_rows
        if width:
            rows.extendleft(self._row(event) for event in found)
        # What is being read stays where it is.
        if self.first_row:
            self.first_row += len(self._happenings) - before
        self.changed()

    def set_problems(self, problems: tuple[str, ...]) -> None:
        """Sentences about what is wrong with the run's folder."""
        if problems != self._problems:
            self._problems = problems
            self.changed()

    def notify_style_update(self) -> None:
        super().notify_style_update()
        self._drawn_rows = (0, deque(maxlen=MOST))

    def heading(self) -> tuple[str, ...]:
        return (f"{len(self._happenings):,}",) if self._happenings else ()

    def lines(self, width: int, height: int) -> list[Line]:
        out: list[Line] = []
        for problem in self._problems:
            words = self.note(clean(problem, self.glyphs), max(4, width - 2))
            for place, line in enumerate(words):
                mark = self.write(f"{self.glyphs.warning if place == 0 else ' '} ", "warning")
                out.append([*mark, *self.write(line[0].text, "warning")])
        if self._drawn_rows[0] != width:
            rows = deque((self._row(each) for each in reversed(self._happenings)), maxlen=MOST)
            self._drawn_rows = (width, rows)
        if not self._happenings and not out:
            return self.note("Nothing has happened yet.", width)
        return out + list(self._drawn_rows[1])

    def _row(self, event: RunEvent) -> Line:
        mark = {"good": self.glyphs.good, "warning": self.glyphs.warning, "bad": self.glyphs.bad}
        sign = self.write(f"{mark.get(event.band, ' ')} ", event.band)
        kind = self.write(f"{event.kind} ", "strong")
        text = self.write(clean(event.text, self.glyphs), event.band if event.band != "good" else "")
        when = self.write(f"{clock(event.time):{_CLOCK}}", "dim")
        narrow = self.content_size.width < 50
        return [*sign, *([] if narrow else when), *kind, *text]
