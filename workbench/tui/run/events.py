"""The list of a run's events in words, the newest first, and alerts for somebody who watches a run.

Invariant: an alert comes once each time that something begins to go wrong; what was there before is no alert.
"""

from __future__ import annotations

import math
import re
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from workbench.formatting import NOT_KNOWN, amount, known, percent
from workbench.monitor.samples import GpuSample, MonitorSample
from workbench.runs import Event
from workbench.tui.glyphs import Glyphs
from workbench.tui.panels.panel import Line, Panel, clean

MOST = 1000
"""Events that are listed; older ones are in `events.jsonl`."""
_CLOCK = 15

Band = Literal["", "good", "warning", "bad"]
_STEP, _TOOK = "step {step:,.0f}", "in {seconds:.1f} s"
_WORDS: dict[str, tuple[Band, tuple[str, ...]]] = {
    "evaluation": ("", (_STEP, "validation loss {loss:.4f}", "perplexity {perplexity:.4g}", _TOOK)),
    "checkpoint": ("good", (_STEP, "saved {path}", _TOOK)),
    "sample": ("", (_STEP, "text in {path}")),
    "warning": ("warning", ("{message}",)),
    "loss_scale": ("", (_STEP, "loss scale {scale:g}")),
    "disk": ("", ("the disk tier is written {written_per_day:,.2f} TB a day at this rate",)),
    "control": ("", ("{verb}", "{message}")),
    "resume": ("good", ("continues from step {from_step:,.0f}",)),
    "finished": ("bad", ("{phase}", "{message}", "exit code {exit_code:.0f}")),
}
"""The band of each kind of event, and its words. Words of a field that it lacks are left out."""
DEVIATIONS = 6.0
"""A spike stands so many standard deviations above the average."""
CALM_STEPS = 50
"""Steps before a spike is judged, and between two that are reported."""
LEARNED = 4 * CALM_STEPS
"""Steps from before the watching that say what is usual."""
_WEIGHT = 0.03
"""Of a new value in mean and variance (West 1979, "Updating mean and variance estimates", exponential weights)."""
SWAP_BYTES = 64 << 20
"""Swap that has grown by more than this over SWAP_SAMPLES is growing."""
SWAP_SAMPLES = 20
DISK_BYTES = 2 << 30
DISK_SHARE, DISK_PLENTY_BYTES = 0.03, 16 << 30
"""A disk is nearly full with less free than DISK_BYTES, or than this share of it, unless that is plenty."""
THROTTLED_SAMPLES = 3
_NORMAL = {"power cap", "clocks set by the user", "display clocks", "sync boost"}
"""The reasons for slower clocks that are usual in daily work."""
Values = Iterable[float]


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
    if event.kind not in _WORDS:
        return None
    band, templates = _WORDS[event.kind]
    fields = dict(event.fields)
    if isinstance(written := fields.get("written_per_day"), (int, float)):
        fields["written_per_day"] = written / 1e12
    if event.kind == "finished":
        phase = fields.setdefault("phase", "ended")
        band = "good" if fields.get("exit_code") == 0 else "warning" if phase == "stopped" else "bad"
    parts = (_words(template, fields) for template in templates)
    return RunEvent(event.time, event.kind.replace("_", " "), ", ".join(filter(None, parts)), band)


def _words(template: str, fields: Mapping[str, Any]) -> str:
    """Return the template with its field, or with N/A where that is not known; empty where there is no such field."""
    name = re.split("[{:}]", template)[1]
    if name not in fields:
        return ""
    value = fields[name]
    is_known = value is not None and not (isinstance(value, float) and known(value) is None)
    try:
        return template.format_map({name: value}) if is_known else re.sub("{.*}", NOT_KNOWN, template)
    except (ValueError, TypeError):
        return re.sub("{.*}", NOT_KNOWN, template)


def clock(at: float) -> str:
    """Return local date and time; "-" for what no calendar has."""
    try:
        return time.strftime("%m-%d %H:%M:%S", time.localtime(at))
    except (ValueError, OverflowError, OSError):
        return "-"


