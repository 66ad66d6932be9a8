"""What the focused field is: its help, range, default and the preset's value, and what is wrong with it."""

from __future__ import annotations

from collections.abc import Iterator
from textwrap import wrap

from workbench.config import DocumentedField
from workbench.config.toml_text import as_written
from workbench.tui.form.draft import Draft
from workbench.tui.glyphs import Glyphs
from workbench.tui.panels.drawing import Line, clean
from workbench.tui.panels.panel import Panel


class FieldHelp(Panel, can_focus=False):
    """Sentences about one field; the most important first, since there may be room for two lines only."""

    TITLE = "Help"

    def __init__(self, glyphs: Glyphs, *, id: str | None = None) -> None:
        super().__init__(glyphs, id=id, classes="-ascii" if glyphs.ascii else None)
        self.field: DocumentedField | None = None
        self._sentences: tuple[tuple[str, str], ...] = ()

    def show(self, field: DocumentedField | None, draft: Draft, problem: str = "") -> None:
        """Tell of `field` as the draft has it."""
        sentences = () if field is None else tuple(_sentences(field, draft, problem))
        if sentences != self._sentences or field is not self.field:
            self.field, self._sentences = field, sentences
            self.changed()

    def heading(self) -> tuple[str, ...]:
        return () if self.field is None else (self.field.name, self.field.key)

    def lines(self, width: int, height: int) -> list[Line]:
        return [
            self.write(line, pen)
            for sentence, pen in self._sentences
            for line in wrap(clean(sentence, self.glyphs), max(1, width))
        ]


def _sentences(field: DocumentedField, draft: Draft, problem: str) -> Iterator[tuple[str, str]]:
    """(sentence, pen)."""
    if problem:
        yield problem, "bad"
    yield field.help, ""
    unit = f", in {field.unit}" if field.unit else ""
    default = as_written(field.default) if field.default != {} else "empty"
    preset = ""
    if draft.is_changed(field.name):
        preset = f" Preset: {as_written(draft.preset_value(field.name))}."
    yield f"{field.must_be[0].upper()}{field.must_be[1:]}{unit}. Default: {default}.{preset}", "dim"
