"""The lines at a screen's top and bottom: a run's status, and the keys that hold now.

Textual's footer is built anew, one widget a key, each time that the focus moves, which a form feels.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from rich.segment import Segment
from textual import events
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
    """One line of keys. They are taken from the screen's active bindings that are to be shown.

    `unless`: keys that are not shown, another one for the same is: those that text fields take, where most are such.
    """

    DEFAULT_CSS = """
    KeyLine { dock: bottom; height: 1; color: $footer-description-foreground; background: $footer-background; }
    KeyLine > .keys--key { color: $footer-key-foreground; background: $footer-key-background; text-style: bold; }
    KeyLine > .keys--off { color: $text-muted; }
    """
    COMPONENT_CLASSES: ClassVar[set[str]] = {"keys--key", "keys--off"}
    ALLOW_SELECT = False

    def __init__(
        self, glyphs: Glyphs, *, unless: frozenset[str] = frozenset(), id: str | None = None
    ) -> None:
        super().__init__(id=id)
        self._unless = unless
        self.glyphs = glyphs
        self._keys: tuple[tuple[str, str, str, bool], ...] = ()
        """(key, as it is shown, what it does, whether it does so now)."""

    def on_mount(self) -> None:
        self._read(self.screen)
        self.screen.bindings_updated_signal.subscribe(self, self._read)

    def _read(self, screen: Screen[object]) -> None:
        if not screen.is_active and self._keys:
            return
        found: dict[str, tuple[str, str, str, bool]] = {}
        focused = screen.focused
        for _, binding, enabled, _ in screen.active_bindings.values():
            # What is typed into a field is no key of the screen's.
            if focused is not None and focused.check_consume_key(binding.key, key_to_character(binding.key)):
                continue
            if binding.show and binding.action not in found and binding.key not in self._unless:
                shown = self.app.get_key_display(binding)
                if self.glyphs.ascii and not shown.isascii():
                    shown = binding.key
                found[binding.action] = binding.key, shown, binding.description, enabled
        palette = screen.active_bindings.get(self.app.COMMAND_PALETTE_BINDING)
        if self.app.ENABLE_COMMAND_PALETTE and palette is not None:
            binding = palette.binding
            shown = clean(self.app.get_key_display(binding), self.glyphs)
            found["palette"] = binding.key, shown, binding.description, palette.enabled
        # Help comes first, so that it is there however many keys there are.
        keys = tuple(found[action] for action in sorted(found, key=lambda action: action != HELP))
        if keys != self._keys:
            self._keys = keys
            self.refresh()

    def _spans(self) -> list[tuple[int, int, tuple[str, str, str, bool]]]:
        """(start, end, key) of those that fit."""
        spans, at = [], 0
        for key in self._keys:
            end = at + len(key[1]) + len(key[2]) + 3
            if end > self.size.width + 1:
                continue
            spans.append((at, end, key))
            at = end
        return spans

    def render_line(self, y: int) -> Strip:
        plain = self.rich_style
        bold, off = self.get_component_rich_style("keys--key"), self.get_component_rich_style("keys--off")
        line = []
        for _, _, (_, shown, description, enabled) in self._spans():
            line += [Segment(f" {shown}", bold if enabled else off)]
            line += [Segment(f" {description} ", plain if enabled else off)]
        return Strip(line).adjust_cell_length(self.size.width, plain)

    def on_click(self, event: events.Click) -> None:
        for start, end, (key, _, _, enabled) in self._spans():
            if start <= event.x < end and enabled:
                self.app.simulate_key(key)
