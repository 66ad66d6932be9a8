"""What is known of the run under the cursor: where it is, what it says, what is wrong, and its last words."""

from __future__ import annotations

from typing import ClassVar

from workbench.formatting import duration
from workbench.runs.summary import RunSummary
from workbench.tui.glyphs import Glyphs
from workbench.tui.panels.drawing import Line, clean, keep
from workbench.tui.panels.panel import Panel


class RunDetail(Panel):
    """One run in a few lines."""

    TITLE = "Run"
    HELP: ClassVar[str | None] = """\
The run under the cursor: its folder, how far it is, what it says of itself and what is wrong with its folder. Of a run
that failed or died, the last lines of its log.
"""

    def __init__(self, glyphs: Glyphs, *, id: str | None = None) -> None:
        super().__init__(glyphs, id=id, classes="-ascii" if glyphs.ascii else None)
        self._row: RunSummary | None = None
        self._words: tuple[str, ...] = ()

    def show(self, row: RunSummary | None, exit_reason: tuple[str, ...] = ()) -> None:
        if (row, exit_reason) != (self._row, self._words):
            if self._row is None or row is None or row.run != self._row.run:
                self.first_row = 0
            self._row, self._words = row, exit_reason
            self.changed()

    def heading(self) -> tuple[str, ...]:
        return (self._row.name,) if self._row else ()

    def lines(self, width: int, height: int) -> list[Line]:
        row = self._row
        if row is None:
            return []
        facts = [
            (0, self.write(f"{row.state}: {row.phase}" if row.active else row.state, "strong")),
            (1, self.write(row.progress)),
            (2, self.write("" if row.exit_code is None else f"exit code {row.exit_code}")),
            (3, self.write("" if row.eta_s is None or not row.active else f"ETA {duration(row.eta_s)}")),
        ]
        lines = [keep(width, [(rank, line) for rank, line in facts if line[0].text])]
        if row.problem:
            lines += self._sentence(row.problem, width, "warning")
        if row.message:
            lines += self._sentence(row.message, width, "bad" if row.state == "failed" else "")
        if self._words:  # the very last ones first of all
            room = max(1, height - len(lines))
            lines += [self.write(clean(line, self.glyphs)) for line in self._words[-room:]]
        if len(lines) < height:
            lines.append(self.write(clean(str(row.run.path), self.glyphs), "dim"))
        return lines

    def _sentence(self, text: str, width: int, pen: str) -> list[Line]:
        noted = self.note(clean(text, self.glyphs), width)
        return [self.write("".join(segment.text for segment in line), pen) for line in noted]
