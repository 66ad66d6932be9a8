"""The lines at a screen's top and bottom: a run's status, and the keys that hold now.

Textual's footer is built anew, one widget a key, each time that the focus moves, which a form feels.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from rich.segment import Segment
from textual import events
from textual.binding import Binding
from textual.keys import key_to_character
from textual.screen import Screen
from textual.strip import Strip
from textual.widget import Widget

from workbench.formatting import duration, number, percent, share
from workbench.tui.canvas import CanvasWidget
from workbench.tui.glyphs import Glyphs
from workbench.tui.panels.panel import PLAIN_STYLE, Line, clean, cut, filled_up, keep, width_of

if TYPE_CHECKING:  # it would hold up the first picture
    from workbench.runs import Liveness, Status

_STATES: dict[str, str] = {
    "running": "good",
    "paused": "warning",
    "finished": "good",
    "stopped": "warning",
    "failed": "bad",
    "died": "bad",
    "stale": "warning",
    "unknown": "warning",
}
HELP = "help"
"""The action that is always shown."""
SHOW_PART = "show_part("
MOVES = frozenset(
    ("up", "down", "left", "right", "home", "end", "pageup", "pagedown", "enter", "escape", "tab")
)
"""Keys of a panel that nobody has to be told."""


class Key(NamedTuple):
    """A key, how it is shown, what it does, and whether it does so now. `is_here`: of the part that is seen."""

    key: str
    shown: str
    description: str
    enabled: bool
    is_here: bool = False


class StatusLine(CanvasWidget):
    """Without a box; what does not fit is left out, the least important first."""

    HELP: ClassVar[str | None] = """\
### Status line

