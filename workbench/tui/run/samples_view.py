"""The texts that a run has generated, one at a time, from the newest back to the first.

Files are read in a thread. Invariant: at most MOST_BYTES of a text are held.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import ClassVar

from rich.cells import cell_len, chop_cells
from textual.binding import Binding, BindingType
from textual.message import Message

from workbench.tui.glyphs import Glyphs
from workbench.tui.panels.drawing import Line, clean
from workbench.tui.panels.panel import Panel

MOST_BYTES = 64 << 10
_STEP = re.compile(r"step-(\d+)")


class SamplesView(Panel):
    TITLE = "Sample"
    HELP: ClassVar[str | None] = """\
### Samples

A text that the model has generated, as `[sample]` of the configuration asks for. Left and right, or `[` and `]`, go to
the one before and after; the newest is followed as long as it is the one that is seen. Up and down scroll.
"""
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left,left_square_bracket", "go(-1)", "Sample before", id="samples.before", show=False),
        Binding("right,right_square_bracket", "go(1)", "Sample after", id="samples.after", show=False),
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
        """The files, by their steps. The newest is gone to where the newest was seen."""
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
        """One line of the text in as many rows as it needs; words stay whole where they fit."""
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
