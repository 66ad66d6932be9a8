"""The results of a run: the texts that it generates, and how it ended beside what was planned."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from rich.cells import cell_len, chop_cells
from textual.binding import Binding, BindingType
from textual.message import Message

from workbench.formatting import amount, duration, number
from workbench.plan.outcome import Compared
from workbench.runs import Liveness, Status
from workbench.runs.launch import ExitReason
from workbench.tui.glyphs import Glyphs
from workbench.tui.panels.panel import Line, Panel, clean, ends

MOST_BYTES = 64 << 10
_STEP = re.compile(r"step-(\d+)")
_BANDS = {"finished": "good", "stopped": "warning", "failed": "bad", "died": "bad"}
_TELLING = ("failed", "died")
"""The states whose last words are shown."""
_FAR_OFF = 0.25
"""A measurement that is off by this share of the plan is marked."""
_GAP = "  "


class SamplesView(Panel):
    TITLE = "Sample"
    HELP: ClassVar[str | None] = """\
### Samples

Texts that the model has generated, as `[sample]` of the configuration sets. Left and right, or `[` and `]`, show the
previous and the next one; while the newest is shown, each new one replaces it. Up and down scroll.
"""
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left,left_square_bracket", "go(-1)", "Previous sample", id="samples.before", show=False),
        Binding("right,right_square_bracket", "go(1)", "Next sample", id="samples.after", show=False),
    ]

    class Read(Message):
        """A text has been read."""

        def __init__(self, path: Path, text: str, problem: str) -> None:
            super().__init__()
            self.path = path
            self.text = text
            self.problem = problem

    def __init__(self, glyphs: Glyphs, *, id: str | None = None) -> None:
        super().__init__(glyphs, id=id)
        self._paths: tuple[Path, ...] | None = None
        self._at = -1
        self._read: SamplesView.Read | None = None
        self._wrapped: tuple[int, list[Line]] = (0, [])

    @property
    def shown(self) -> Path | None:
        """The file that is seen, or being read."""
        return self._paths[self._at] if self._paths and 0 <= self._at < len(self._paths) else None

    def set_paths(self, paths: tuple[Path, ...]) -> None:
        """Show these files, by their steps; where the newest was seen, the newest."""
        if paths == self._paths:
            return
        shown, followed = self.shown, self._at in (-1, len(self._paths or ()) - 1)
        self._paths = paths
        self._at = len(paths) - 1 if followed or shown not in paths else paths.index(shown)
        if self.shown != shown:
            self._begin()
        self.changed()

    def _begin(self) -> None:
        path = self.shown
        self.first_row = 0
        if path is not None and self.is_mounted:
            self.run_worker(
                lambda: self._load(path), thread=True, group="sample", exclusive=True, exit_on_error=False
            )

    def _load(self, path: Path) -> None:
        try:
            with path.open("rb") as file:
                data = file.read(MOST_BYTES)
            self.post_message(self.Read(path, data.decode("utf-8", "replace"), ""))
        except OSError as error:
            self.post_message(self.Read(path, "", f"{path.name} cannot be read: {error.strerror or error}"))

    def on_samples_view_read(self, event: Read) -> None:
        event.stop()
        if event.path == self.shown:
            self._read = event
            self._wrapped = (0, [])
            self.changed()

    def notify_style_update(self) -> None:
        super().notify_style_update()
        self._wrapped = (0, [])

    def action_go(self, by: int) -> None:
        if self._paths:
            at = min(max(0, self._at + by), len(self._paths) - 1)
            if at != self._at:
                self._at = at
                self._begin()
                self.changed()

    def heading(self) -> tuple[str, ...]:
        path = self.shown
        if path is None or self._paths is None:
            return ()
        match = _STEP.match(path.name)
        step = f"of step {int(match[1]):,}" if match else clean(path.stem, self.glyphs)
        return f"{step}{self.separator}{self._at + 1} of {len(self._paths)}", step

    def lines(self, width: int, height: int) -> list[Line]:
        if self.shown is None:
            return self.note(
                "There is no sample yet. The configuration's [sample] says how often one is made.", width
            )
        if self._read is None or self._read.path != self.shown:
            return self.note("Reading.", width)
        if self._read.problem:
            return self.note(clean(self._read.problem, self.glyphs), width)
        if self._wrapped[0] != width:
            rows = [row for line in self._read.text.splitlines() for row in self._rows_of(line, width)]
            self._wrapped = (width, [self.write(row) for row in rows])
        return self._wrapped[1] or self.note("The text is empty.", width)

    def _rows_of(self, line: str, width: int) -> list[str]:
        """Return one line of the text in as many rows as it needs; words stay whole where they fit."""
        line = clean(line.expandtabs(4), self.glyphs)
        out: list[str] = []
        while cell_len(line) > width:
            row = chop_cells(line, width)[0]
            at = row.rfind(" ")
            if at > width // 2:
                row = row[: at + 1]
            out.append(row)
            line = line[len(row) :]
        return [*out, line]


@dataclass(frozen=True)
class Outcome:
    """The outcome of a run. None means that it is not known."""

    state: Liveness
    status: Status
    words: ExitReason
    tokens: float | None = None
    best_validation: tuple[float, int] | None = None
    """Nats a token, and the step."""
    checkpoint: str = ""
    """The last one's folder; empty where none was saved."""
    compared: tuple[Compared, ...] = ()


