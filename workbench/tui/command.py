"""From a command line to the screen and back: what it stands on, and how it ended.

Invariant: an exception that ended the screen comes out of here as itself, when the terminal is as it was.
"""

from __future__ import annotations

import gc
import locale
import os
from pathlib import Path
from typing import TYPE_CHECKING

from workbench.errors import EXIT_DONE

if TYPE_CHECKING:
    from workbench.monitor.sampler import Sampler
    from workbench.monitor.samples import MonitorSample
    from workbench.runs import RunDirectory


class LateSampler:
    """The machine's sampler, imported when it is started, which is after the first picture."""

    def __init__(self) -> None:
        self._sampler: Sampler | None = None
        self._watched: tuple[int | None, tuple[Path, ...]] = (None, ())

    def start(self) -> None:
        if self._sampler is None:
            from workbench.monitor.sampler import Sampler

            self._sampler = Sampler()
            pid, folders = self._watched
            self._sampler.watch(pid=pid, folders=folders)
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
    """Show the screen until it is left; its exit code. `part`, `run`: what it begins with (see `WorkbenchApp`)."""
    # Until the first picture next to nothing becomes garbage, and looking for it takes a tenth of that time.
    gc.disable()
    from workbench.tui.app import WorkbenchApp
    from workbench.tui.context import AppContext
    from workbench.tui.glyphs import BLOCKS, PLAIN

    context = AppContext(
        runs_root=root,
        monitor=LateSampler(),
        glyphs=PLAIN if plain or not draws_blocks() else BLOCKS,
        read_only=read_only,
    )
    app = WorkbenchApp(context, part=part, run=run)
    if "SSH_CONNECTION" in os.environ and "TEXTUAL_ANIMATIONS" not in os.environ:
        app.animation_level = "none"
    try:
        app.run()
    finally:
        gc.enable()
    if app.failure is not None:
        raise app.failure
    return app.return_code or EXIT_DONE


def draws_blocks() -> bool:
    """Whether this terminal can be expected to show blocks and braille: it takes UTF-8, and is not the bare console."""
    encoding = locale.getpreferredencoding(False).lower().replace("-", "")
    return encoding == "utf8" and os.environ.get("TERM") != "linux"
