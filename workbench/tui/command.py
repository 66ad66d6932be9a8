"""From a command line to the screen and back: what it stands on, and how it ended.

Invariant: an exception that ended the screen comes out of here as itself, when the terminal is as it was.
"""

from __future__ import annotations

import locale
import os
from pathlib import Path

from workbench.errors import EXIT_DONE
from workbench.runs import RunDirectory


def show(
    root: Path,
    *,
    part: str = "",
    run: RunDirectory | None = None,
    read_only: bool = False,
    plain: bool = False,
) -> int:
    """Show the screen until it is left; its exit code. `part`, `run`: what it begins with (see `WorkbenchApp`)."""
    from workbench.monitor.sampler import Sampler
    from workbench.tui.app import WorkbenchApp
    from workbench.tui.glyphs import BLOCKS, PLAIN
    from workbench.tui.surroundings import Surroundings

    if "TEXTUAL_ANIMATIONS" not in os.environ and "SSH_CONNECTION" in os.environ:
        os.environ["TEXTUAL_ANIMATIONS"] = "none"
    surroundings = Surroundings(
        runs_root=root,
        monitor=Sampler(),
        glyphs=PLAIN if plain or not draws_blocks() else BLOCKS,
        read_only=read_only,
    )
    app = WorkbenchApp(surroundings, part=part, run=run)
    app.run()
    if app.failure is not None:
        raise app.failure
    return app.return_code or EXIT_DONE


def draws_blocks() -> bool:
    """Whether this terminal can be expected to show blocks and braille: it takes UTF-8, and is not the bare console."""
    encoding = locale.getpreferredencoding(False).lower().replace("-", "")
    return encoding == "utf8" and os.environ.get("TERM") != "linux"
