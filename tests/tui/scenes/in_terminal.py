"""A scene in a real terminal: the application writes to it as it does for a user, and the picture is what it shows."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from emulated_terminal import EmulatedTerminal

from scenes.picture import Picture, picture_in
from scenes.stage import with_shown_folder
from scenes.views import Scene


def photograph_terminal(scene: Scene, size: tuple[int, int]) -> Picture:
    """What a terminal of `size` cells shows of `scene`.

    Raises:
        AssertionError: it was not shown within a minute; says what was.
    """
    with TemporaryDirectory() as home:
        told = Path(home) / "folder"
        unset = ("NO_COLOR", "TEXTUAL_THEME", "SSH_CONNECTION")
        environment = {name: value for name, value in os.environ.items() if name not in unset}
        environment.update(HOME=home, PYTHONPATH=os.pathsep.join(filter(None, sys.path)))
        with EmulatedTerminal(
            (sys.executable, "-m", "scenes", scene.name, str(told)), environment, size
        ) as terminal:
            terminal.until(lambda _: told.exists())
            picture, folder = picture_in(terminal), Path(told.read_text())
            told.unlink()
            terminal.until(lambda _: not folder.exists())
    return with_shown_folder(picture, str(folder))
