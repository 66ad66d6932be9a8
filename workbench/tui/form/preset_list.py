"""The list of presets with the verdict of each on this machine, and a description of the one under the cursor.

Imports nothing of the plan, which the first picture does not need. Invariants: a forecast is of the file as it is now;
whether a preset fits is a word beside its mark, so that colour is never needed.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from rich.text import Text
from textual.binding import Binding, BindingType
from textual.content import Content
from textual.fuzzy import Matcher
from textual.widgets import DataTable, Static

from workbench.errors import ConfigurationError
from workbench.presets import Preset, list_presets, recent_presets
from workbench.tui.charts.scale import short
from workbench.tui.form.meter import MUTED, Verdict, mark_of, verdict, verdict_words
from workbench.tui.glyphs import Glyphs
from workbench.tui.panels.panel import clean

if TYPE_CHECKING:
    from workbench.plan.planner import Plan
    from workbench.tui.form.planner import ConfigPlanner

NAME = "  NAME"
LONGEST_NAME = 28
LONG_VERDICT_WIDTH, ORIGIN_WIDTH = 100, 70
"""Cells of a list that has room for verdicts of more than a word, and for the column FROM."""
_VERDICT_STYLES: dict[Verdict, str] = {"fits": "good", "tight": "warning", "no": "bad"}


@dataclass(frozen=True)
class PresetRow:
    """One preset. `pending`: its forecast is being made. `words`: the verdict in words, or why there is none."""

    preset: Preset
    parameters: int | None = None
    plan: Plan | None = None
    verdict: Verdict | None = None
    words: str = ""
    pending: bool = False

    @property
    def path(self) -> Path:
        return self.preset.path


def preset_rows() -> list[PresetRow]:
    """Return every preset without a forecast: those used last first, the others as `list_presets` orders them."""
    recent = {path: place for place, path in enumerate(recent_presets())}
    rows = [PresetRow(preset, pending=preset.error is None) for preset in list_presets()]
    return sorted(rows, key=lambda row: recent.get(row.path.absolute(), len(recent)))


def forecast(
    row: PresetRow, planner: ConfigPlanner, take_profile: threading.Event | None = None
) -> PresetRow:
    """Return the row with its parameters, plan and verdict.

    With `take_profile`, the model profile is taken where there is none, until that event is set; without it the row
    stays pending there.

    Raises:
        CancelledError: `take_profile` was set.
    """
    from workbench.config import load_config

    try:
        config = load_config(row.path)
    except ConfigurationError as error:  # it was changed meanwhile
        return PresetRow(row.preset._replace(error=str(error), description=""))
    result = planner.plan(config)
    if result.needs_profile and take_profile is not None:
        planner.take_profile(config, lambda sentence: None, take_profile)
        result = planner.plan(config)
    if result.plan is None:
        words = result.refused or "the model profile is taken first"
        return PresetRow(row.preset, planner.parameters(config), words=words, pending=result.needs_profile)
    memory = result.plan.memory
    return PresetRow(row.preset, memory.parameters, result.plan, verdict(memory), verdict_words(memory))


def match_score(query: str, row: PresetRow) -> float:
    """Return how well a row matches the filter: by letters of the name in their order, or by whole words; 0: not."""
    preset = row.preset
    query = query.strip().lower()
    if not query:
        return 1.0
    by_name = Matcher(query.replace(" ", "")).match(preset.name)
    if by_name:
        return 2.0 + by_name
    text = f"{preset.name} {preset.description} {preset.origin}".lower()
    return float(all(word in text for word in query.split()))


class PresetTable(DataTable[Text], inherit_bindings=False):
    """The presets, one a row, best first. `RowHighlighted` and `RowSelected` have the preset's path as row key."""

    HELP = """\
Presets that come with workbench, your own and the project's; the ones used last come first.

- **fits**: every tier has room; **tight**: less than 5 % of a tier is left; **no**: what is missing
- **broken**: the file has errors; open it to see them at their fields
"""
    COMPONENT_CLASSES: ClassVar[set[str]] = {
        "presets--good",
        "presets--warning",
        "presets--bad",
        "presets--dim",
    }
    DEFAULT_CSS = """
    PresetTable {
        border: round $foreground 30%;
        border-title-color: $foreground;
        background: $background;
        overflow-x: hidden;
        scrollbar-size-vertical: 1;
        & > .presets--good { color: $success; }
        & > .presets--warning { color: $warning; }
        & > .presets--bad { color: $error; text-style: bold; }
        & > .presets--dim { color: $text-muted; }
        & > .datatable--header, & > .datatable--header-hover, & > .datatable--header-cursor {
            background: $background; color: $text-muted; text-style: none;
        }
        & > .datatable--even-row, & > .datatable--odd-row, & > .datatable--hover { background: $background; }
        & > .datatable--cursor { background: $background; color: $foreground; text-style: bold; }
        &:focus { border: round $accent; border-title-style: reverse; background-tint: $foreground 0%; }
        &:focus > .datatable--header { background-tint: $foreground 0%; }
        &:focus > .datatable--cursor {
            background: $block-cursor-background; color: $block-cursor-foreground; text-style: bold;
        }
    }
    PresetTable.-ascii { border: ascii $foreground 30%; }
    PresetTable.-ascii:focus { border: ascii $accent; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up", "cursor_up", "Up", id="list.up", show=False),
        Binding("down", "cursor_down", "Down", id="list.down", show=False),
        Binding("pageup", "page_up", "Page up", id="list.page_up", show=False),
        Binding("pagedown", "page_down", "Page down", id="list.page_down", show=False),
        Binding("home", "scroll_top", "First", id="list.first", show=False),
        Binding("end", "scroll_bottom", "Last", id="list.last", show=False),
    ]

    def __init__(self, glyphs: Glyphs, *, id: str | None = None) -> None:
        super().__init__(id=id, cursor_type="row", cursor_background_priority="css")
        self.set_class(glyphs.ascii, "-ascii")
        self.border_title = "Presets"
        self.shown: tuple[PresetRow, ...] = ()
        self._glyphs = glyphs
        self._marked: Path | None = None
        """The preset with the mark of the cursor."""

    def on_mount(self) -> None:
        self.app.theme_changed_signal.subscribe(self, lambda _: self._show_again())

    def on_resize(self) -> None:
        self._show_again()

    @property
    def highlighted(self) -> PresetRow | None:
        """The row under the cursor."""
        return self.shown[self.cursor_row] if self.shown else None

    def show(self, rows: Sequence[PresetRow], cursor: Path | None, note: str = "") -> None:
        """Show these rows, or `note` where there are none. The cursor goes to the preset `cursor`, else stays."""
        before, self.shown = self.shown, tuple(rows)
        if rows and [row.path for row in rows] == [row.path for row in before]:
            for old, new in zip(before, rows, strict=True):
                if old is not new:
                    for column, cell in self._cells(new).items():
                        self.update_cell(str(new.path), column, cell, update_width=True)
        else:
            self._show_all(note)
        place = next((number for number, row in enumerate(rows) if row.path == cursor), self.cursor_row)
        self.move_cursor(row=max(0, min(place, len(rows) - 1)), animate=False)

    def _show_all(self, note: str = "") -> None:
        place = self.cursor_row
        self.border_title = f"Presets {len(self.shown)}" if self.shown else "Presets"
        self.clear(columns=True)
        for title in self._cells(self.shown[0]) if self.shown else (note,):
            self.add_column(Text(title), key=title)
        self._marked = self.shown[min(place, len(self.shown) - 1)].path if self.shown else None
        for row in self.shown:
            self.add_row(*self._cells(row).values(), key=str(row.path))
        self.move_cursor(row=place, animate=False)

    def _show_again(self) -> None:
        """Show the rows in the present width and colours."""
        if self.shown:
            self._show_all()

    def on_data_table_row_highlighted(self) -> None:
        before, self._marked = self._marked, self.highlighted.path if self.highlighted is not None else None
        for row in self.shown:
            if row.path in (before, self._marked):
                self.update_cell(str(row.path), NAME, self._name_cell(row))

    def _name_cell(self, row: PresetRow) -> Text:
        mark = self._glyphs.selected if row.path == self._marked else " "
        return self._text(f"{mark} {self._glyphs.cut(row.preset.name, LONGEST_NAME)}")

    def _cells(self, row: PresetRow) -> dict[str, Text]:
        """Return the cells of a row by the titles of their columns."""
        preset = row.preset
        parameters = short(row.parameters) if row.parameters is not None else "..." if row.pending else "-"
        cells = {NAME: self._name_cell(row), "PARAMS": Text(f"{parameters:>6}"), "FIT": self._verdict(row)}
        if self.size.width >= ORIGIN_WIDTH:
            cells["FROM"] = self._text(preset.origin, "dim")
        cells["DESCRIPTION"] = self._text(preset.error or preset.description, "dim")
        return cells

    def _verdict(self, row: PresetRow) -> Text:
        long = self.size.width >= LONG_VERDICT_WIDTH
        if row.preset.error is not None:
            return self._text(f"{self._glyphs.bad} broken", "bad")
        if row.verdict is not None:
            mark = mark_of(row.verdict, self._glyphs)
            return self._text(f"{mark} {row.words if long else row.verdict}", _VERDICT_STYLES[row.verdict])
        if row.pending:
            return self._text("...", "dim")
        return self._text(f"? {row.words}" if long else "?", "dim")

    def _text(self, text: str, style: str = "") -> Text:
        text = clean(text.replace("\n", " "), self._glyphs)
        return Text(text, self.get_component_rich_style(f"presets--{style}") if style else "", no_wrap=True)


class PresetAbout(Static):
    """The description of a preset, its placement here, its file, and its errors."""

    DEFAULT_CSS = """
    PresetAbout { border-title-color: $foreground; }
    """

    def __init__(self, glyphs: Glyphs, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.border_title = "About"
        self._glyphs = glyphs

    def show(self, row: PresetRow | None) -> None:
        """Describe `row`."""
        self.border_title = Content("About" if row is None else f"About {row.preset.name}")
        self.update(Content("\n").join(self._lines(row)) if row is not None else "", layout=False)

    def _lines(self, row: PresetRow) -> list[Content]:
        preset = row.preset
        lines = [(line, "$error bold") for line in (preset.error or "").splitlines()]
        lines = lines or [(preset.description or preset.name, "$foreground")]
        if row.verdict is None and row.words:
            lines.append((row.words, MUTED))
        if row.plan is not None:
            offload = row.plan.config.offload
            placed = f"weights on {offload.weights}, state on {offload.state} ({offload.state_format})"
            lines.append((f"{row.parameters:,} parameters, {placed}", MUTED))
        lines.append(("comes with workbench" if preset.origin == "shipped" else str(preset.path), MUTED))
        return [Content.styled(clean(text, self._glyphs), style) for text, style in lines]
