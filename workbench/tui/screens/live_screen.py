"""The bases of screens: all of them, those that follow files and samples twice a second; and reading in a thread.

Invariant: nothing is read or drawn for a screen that nobody sees.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from typing import ClassVar, Generic, ParamSpec, TypeVar

from textual.screen import ModalScreen, Screen

from workbench.tui.context import AppContext

HIGH = 22
"""Rows of a terminal from which screens have room for a second line of keys, and for more than the least."""
Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


class Reader(Generic[Arguments, Result]):
    """Calls `read` in a thread for `screen`, one call at a time, and hands each result to `show`.

    Of the calls that are asked for while one goes on, only the last is made: a disk that does not answer holds up one
    thread.
    """

    def __init__(
        self, screen: Screen[None], read: Callable[Arguments, Result], show: Callable[[Result], None]
    ) -> None:
        self._screen, self._call, self._show = screen, read, show
        self._next: Callable[[], Result] | None = None
        self._is_reading = False

    def read(self, *arguments: Arguments.args, **options: Arguments.kwargs) -> None:
        """Read with these arguments, as soon as the call that goes on has ended."""
        self._next = lambda: self._call(*arguments, **options)
        if not self._is_reading:
            self._is_reading = True
            self._screen.run_worker(self._read(), group="read", exit_on_error=False)

    def read_if_idle(self, *arguments: Arguments.args, **options: Arguments.kwargs) -> None:
        """Read, unless a call goes on."""
        if not self._is_reading:
            self.read(*arguments, **options)

    async def _read(self) -> None:
        try:
            while self._next is not None:
                call, self._next = self._next, None
                self._show(await asyncio.to_thread(call))
        finally:
            self._is_reading = False


class WorkbenchScreen(Screen[None]):
    """A screen with its context. In read-only mode it leaves out the actions `CHANGING`."""

    CHANGING: ClassVar[Collection[str]] = ()
    # Textual declares it as an instance's.
    VERTICAL_BREAKPOINTS = [(0, "-low"), (HIGH, "-high")]  # noqa: RUF012

    def __init__(self, context: AppContext) -> None:
        super().__init__(classes="-ascii" if context.glyphs.ascii else None)
        self.context = context

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        return not (self.context.read_only and action in self.CHANGING)

    def report(self, message: str, *, severity: str = "information", **options: float) -> None:
        """Show a toast; `message` is plain text."""
        self.notify(message, severity=severity, markup=False, **options)  # type: ignore[arg-type]

    def confirm(self, title: str, text: str, yes: str, no: str, do: Callable[[], None]) -> None:
        """Ask before something is lost, and call `do` after a yes."""
        from workbench.tui.dialogs import Confirm

        dialog = Confirm(title, text, yes, no, danger=True, glyphs=self.context.glyphs)
        self.app.push_screen(dialog, lambda sure: do() if sure else None)


class LiveScreen(WorkbenchScreen):
    """Calls `look` every `interval_s`, and when it comes back into sight, while it can be seen."""

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
