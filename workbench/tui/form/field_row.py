"""The body of the form: a row for each field with its input and messages, and the help on the field with the focus.

A row draws name, unit and messages itself, so that a field costs two widgets. Invariant: an input shows what the draft
says, and a change in it is posted as `FieldRow.Changed`.
"""

from __future__ import annotations

from collections.abc import Iterator
from textwrap import wrap

from textual import events, on
from textual.app import ComposeResult
from textual.containers import VerticalGroup, VerticalScroll
from textual.content import Content
from textual.geometry import Size
from textual.message import Message
from textual.reactive import Reactive
from textual.widget import Widget
from textual.widgets import ContentSwitcher, Input, Static, TextArea

from workbench.config import DocumentedField
from workbench.config.toml_text import as_written
from workbench.tui.form.choice import Choice
from workbench.tui.form.draft import Draft
from workbench.tui.form.fields import as_text, fields_of, kind_of, table_of
from workbench.tui.form.meter import MUTED
from workbench.tui.form.problems import FormMessages
from workbench.tui.glyphs import Glyphs
from workbench.tui.panels.panel import clean

NAME_WIDTH = 27
UNIT_WIDTH = 14
LEAST_INPUT = 10
MOST_MESSAGE_LINES = 3
LEAST_TABLE_LINES, MOST_TABLE_LINES = 4, 12


class Entry(Input):
    """An input whose size does not depend on its text, so that a key needs no new layout."""

    virtual_size = Reactive(Size(0, 0), layout=False)


class FieldRow(Widget):
    """One field: its name, input and unit on a line, and a problem or a note below."""

    DEFAULT_CSS = """
    FieldRow { height: 1; layout: vertical; text-wrap: nowrap; }
    FieldRow > Entry, FieldRow > Entry:focus { width: 1fr; height: 1; border: none; padding: 0 1; }
    FieldRow > TextArea, FieldRow > TextArea:focus { width: 1fr; border: none; padding: 0 1; }
    """

    class Changed(Message):
        """The text in the input of `field` is another."""

        def __init__(self, field: str, text: str) -> None:
            super().__init__()
            self.field = field
            self.text = text

    def __init__(self, field: DocumentedField, draft: Draft, glyphs: Glyphs) -> None:
        super().__init__(id=row_id(field.name))
        self.field = field
        self.kind = kind_of(field)
        self.problem = self.note = ""
        self.is_changed = draft.is_changed(field.name)
        self._glyphs = glyphs
        self._text = self._text_of(draft)
        self.control = self._make_control()
        """The input."""

    def _make_control(self) -> Choice | Input | TextArea:
        if self.kind in ("switch", "choice"):
            return Choice(self.field.choices or ("false", "true"), self._text)
        if self.kind == "table":
            area = TextArea(self._text, compact=True, show_line_numbers=False, tab_behavior="focus")
            area.cursor_blink = False
            return area
        entry = Entry(self._text, compact=True, select_on_focus=False)
        entry.cursor_blink = False
        return entry

    def compose(self) -> ComposeResult:
        yield self.control

    def on_mount(self) -> None:
        self._fit()

    # The draft's value

    def _text_of(self, draft: Draft) -> str:
        typed = draft.typed_text(self.field.name)
        return as_text(draft.value(self.field.name), self.kind) if typed is None else typed

    def show_value(self, draft: Draft) -> None:
        """Show the value of the draft."""
        text = self._text_of(draft)
        if text != self._text:
            self._text = text
            if isinstance(self.control, TextArea):
                self.control.load_text(text)
            else:
                self.control.value = text
            self._fit()

    def show_messages(self, problem: str, note: str, is_changed: bool) -> None:
        """Show a problem, else a note, below the input, and whether the value differs from the preset's."""
        if (problem, note, is_changed) != (self.problem, self.note, self.is_changed):
            self.problem, self.note, self.is_changed = problem, note, is_changed
            self._fit()
            self.refresh()

    @on(Input.Changed)
    @on(Choice.Changed)
    @on(TextArea.Changed)
    def _control_changed(self, event: Input.Changed | Choice.Changed | TextArea.Changed) -> None:
        event.stop()
        text = event.text_area.text if isinstance(event, TextArea.Changed) else event.value
        if text != self._text:
            self._text = text
            self.post_message(self.Changed(self.field.name, text))
            self._fit()

    # Drawing

    def on_resize(self) -> None:
        self._fit()

    # Not by :focus-within, for which Textual styles every field of the form anew at each move.
    def on_descendant_focus(self) -> None:
        self.refresh()

    def on_descendant_blur(self) -> None:
        self.refresh()

    def on_click(self, event: events.Click) -> None:
        self.control.focus()

    @property
    def _has_unit(self) -> bool:
        """Return True where there is room for the unit, which the help names too."""
        return bool(self.field.unit) and self.size.width >= NAME_WIDTH + LEAST_INPUT + UNIT_WIDTH

    def _fit(self) -> None:
        """Make room for the unit, the lines of a table and the messages."""
        self.control.styles.margin = (0, UNIT_WIDTH if self._has_unit else 0, 0, NAME_WIDTH)
        lines = 1
        if self.kind == "table":
            lines = min(MOST_TABLE_LINES, max(LEAST_TABLE_LINES, self._text.count("\n") + 2))
            self.control.styles.height = lines
        self.styles.height = lines + len(self._message_lines())

    def _message_lines(self) -> list[str]:
        text = f"{self._glyphs.bad} {self.problem}" if self.problem else self.note
        return wrap(clean(text, self._glyphs), max(20, self.size.width - 4))[:MOST_MESSAGE_LINES]

    def render(self) -> Content:
        focused = self.has_focus_within
        mark = "*" if self.is_changed else " "
        name = f"{mark}{self._glyphs.selected if focused else ' '}{self.field.key}".ljust(NAME_WIDTH)
        style = "$accent bold" if self.is_changed else "$foreground bold" if focused else "$foreground"
        line = Content.styled(name, style)
        if self._has_unit:
            unit = f" {self.field.unit}".ljust(UNIT_WIDTH)
            line += Content(" " * (self.size.width - NAME_WIDTH - UNIT_WIDTH)) + Content.styled(unit, MUTED)
        messages = self._message_lines()
        below = [Content("")] * (self.size.height - 1 - len(messages))
        style = "$error" if self.problem else MUTED
        return Content("\n").join(
            [line, *below, *(Content.styled(f"    {each}", style) for each in messages)]
        )


