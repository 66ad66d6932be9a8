"""How a run ended: what came of it beside what was planned, and of one that died its last words."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from workbench.launch import LastWords
from workbench.plan.outcome import Compared
from workbench.runs import Liveness, Status
from workbench.tui.panels.drawing import Line, clean, ends
from workbench.tui.panels.panel import Panel
from workbench.tui.panels.units import amount, duration, number

_BANDS = {"finished": "good", "stopped": "warning", "failed": "bad", "died": "bad"}
_TELLING = ("failed", "died")
"""The states whose last words are shown."""


@dataclass(frozen=True)
class Outcome:
    """What came of a run. None means that it is not known."""

    state: Liveness
    status: Status
    words: LastWords
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
        if words.message:
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
        out = [self.write("planned and measured", "dim")]
        for row in compared:
            beside = f"{_figure(row.planned, row.unit)} {_figure(row.measured, row.unit)} {row.error:+.0%}"
            off = "" if abs(row.error) < 0.25 else "warning"
            line = ends(self.write(row.name), self.write(beside, off), min(width, 60))
            out.append(line)
            if len(line) == 1:  # no room for both
                out.append(self.write(f"  {beside}", off))
        return out

    def _path(self, path: str, width: int) -> list[Line]:
        """All of it, however long: it is there to be copied."""
        return [self.write(path[start : start + width]) for start in range(0, len(path), width)]

    def _sentence(self, text: str, width: int, pen: str) -> list[Line]:
        return [self.write(line[0].text, pen) for line in self.note(clean(text, self.glyphs), width)]

    def _named(self, label: str, value: str, width: int) -> Line:
        return ends(self.write(label, "dim"), self.write(value), min(width, 44))


def _figure(value: float, unit: str) -> str:
    if unit == "bytes":
        return amount(value)
    if unit == "s":
        return f"{1000 * value:.1f} ms" if value < 0.1 else f"{value:.2f} s"
    return f"{value:,.0f}"