class SummaryPanel(Panel):
    TITLE = "Summary"
    HELP: ClassVar[str | None] = """\
### Summary

How the run ended, its results, and the plan beside the measurements; the factor is measured divided by planned. The
checkpoint is a folder that `from_pretrained` loads. If the run failed or died, the last lines of its log are shown.
"""

    def __init__(self, glyphs: Glyphs, *, id: str | None = None) -> None:
        super().__init__(glyphs, id=id)
        self._outcome: Outcome | None = None

    def show(self, outcome: Outcome) -> None:
        if outcome != self._outcome:
            self._outcome = outcome
            self.changed()

    def heading(self) -> tuple[str, ...]:
        return (self._outcome.state,) if self._outcome else ()

    def lines(self, width: int, height: int) -> list[Line]:
        outcome = self._outcome
        if outcome is None:
            return []
        status, words = outcome.status, outcome.words
        band = _BANDS.get(outcome.state, "warning")
        mark = {"good": self.glyphs.good, "warning": self.glyphs.warning, "bad": self.glyphs.bad}[band]
        code = "N/A" if words.exit_code is None else str(words.exit_code)
        out = [self.write(f"{mark} {outcome.state}, exit code {code}", band)]
        if words.message and outcome.state != "finished":  # that it has done its steps is said below
            out += self.note(clean(words.message, self.glyphs), width, "bad" if band == "bad" else "")
        if outcome.state in _TELLING and words.lines:
            out.append(self.write("last lines of its log:", "dim"))
            out += [self.write(clean(line, self.glyphs)) for line in words.lines]
        steps = f"{status.step:,} of {status.total_steps:,}" if status.total_steps else f"{status.step:,}"
        out.append(self.named_at_ends("steps", steps, width))
        out.append(self.named_at_ends("tokens", number(outcome.tokens), width))
        out.append(self.named_at_ends("duration", duration(status.elapsed_s), width))
        out.append(self.named_at_ends("training loss", number(status.loss, 4), width))
        best = outcome.best_validation
        found = number(status.validation_loss, 4) if best is None else f"{best[0]:.4f} at step {best[1]:,}"
        out.append(self.named_at_ends("best validation loss", found, width))
        if outcome.checkpoint:
            out.append(self.write("checkpoint", "dim"))
            out += self._path(clean(outcome.checkpoint, self.glyphs), width)
        else:
            out.append(self.named_at_ends("checkpoint", "none was saved", width))
        return out + self._compared(outcome.compared, width)

    def _compared(self, compared: tuple[Compared, ...], width: int) -> list[Line]:
        if not compared:
            return self.note("Nothing of the plan was measured.", width)
        table = [("", "planned", "measured", "factor")]
        for row in compared:
            table.append(
                (
                    _label(row),
                    _figure(row.planned, row.unit),
                    _figure(row.measured, row.unit),
                    f"{row.factor:.2f}",
                )
            )
        name, *columns = [max(map(len, column)) for column in zip(*table, strict=True)]
        if name + sum(columns) + len(_GAP) * len(columns) > width:
            return self._listed(compared, width)
        out = []
        for place, (label, *figures) in enumerate(table):
            cells = [figure.rjust(size) for figure, size in zip(figures, columns, strict=True)]
            off = place > 0 and abs(compared[place - 1].factor - 1) >= _FAR_OFF
            pens = ("dim", "dim", "dim") if place == 0 else ("", "", "warning" if off else "")
            line = self.write(label.ljust(name))
            for cell, pen in zip(cells, pens, strict=True):
                line += self.write(_GAP + cell, pen)
            out.append(line)
        return out

    def _listed(self, compared: tuple[Compared, ...], width: int) -> list[Line]:
        """Return planned and measured figures without columns, where there is no room for them."""
        out = [self.write("planned, measured, factor", "dim")]
        for row in compared:
            beside = f"{_figure(row.planned, row.unit)} {_figure(row.measured, row.unit)} {row.factor:.2f}"
            pen = "warning" if abs(row.factor - 1) >= _FAR_OFF else ""
            line = ends(self.write(_label(row)), self.write(beside, pen), width)
            out += [line] if len(line) > 1 else [line, self.write(f"  {beside}", pen)]
        return out

    def _path(self, path: str, width: int) -> list[Line]:
        """Return all of a path, however long: it is there to be copied."""
        return [self.write(path[start : start + width]) for start in range(0, len(path), width)]


def _label(row: Compared) -> str:
    """Its name, with the unit where its figures do not have it beside them."""
    return row.name if row.unit in ("bytes", "s") else f"{row.name}, {row.unit}"


def _figure(value: float, unit: str) -> str:
    if unit == "bytes":
        return amount(value)
    if unit == "s":
        return f"{1000 * value:.1f} ms" if value < 0.1 else f"{value:.2f} s"
    return f"{value:,.0f}"