def row_id(field: str) -> str:
    """Return the id of a field's row: "field-train-steps"."""
    return "field-" + field.replace(".", "-").replace("_", "-")


class Form(VerticalScroll, can_focus=False, inherit_bindings=False):
    """The rows of one table at a time, mounted when they are first shown. All mounted rows show the draft."""

    DEFAULT_CSS = """
    Form { height: 1fr; }
    Form > ContentSwitcher { height: auto; }
    """

    def __init__(self, draft: Draft, glyphs: Glyphs, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._draft = draft
        self._glyphs = glyphs
        self._switcher = ContentSwitcher()

    def compose(self) -> ComposeResult:
        yield self._switcher

    @property
    def rows(self) -> list[FieldRow]:
        """The mounted rows."""
        return list(self.query(FieldRow))

    @property
    def visible_rows(self) -> list[FieldRow]:
        """The rows of the table that is shown."""
        table = self._switcher.visible_content
        return [] if table is None else list(table.query(FieldRow))

    def row(self, field: str) -> FieldRow:
        """Return the row of a field whose table has been shown."""
        return self.query_one(f"#{row_id(field)}", FieldRow)

    async def show_table(self, table: str) -> None:
        """Show the rows of `table`."""
        pane = f"table-{table}"
        if self._switcher.query(f"#{pane}"):
            self._switcher.current = pane
        else:
            rows = [FieldRow(field, self._draft, self._glyphs) for field in fields_of(table)]
            await self._switcher.add_content(VerticalGroup(*rows, id=pane), set_current=True)
        self.border_title = Content(f"[{table}]")
        self.scroll_home(animate=False)

    def show_draft(self, draft: Draft) -> None:
        """Show the values of `draft`."""
        self._draft = draft
        for row in self.rows:
            row.show_value(draft)

    def show_messages(self, messages: FormMessages) -> None:
        """Show the messages at their fields."""
        for row in self.rows:
            name = row.field.name
            row.show_messages(
                messages.problems.get(name, ""), messages.notes.get(name, ""), self._draft.is_changed(name)
            )

    async def go_to(self, field: str) -> None:
        """Show the table of a field, and give the field the focus."""
        await self.show_table(table_of(field))
        self.row(field).control.focus()

    def focus_first(self) -> None:
        """Give the first field of the table the focus."""
        for row in self.visible_rows[:1]:
            row.control.focus()

    def step(self, by: int) -> bool:
        """Move the focus by so many fields; return False where there is none."""
        rows = self.visible_rows
        here = next((number for number, row in enumerate(rows) if row.has_focus_within), -by)
        if not 0 <= here + by < len(rows):
            return False
        rows[here + by].control.focus()
        return True


class FieldHelp(Static):
    """Help, range, default and preset's value of one field; the most important first, for a panel of two lines."""

    DEFAULT_CSS = """
    FieldHelp { border-title-color: $foreground; }
    """

    def __init__(self, glyphs: Glyphs, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.border_title = "Help"
        self._glyphs = glyphs

    def show(self, field: DocumentedField | None, draft: Draft, problem: str = "") -> None:
        """Describe `field` as the draft has it."""
        lines = [] if field is None else list(_help_lines(field, draft, problem))
        self.border_title = "Help" if field is None else f"Help {field.name}"
        styled = (Content.styled(clean(text, self._glyphs), style) for text, style in lines)
        self.update(Content("\n").join(styled), layout=False)


def _help_lines(field: DocumentedField, draft: Draft, problem: str) -> Iterator[tuple[str, str]]:
    """Yield (text, style)."""
    if problem:
        yield problem, "$error bold"
    yield field.help, "$foreground"
    unit = f", in {field.unit}" if field.unit else ""
    default = as_written(field.default) if field.default != {} else "empty"
    preset = f" Preset: {as_written(draft.preset_value(field.name))}." if draft.is_changed(field.name) else ""
    yield f"{field.must_be[0].upper()}{field.must_be[1:]}{unit}. Default: {default}.{preset}", MUTED
