"""The list of a run's events in words, the newest first, and above it what is wrong with the run's folder."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from workbench.formatting import known
from workbench.runs import Event
from workbench.tui.glyphs import Glyphs
from workbench.tui.panels.drawing import Line, clean
from workbench.tui.panels.panel import Panel

MOST = 1000
"""Events that are listed; older ones are in `events.jsonl`."""
_CLOCK = 15

Band = Literal["", "good", "warning", "bad"]


@dataclass(frozen=True)
class RunEvent:
    """One line of the list: an event of the trainer, or an alert of the screen."""

    time: float
    """Unix seconds."""
    kind: str
    text: str
    band: Band = ""


def run_event_of(event: Event) -> RunEvent | None:
    """Put an event into words; None for what the status line shows already, and for unknown kinds."""
    describe = _DESCRIBE.get(event.kind)
    if describe is None:
        return None
    parts, band = describe(event.fields)
    return RunEvent(event.time, event.kind.replace("_", " "), ", ".join(filter(None, parts)), band)


def clock(at: float) -> str:
    """Return local date and time; "-" for what no calendar has."""
    try:
        return time.strftime("%m-%d %H:%M:%S", time.localtime(at))
    except (ValueError, OverflowError, OSError):
        return "-"


Fields = Mapping[str, Any]


def _number(fields: Fields, name: str, form: str, unknown: str = "") -> str:
    value = fields.get(name)
    number = known(float(value)) if isinstance(value, (int, float)) else None
    return unknown if number is None else form.format(number)


def _finished(fields: Fields) -> tuple[list[str], Band]:
    phase, code = str(fields.get("phase", "ended")), fields.get("exit_code")
    band: Band = "good" if code == 0 else "warning" if phase == "stopped" else "bad"
    return [phase, str(fields.get("message", "")), _number(fields, "exit_code", "exit code {:.0f}")], band


_STEP = "step {:,.0f}"
_TOOK = "in {:.1f} s"
_DESCRIBE: dict[str, Callable[[Fields], tuple[list[str], Band]]] = {
    "evaluation": lambda fields: (
        [
            _number(fields, "step", _STEP),
            _number(fields, "loss", "validation loss {:.4f}", "validation loss N/A"),
            _number(fields, "perplexity", "perplexity {:.4g}"),
            _number(fields, "seconds", _TOOK),
        ],
        "",
    ),
    "checkpoint": lambda fields: (
        [
            _number(fields, "step", _STEP),
            f"saved {fields.get('path', '')}",
            _number(fields, "seconds", _TOOK),
        ],
        "good",
    ),
    "sample": lambda fields: (
        [_number(fields, "step", _STEP), f"text in {fields.get('path', 'samples')}"],
        "",
    ),
    "warning": lambda fields: ([str(fields.get("message", ""))], "warning"),
    "loss_scale": lambda fields: (
        [_number(fields, "step", _STEP), _number(fields, "scale", "loss scale {:g}", "loss scale N/A")],
        "",
    ),
    "disk": lambda fields: (
        [
            f"the disk tier is written {_terabytes(fields.get('written_per_day'))} a day at this rate",
        ],
        "",
    ),
    "control": lambda fields: ([str(fields.get("verb", "")), str(fields.get("message", ""))], ""),
    "resume": lambda fields: (
        [f"goes on from step {_number(fields, 'from_step', '{:,.0f}', 'N/A')}"],
        "good",
    ),
    "finished": _finished,
}


def _terabytes(size: object) -> str:
    return f"{size / 1e12:,.2f} TB" if isinstance(size, (int, float)) else "N/A"


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
        self.events: deque[RunEvent] = deque(maxlen=MOST)
        """The oldest first."""
        self._problems: tuple[str, ...] = ()

    def add(self, events: Iterable[RunEvent]) -> None:
        found = sorted(events, key=lambda event: event.time)
        if not found:
            return
        before = len(self.events)
        self.events.extend(found)
        if self.first_row:  # what is being read stays where it is
            self.first_row += len(self.events) - before
        self.changed()

    def set_problems(self, problems: tuple[str, ...]) -> None:
        """Show these sentences about the run's folder."""
        if problems != self._problems:
            self._problems = problems
            self.changed()

    def heading(self) -> tuple[str, ...]:
        return (f"{len(self.events):,}",) if self.events else ()

    def lines(self, width: int, height: int) -> list[Line]:
        out: list[Line] = []
        for problem in self._problems:
            words = self.note(clean(problem, self.glyphs), max(4, width - 2))
            for place, line in enumerate(words):
                sign = self.glyphs.warning if place == 0 else " "
                out.append(self.write(f"{sign} {line[0].text}", "warning"))
        out += (self._row(event, width) for event in reversed(self.events))
        return out or self.note("Nothing has happened yet.", width)

    def _row(self, event: RunEvent, width: int) -> Line:
        signs = {"good": self.glyphs.good, "warning": self.glyphs.warning, "bad": self.glyphs.bad}
        return [
            *self.write(f"{signs.get(event.band, ' ')} ", event.band),
            *([] if width < 50 else self.write(f"{clock(event.time):{_CLOCK}}", "dim")),
            *self.write(f"{event.kind} ", "strong"),
            *self.write(clean(event.text, self.glyphs), event.band if event.band != "good" else ""),
        ]