The run, its phase and progress, steps done and in total, the remaining time, tokens a second and loss of the last
step, the host optimizer's share of it, the exposed part of that, and the state of the trainer: running, paused,
finished, stopped, failed, died (its process ended without a message), stale (no status update for two minutes).
"""
    COMPONENT_CLASSES: ClassVar[set[str]] = {
        f"status--{name}" for name in ("good", "warning", "bad", "dim", "strong")
    }
    DEFAULT_CSS = """
    StatusLine {
        height: 1;
        background: $panel;
        & > .status--good { color: $success; }
        & > .status--warning { color: $warning; }
        & > .status--bad { color: $error; text-style: bold; }
        & > .status--dim { color: $text-muted; }
        & > .status--strong { text-style: bold; }
    }
    """

    def __init__(self, glyphs: Glyphs, *, id: str | None = None, classes: str | None = None) -> None:
        super().__init__(id=id, classes=classes)
        self.glyphs = glyphs
        self._name_of_run = ""
        self._status: Status | None = None
        self._state: Liveness = "unknown"
        self._notice = ""
        self._load = ""

    def set_load(self, load: str) -> None:
        """Show a few words on the host optimizer at the end, where there is room; "": none."""
        if load != self._load:
            self._load = load
            self.changed()

    def show_status(self, name: str, status: Status, state: Liveness) -> None:
        """Show a run's status under this name; `state` is `workbench.runs.liveness(status)`."""
        if (name, status, state) != (self._name_of_run, self._status, self._state):
            self._name_of_run, self._status, self._state = name, status, state
            self.changed()

    def show_text(self, text: str) -> None:
        """These words instead of a run's status."""
        if self._status is not None or text != self._name_of_run:
            self._name_of_run, self._status = text, None
            self.changed()

    def set_notice(self, notice: str) -> None:
        """Show a few words at the begin ("frozen", "read-only") until they are taken back with ""."""
        if notice != self._notice:
            self._notice = notice
            self.changed()

    def draw_rows(self, width: int, height: int) -> list[Strip]:
        return [filled_up(self.line(width), width, self.glyphs, self.rich_style)]

    def line(self, width: int) -> Line:
        """Return the parts that fit into `width` cells."""
        notice = self._write(clean(self._notice, self.glyphs), "warning")
        status = self._status
        if status is None:
            words = self._write(clean(self._name_of_run, self.glyphs) or "No run is shown.", "dim")
            return keep(width, [(0, notice), (1, words)], self._gap)
        state = self._write(f"{self._mark} {self._state}", _STATES.get(self._state, "warning"))
        ended = self._state not in ("running", "paused", "stale")
        trains = status.phase in ("training", "paused")  # else what is not known yet is no news
        name = cut(clean(self._name_of_run, self.glyphs), max(10, width // 4), self.glyphs)
        parts: list[tuple[int, Line]] = [
            (0, notice),
            (5, self._write(name, "strong")),
            (0, state),
            (8 if ended else 2, self._phase(status)),
            (1, self._steps(status)),
            (
                4,
                self._named("eta", duration(status.eta_s))
                if not ended and (trains or status.eta_s is not None)
                else [],
            ),
            (7, self._named("after", duration(status.elapsed_s)) if ended else []),
            (
                6,
                self._named("", number(status.tokens_per_s, 0, "tok/s"))
                if trains or status.tokens_per_s is not None
                else [],
            ),
            (3, self._named("loss", number(status.loss, 4)) if trains or status.loss is not None else []),
            (6, self._write(self._load) if trains else []),
        ]
        line = keep(width, parts, self._gap)
        message = clean(status.message or status.problem, self.glyphs)
        room = width - width_of(line) - len(self._gap)
        tells = status.problem or self._state == "paused" or (ended and self._state != "finished")
        if message and room >= 12 and tells:
            line += [*self._write(self._gap), *self._write(cut(message, room, self.glyphs))]
        return line

    @property
    def _gap(self) -> str:
        return f" {self.glyphs.separator} "

    @property
    def _mark(self) -> str:
        band = _STATES.get(self._state, "warning")
        return {"good": self.glyphs.dot, "warning": self.glyphs.warning, "bad": self.glyphs.bad}[band]

    def _phase(self, status: Status) -> Line:
        if status.phase == self._state:
            return []
        progress = f" {status.progress}" if status.progress else ""
        return self._write(clean(status.phase + progress, self.glyphs))

    def _steps(self, status: Status) -> Line:
        if not status.total_steps:
            return self._write(f"step {status.step:,}")
        done = share(status.step, status.total_steps)
        return self._write(f"step {status.step:,}/{status.total_steps:,} {percent(done)}")

    def _named(self, label: str, value: str) -> Line:
        named = self._write(f"{label} ", "dim") if label else []
        return [*named, *self._write(value)]

    def _write(self, text: str, pen: str = "") -> Line:
        if not text:
            return []
        style = self.get_component_rich_style(f"status--{pen}") if pen else PLAIN_STYLE
        return [Segment(text, style)]


class KeyLine(Widget):
    """The keys that hold now: those of the screen, and beneath them the three parts of the application and the keys of
    the focused panel. A low terminal has the screen's alone, and the letters of the parts at their end.

    They are taken from the active bindings; of the screen's, those that are to be shown. `unless`: keys that are not
    shown, another one for the same is: those that text fields take, where most are such.
    """

    DEFAULT_CSS = """
    KeyLine { dock: bottom; height: 1; color: $footer-description-foreground; background: $footer-background; }
    .-high KeyLine { height: 2; }
    KeyLine > .keys--key { color: $footer-key-foreground; background: $footer-key-background; text-style: bold; }
    KeyLine > .keys--here { text-style: bold reverse; }
    KeyLine > .keys--off { color: $text-muted; }
    """
    COMPONENT_CLASSES: ClassVar[set[str]] = {"keys--key", "keys--here", "keys--off"}
    SCOPED_CSS = False  # how high it is depends on the screen
    ALLOW_SELECT = False

    def __init__(
        self, glyphs: Glyphs, *, unless: frozenset[str] = frozenset(), id: str | None = None
    ) -> None:
        super().__init__(id=id)
        self._unless = unless
        self.glyphs = glyphs
        self._keys: tuple[Key, ...] = ()
        self._parts: tuple[Key, ...] = ()
        self._of_panel: tuple[Key, ...] = ()

    def on_mount(self) -> None:
        self._read(self.screen)
        self.screen.bindings_updated_signal.subscribe(self, self._read)

    def _read(self, screen: Screen[object]) -> None:
        if not screen.is_active and self._keys:
            return
        found: dict[str, Key] = {}
        of_panel: dict[str, Key] = {}
        focused = screen.focused
        active = screen.active_bindings.values()
        moves = {each.binding.id for each in active if each.binding.key in MOVES}
        for node, binding, enabled, _ in active:
            # What is typed into a field is no key of the screen's.
            if binding.key in self._unless or (
                focused is not None and focused.check_consume_key(binding.key, key_to_character(binding.key))
            ):
                continue
            key = Key(binding.key, self._shown(binding), binding.description, enabled)
            if binding.show:
                found.setdefault(binding.action, key)
            elif node is focused and binding.id and binding.id not in moves:
                of_panel.setdefault(binding.action, key)
        palette = screen.active_bindings.get(self.app.COMMAND_PALETTE_BINDING)
        if self.app.ENABLE_COMMAND_PALETTE and palette is not None:
            binding = palette.binding
            name = clean(self.app.get_key_display(binding), self.glyphs)
            found["palette"] = Key(binding.key, name, binding.description, palette.enabled)
        # Help comes first, so that it is there however many keys there are.
        keys = tuple(found[action] for action in sorted(found, key=lambda action: action != HELP))
        shown = keys, self._parts_of(screen), tuple(of_panel.values())
        if shown != (self._keys, self._parts, self._of_panel):
            self._keys, self._parts, self._of_panel = shown
            self.refresh()

    def _parts_of(self, screen: Screen[object]) -> tuple[Key, ...]:
        """Return the keys of the application's parts; those that a text field takes are there too, but off."""
        here = f"{SHOW_PART}{self.app.current_mode!r})"
        active = screen.active_bindings
        return tuple(
            Key(
                binding.key,
                self._shown(binding),
                binding.description,
                binding.key in active and active[binding.key].binding.action == binding.action,
                binding.action == here,
            )
            for binding in self.app.BINDINGS
            if isinstance(binding, Binding) and binding.action.startswith(SHOW_PART)
        )

    def _shown(self, binding: Binding) -> str:
        shown = self.app.get_key_display(binding)
        return binding.key if self.glyphs.ascii and not shown.isascii() else shown

    def _row(self, y: int) -> list[tuple[int, int, Key]]:
        """(start, end, key) of those that fit into a row."""
        if y:
            return _fitting([*self._parts, *self._of_panel], self.size.width)
        letters = [key._replace(description="") for key in self._parts] if self.size.height == 1 else []
        ends = _fitting(letters, self.size.width)
        room = self.size.width - (ends[-1][1] if ends else 0)
        shift = [(start + room, end + room, key) for start, end, key in ends]
        return [*_fitting(self._keys, room), *shift]

    def render_line(self, y: int) -> Strip:
        plain = self.rich_style
        bold, here, off = (self.get_component_rich_style(f"keys--{name}") for name in ("key", "here", "off"))
        line: Line = []
        at = 0
        for start, end, key in self._row(y):
            if start > at:
                line.append(Segment(" " * (start - at), plain))
            named = f" {key.description}" if key.description else ""
            if key.is_here:
                line.append(Segment(f" {key.shown}{named} ", here))
            else:
                line.append(Segment(f" {key.shown}", bold if key.enabled else off))
                line.append(Segment(f"{named} ", plain if key.enabled else off))
            at = end
        return Strip(line).adjust_cell_length(self.size.width, plain)

    def on_click(self, event: events.Click) -> None:
        for start, end, key in self._row(event.y):
            if start <= event.x < end and key.enabled:
                self.app.simulate_key(key.key)


def _fitting(keys: Sequence[Key], width: int) -> list[tuple[int, int, Key]]:
    """Return (start, end, key) of the keys that fit into `width` cells, one after the other."""
    spans, at = [], 0
    for key in keys:
        end = at + len(key.shown) + len(key.description) + (3 if key.description else 2)
        if end <= width + 1:
            spans.append((at, end, key))
            at = end
    return spans
