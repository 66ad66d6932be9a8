"""One field of the form: its name, an input of its kind, its unit, and below it what is wrong or worth knowing.

The name, unit and sentences are drawn by the row itself, so that a field costs two widgets. Invariant: the input shows
what the draft says, and what is typed into it goes up as `FieldRow.Typed`.
"""

from __future__ import annotations

from textwrap import wrap
from typing import ClassVar

from rich.segment import Segment
from textual import events, on
from textual.app import ComposeResult
from textual.geometry import Size
from textual.message import Message
from textual.reactive import Reactive
from textual.strip import Strip
from textual.widget import Widget
from textual.widgets import Input, TextArea

from workbench.config import DocumentedField
from workbench.tui.form.draft import Draft
from workbench.tui.form.inputs import OneOf, YesNo
from workbench.tui.form.values import kind_of, shown
from workbench.tui.glyphs import Glyphs
from workbench.tui.panels.drawing import clean

NAME_WIDTH = 27
UNIT_WIDTH = 14
LEAST_INPUT = 10
MOST_SENTENCE_LINES = 3
TABLE_LINES = (4, 12)
"""A table's editor is at least and at most so high."""


class Entry(Input):
    """An input of a given width, as large as it is whatever is typed: nothing is laid out anew for a key."""

    virtual_size = Reactive(Size(0, 0), layout=False)


