"""The base of screens that follow files and samples twice a second.

Invariant: nothing is read or drawn for a screen that nobody sees.
"""

from __future__ import annotations

from textual.screen import ModalScreen, Screen

from workbench.tui.context import AppContext


class LiveScreen(Screen[None]):
    """Calls `look` every `interval_s`, and when it comes back into sight, while it can be seen."""

    def __init__(self, context: AppContext) -> None:
        super().__init__()
        self.context = context

    def on_mount(self) -> None:
        self.set_interval(self.context.interval_s, self.tick)

    def on_screen_resume(self) -> None:
        self.tick()

    def tick(self) -> None:
        # Beneath a dialog it can be seen; beneath another screen it cannot, and its drawing would redraw that one.
        if self.is_active or (self.is_current and isinstance(self.app.screen, ModalScreen)):
            self.look()

    def look(self) -> None:
        """Read and show what is new."""
        raise NotImplementedError

    def report(self, message: str, *, severity: str = "information", **options: float) -> None:
        """Show a toast; `message` is plain text."""
        self.notify(message, severity=severity, markup=False, **options)  # type: ignore[arg-type]
