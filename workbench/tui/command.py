"""The way from a command line to the screen and back.

Invariant: an exception that ended the screen is raised here, when the terminal is as it was.
"""

from __future__ import annotations

import gc
import io
import locale
import os
from pathlib import Path
from typing import TYPE_CHECKING

from workbench.errors import EXIT_DONE, ScreenError

if TYPE_CHECKING:
    from workbench.monitor.sampler import Sampler
    from workbench.monitor.samples import MonitorSample
    from workbench.runs import RunDirectory


class LazySampler:
    """The machine's sampler, imported when it is started: its import takes as long as half of the first picture."""

    def __init__(self) -> None:
        self._sampler: Sampler | None = None
        self._watched: tuple[int | None, tuple[Path, ...]] = (None, ())

    def start(self) -> None:
        from workbench.monitor.sampler import Sampler

        self._sampler = Sampler()
        self.watch(pid=self._watched[0], folders=self._watched[1])
        self._sampler.start()

    def stop(self) -> None:
        if self._sampler is not None:
            self._sampler.stop()

    def watch(self, *, pid: int | None, folders: tuple[Path, ...]) -> None:
        self._watched = pid, folders
        if self._sampler is not None:
            self._sampler.watch(pid=pid, folders=folders)

    @property
    def latest(self) -> MonitorSample | None:
        return None if self._sampler is None else self._sampler.latest


def show(
    root: Path,
    *,
    part: str = "",
    run: RunDirectory | None = None,
    read_only: bool = False,
    plain: bool = False,
) -> int:
    """Show the screen until it is left, and return its exit code. `part`, `run`: see `WorkbenchApp`.

    Raises ScreenError where an exception ended it; its cause holds the traceback as text.
    """
    # Until the first picture next to nothing becomes garbage, and looking for it takes a tenth of that time.
    gc.disable()
    from rich.console import Console

    from workbench.tui.app import WorkbenchApp
    from workbench.tui.context import AppContext
    from workbench.tui.glyphs import BLOCKS, PLAIN

    glyphs = PLAIN if plain or not draws_blocks() else BLOCKS
    app = WorkbenchApp(AppContext(root, LazySampler(), glyphs, read_only=read_only), part=part, run=run)
    if "SSH_CONNECTION" in os.environ and "TEXTUAL_ANIMATIONS" not in os.environ:
        app.animation_level = "none"
    errors = io.StringIO()
    app.error_console = Console(file=errors, width=200, markup=False, highlight=False)
    try:
        app.run()
    finally:
        gc.enable()
    if errors.getvalue():
        raise ScreenError(_last_sentence(errors.getvalue())) from Exception(errors.getvalue())
    if app.last_run is not None:
        from workbench.runs.ending import ending

        print(*ending(app.last_run).lines(), sep="\n")
    return app.return_code or EXIT_DONE


def _last_sentence(report: str) -> str:
    """Return the exception's own line, which stands below the box of the traceback."""
    lines = [line.strip() for line in report.splitlines() if line.strip()]
    below = next((place for place in reversed(range(len(lines))) if lines[place][0] in "╰+"), -1)
    return " ".join(lines[below + 1 :])


def draws_blocks() -> bool:
    """Tell whether this terminal can be expected to show blocks and braille: UTF-8, and not the bare console."""
    encoding = locale.getpreferredencoding(False).lower().replace("-", "")
    return encoding == "utf8" and os.environ.get("TERM") != "linux"