class FieldRow(Widget):
    """One field. `problem` and `remark` stand below its input."""

    DEFAULT_CSS = """
    FieldRow { height: 1; layout: vertical; }
    FieldRow > Entry, FieldRow > Entry:focus { width: 1fr; height: 1; border: none; padding: 0 1; }
    FieldRow > TextArea, FieldRow > TextArea:focus { width: 1fr; border: none; padding: 0 1; }
    FieldRow > .row--name { color: $text; }
    FieldRow > .row--changed { color: $accent; text-style: bold; }
    FieldRow > .row--unit { color: $text-muted; }
    FieldRow > .row--problem { color: $error; }
    FieldRow > .row--remark { color: $text-muted; }
    FieldRow > .row--focused { color: $text; text-style: bold; }
    """
    COMPONENT_CLASSES: ClassVar[set[str]] = {
        "row--name",
        "row--focused",
        "row--changed",
        "row--unit",
        "row--problem",
        "row--remark",
    }

    class Typed(Message):
        """Something else stands in a field's input."""

        def __init__(self, field: str, text: str) -> None:
            super().__init__()
            self.field = field
            self.text = text

    def __init__(self, field: DocumentedField, draft: Draft, glyphs: Glyphs) -> None:
        super().__init__(id=row_id(field.name))
        self.field = field
        self.glyphs = glyphs
        self.kind = kind_of(field)
        self.problem = ""
        self.remark = ""
        self.is_changed = draft.is_changed(field.name)
        self._shown = self._text_of(draft)
        self._drawn_width = 0
        self._here = False

    def compose(self) -> ComposeResult:
        control = self._control()
        control.styles.margin = (0, 0, 0, NAME_WIDTH)
        yield control

    def on_mount(self) -> None:
        self._fit_height()

    @property
    def control(self) -> Widget:
        """The input."""
        return self.children[0]

    def _control(self) -> Widget:
        if self.kind == "switch":
            return YesNo(self._shown == "true", animate=False)
        if self.kind == "choice":
            return OneOf(self.field.choices, self._shown, self.glyphs)
        if self.kind == "table":
            area = TextArea(self._shown, compact=True, show_line_numbers=False, tab_behavior="focus")
            area.cursor_blink = False
            return area
        entry = Entry(self._shown, compact=True, select_on_focus=False)
        entry.cursor_blink = False
        return entry

    def _text_of(self, draft: Draft) -> str:
        typed = draft.typed_text(self.field.name)
        return shown(draft.value(self.field.name), self.kind) if typed is None else typed

    # What is known comes down

    def take(self, draft: Draft) -> None:
        """Show what the draft says of the field now."""
        self.is_changed = draft.is_changed(self.field.name)
        text = self._text_of(draft)
        if text != self._shown:
            self._shown = text
            control = self.control
            if isinstance(control, YesNo):
                control.value = text == "true"
            elif isinstance(control, TextArea):
                control.load_text(text)
            elif isinstance(control, (OneOf, Input)):
                control.value = text
        self.refresh()
        self._fit_height()

    def say(self, problem: str, remark: str, is_changed: bool) -> None:
        """What stands below the input, and whether the value is another than the preset's."""
        if (problem, remark, is_changed) != (self.problem, self.remark, self.is_changed):
            self.problem, self.remark, self.is_changed = problem, remark, is_changed
            self._fit_height()
            self.refresh()

    # What happens goes up

    @on(Input.Changed)
    @on(OneOf.Changed)
    def _typed(self, event: Input.Changed | OneOf.Changed) -> None:
        event.stop()
        self._tell(event.value)

    @on(YesNo.Changed)
    def _switched(self, event: YesNo.Changed) -> None:
        event.stop()
        self._tell("true" if event.value else "false")

    @on(TextArea.Changed)
    def _written(self, event: TextArea.Changed) -> None:
        event.stop()
        self._tell(event.text_area.text)
        self._fit_height()

    def _tell(self, text: str) -> None:
        if text != self._shown:
            self._shown = text
            self.post_message(self.Typed(self.field.name, text))

    # Drawing

    def on_resize(self, event: events.Resize) -> None:
        if event.size.width != self._drawn_width:
            self._drawn_width = event.size.width
            self.control.styles.margin = (0, UNIT_WIDTH if self._has_unit else 0, 0, NAME_WIDTH)
            self._fit_height()

    def on_descendant_focus(self) -> None:
        # Not by :focus-within, for which Textual styles every field of the form anew at each move.
        self._here = True
        self.refresh()

    def on_descendant_blur(self) -> None:
        self._here = False
        self.refresh()

    def on_click(self) -> None:
        self.control.focus()

    @property
    def _has_unit(self) -> bool:
        """Whether there is room for the unit; the help names it too."""
        return bool(self.field.unit) and self.size.width >= NAME_WIDTH + LEAST_INPUT + UNIT_WIDTH

    def _fit_height(self) -> None:
        if not self.is_mounted or not self.children:
            return
        control = 1
        if self.kind == "table":
            least, most = TABLE_LINES
            control = min(most, max(least, self._shown.count("\n") + 2))
            self.control.styles.height = control
        self.styles.height = control + len(self._sentences())

    def _sentences(self) -> list[tuple[str, str]]:
        """(line, component class) of what stands below the input."""
        width = max(20, self.size.width - 4)
        found = []
        if self.problem:
            mark = self.glyphs.bad
            lines = wrap(clean(f"{mark} {self.problem}", self.glyphs), width)[:MOST_SENTENCE_LINES]
            found += [(line, "row--problem") for line in lines]
        elif self.remark:
            lines = wrap(clean(self.remark, self.glyphs), width)[:MOST_SENTENCE_LINES]
            found += [(line, "row--remark") for line in lines]
        return found

    def render_line(self, y: int) -> Strip:
        width = self.size.width
        if y == 0:
            mark = "*" if self.is_changed else " "
            here = self.glyphs.selected if self._here else " "
            pen = "row--changed" if self.is_changed else "row--focused" if self._here else "row--name"
            name = f"{mark}{here}{self.field.key}".ljust(NAME_WIDTH)
            line = [Segment(name, self.get_component_rich_style(pen))]
            if self._has_unit:
                unit = f" {self.field.unit}".ljust(UNIT_WIDTH)
                line.append(Segment(" " * (width - NAME_WIDTH - UNIT_WIDTH), self.rich_style))
                line.append(Segment(unit, self.get_component_rich_style("row--unit")))
            return Strip(line).adjust_cell_length(width, self.rich_style)
        first = self.size.height - len(self._sentences())
        if y >= first:
            sentence, pen = self._sentences()[y - first]
            return Strip([Segment(f"    {sentence}", self.get_component_rich_style(pen))]).adjust_cell_length(
                width, self.rich_style
            )
        return Strip.blank(width, self.rich_style)


def row_id(field: str) -> str:
    """The id of a field's row: "field-train-steps"."""
    return "field-" + field.replace(".", "-").replace("_", "-")
