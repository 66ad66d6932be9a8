"""How a run ended: what came of it beside what was planned, and of one that died its last words."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from workbench.formatting import amount, duration, number
from workbench.plan.outcome import Compared
from workbench.runs import Liveness, Status
from workbench.runs.launch import ExitReason
from workbench.tui.panels.drawing import Line, clean, ends
from workbench.tui.panels.panel import Panel

_BANDS = {"finished": "good", "stopped": "warning", "failed": "bad", "died": "bad"}
_TELLING = ("failed", "died")
"""The states whose last words are shown."""
_FAR_OFF = 0.25
"""A plan that is off by this share of what was measured is marked."""
_GAP = "  "


@dataclass(frozen=True)
class Outcome:
    """What came of a run. None means that it is not known."""

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

How the run ended, what came of it, and what was planned beside what was measured: by how much more was planned stands
behind. The checkpoint is a folder that `from_pretrained` loads. Of a run that failed or died the last lines of its log.
"""

    def __init__(self, *args: object, **keywords: object) -> None:
        super().__init__(*args, **keywords)  # type: ignore[arg-type]
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
            out += self._sentence(words.message, width, "bad" if band == "bad" else "")
        if outcome.state in _TELLING and words.lines:
            out.append(self.write("its last words:", "dim"))
            out += [self.write(clean(line, self.glyphs)) for line in words.lines]
        steps = f"{status.step:,} of {status.total_steps:,}" if status.total_steps else f"{status.step:,}"
        out.append(self._named("steps", steps, width))
        out.append(self._named("tokens", number(outcome.tokens), width))
        out.append(self._named("duration", duration(status.elapsed_s), width))
        out.append(self._named("training loss", number(status.loss, 4), width))
        best = outcome.best_validation
        found = number(status.validation_loss, 4) if best is None else f"{best[0]:.4f} at step {best[1]:,}"
        out.append(self._named("best validation loss", found, width))
        if outcome.checkpoint:
            out.append(self.write("checkpoint", "dim"))
            out += self._path(clean(outcome.checkpoint, self.glyphs), width)
        else:
            out.append(self._named("checkpoint", "none was saved", width))
        return out + self._compared(outcome.compared, width)

    def _compared(self, compared: tuple[Compared, ...], width: int) -> list[Line]:
        if not compared:
            return self.note("Nothing of the plan was measured.", width)
        table = [("", "planned", "measured", "plan off by")]
        for row in compared:
            table.append(
                (
                    _label(row),
                    _figure(row.planned, row.unit),
                    _figure(row.measured, row.unit),
                    f"{row.error:+.0%}",
                )
            )
        name, *columns = [max(map(len, column)) for column in zip(*table, strict=True)]
        if name + sum(columns) + len(_GAP) * len(columns) > width:
            return self._listed(compared, width)
        out = []
        for place, (label, *figures) in enumerate(table):
            cells = [figure.rjust(size) for figure, size in zip(figures, columns, strict=True)]
            off = place > 0 and abs(compared[place - 1].error) >= _FAR_OFF
            pens = ("dim", "dim", "dim") if place == 0 else ("", "", "warning" if off else "")
            line = self.write(label.ljust(name))
            for cell, pen in zip(cells, pens, strict=True):
                line += self.write(_GAP + cell, pen)
            out.append(line)
        return out

    def _listed(self, compared: tuple[Compared, ...], width: int) -> list[Line]:
        """Without columns, where there is no room for them."""
        out = [self.write("planned, measured, plan off by", "dim")]
        for row in compared:
            beside = f"{_figure(row.planned, row.unit)} {_figure(row.measured, row.unit)} {row.error:+.0%}"
            pen = "warning" if abs(row.error) >= _FAR_OFF else ""
            line = ends(self.write(_label(row)), self.write(beside, pen), width)
            out += [line] if len(line) > 1 else [line, self.write(f"  {beside}", pen)]
        return out

    def _path(self, path: str, width: int) -> list[Line]:
        """All of it, however long: it is there to be copied."""
        return [self.write(path[start : start + width]) for start in range(0, len(path), width)]

    def _sentence(self, text: str, width: int, pen: str) -> list[Line]:
        return [self.write(line[0].text, pen) for line in self.note(clean(text, self.glyphs), width)]

    def _named(self, label: str, value: str, width: int) -> Line:
        return ends(self.write(label, "dim"), self.write(value), min(width, 44))


def _label(row: Compared) -> str:
    """Its name, with the unit where its figures do not have it beside them."""
    return row.name if row.unit in ("bytes", "s") else f"{row.name}, {row.unit}"


def _figure(value: float, unit: str) -> str:
    if unit == "bytes":
        return amount(value)
    if unit == "s":
        return f"{1000 * value:.1f} ms" if value < 0.1 else f"{value:.2f} s"
    return f"{value:,.0f}"