class EventsPanel(Panel):
    TITLE = "Events"
    HELP: ClassVar[str | None] = """\
### Events

What has happened, the newest first: checkpoints, evaluations, samples, warnings of the trainer, answers to the keys of
this screen, resumptions and ends. Events that this screen itself detects are marked *alert*: a loss or a gradient
norm that is not finite or jumps, a throttled GPU, growing swap, a disk that is nearly full.

Problems of the run's folder come first. The last 1,000 events are shown; all are in `events.jsonl`.
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


@dataclass
class _Leaps:
    """Finds values that leap far above the exponential average of those before them."""

    mean: float = 0.0
    variance: float = 0.0
    seen: int = 0
    quiet: int = 0
    """Values until one may be reported again."""

    def take(self, value: float) -> float | None:
        """Return the value's standard deviations above the mean where they are too many; it then counts for nothing."""
        self.quiet = max(0, self.quiet - 1)
        above = value - self.mean
        # A curve without any noise must not make a spike of its last digit.
        floor = max(math.sqrt(self.variance), 0.01 * abs(self.mean))
        if self.seen >= CALM_STEPS and floor > 0 and above > DEVIATIONS * floor:
            if self.quiet:
                return None
            self.quiet = CALM_STEPS
            return above / floor
        weight = max(_WEIGHT, 1 / (self.seen + 1))
        self.seen += 1
        self.mean += weight * above
        self.variance = (1 - weight) * (self.variance + weight * above * above)
        return None


class Alerts:
    """Watches records and samples for what somebody would want to know."""

    def __init__(self) -> None:
        self._leaps = {"loss": _Leaps(), "gradient norm": _Leaps()}
        self._on: set[str] = set()
        """The conditions that hold and were reported."""
        self._swap: deque[int] = deque(maxlen=SWAP_SAMPLES)
        self._throttled: dict[int, int] = {}

    def of_records(self, steps: Values, losses: Values, norms: Values, *, now: float) -> list[RunEvent]:
        """Return the alerts of new records. Those from before the watching are given too, and their alerts dropped."""
        out = []
        for name, values in (("loss", losses), ("gradient norm", norms)):
            for step, value in zip(steps, values, strict=True):
                if not math.isfinite(value):
                    if name not in self._on:
                        self._on.add(name)
                        text = f"step {step:,.0f}: the {name} is not finite"
                        out.append(RunEvent(now, "alert", text, "bad"))
                    continue
                self._on.discard(name)
                if far := self._leaps[name].take(value):
                    text = (
                        f"step {step:,.0f}: the {name} jumps to {value:.4g}, {far:.0f} standard deviations "
                        f"above its average {self._leaps[name].mean:.4g}"
                    )
                    out.append(RunEvent(now, "alert", text, "warning"))
        return out

    def of_sample(self, sample: MonitorSample) -> list[RunEvent]:
        """Return the alerts of a sample of the machine."""
        out = []
        for key, text, band in self._conditions(sample):
            if text and key not in self._on:
                out.append(RunEvent(sample.time, "alert", text, band))
            (self._on.add if text else self._on.discard)(key)
        return out

    def _conditions(self, sample: MonitorSample) -> Iterator[tuple[str, str, Band]]:
        """Yield (key, text, band); the text is empty where the condition does not hold."""
        for gpu in sample.gpus:
            yield f"gpu {gpu.index}", self._slowed(gpu), "warning"
            yield f"fault {gpu.index}", f"GPU {gpu.index}: {gpu.fault}" if gpu.fault else "", "bad"
        used = sample.host.swap_used_bytes
        if used is not None:
            self._swap.append(used)
            grown = used - min(self._swap)
            # It holds on until swap has stood still for all of the samples.
            grows = grown > SWAP_BYTES or ("swap" in self._on and grown > 0)
            text = f"swap grows: {amount(used)} in use; every step touches all of the optimizer's state"
            yield "swap", text if grows else "", "bad"
        for disk in sample.disks:
            free, total = disk.free_bytes, disk.total_bytes
            if free is not None and total is not None:
                full = free < DISK_BYTES or (free < DISK_SHARE * total and free < DISK_PLENTY_BYTES)
                text = f"{disk.folder}: only {amount(free)} free ({percent(free / max(1, total))})"
                yield f"disk {disk.folder}", text if full else "", "bad"

    def _slowed(self, gpu: GpuSample) -> str:
        reasons = [reason for reason in gpu.throttled_by or () if reason not in _NORMAL]
        count = self._throttled.get(gpu.index, 0) + 1 if reasons else 0
        self._throttled[gpu.index] = count
        slowed = count >= THROTTLED_SAMPLES
        return f"GPU {gpu.index} is throttled: {', '.join(reasons)}" if slowed else ""
