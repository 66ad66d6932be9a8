"""Editing a text in the user's own editor, with the terminal lent to it."""

from __future__ import annotations

import os
import shlex
import subprocess
import tempfile
from pathlib import Path

from textual.app import App, SuspendNotSupported

from workbench.errors import WorkbenchError


def edit_text(app: App[object], text: str, name: str) -> str:
    """Open `text` as a file `name` in $VISUAL, $EDITOR or vi, and return what was saved. Blocks until the editor ends.

    Raises:
        WorkbenchError: the terminal cannot be lent, there is no such editor, or it failed.
    """
    editor = os.environ.get("VISUAL") or os.environ.get("EDITOR") or "vi"
    with tempfile.TemporaryDirectory(prefix="workbench-") as folder:
        path = Path(folder) / name
        path.write_text(text, encoding="utf-8", newline="")
        try:
            with app.suspend():
                code = subprocess.run([*shlex.split(editor), str(path)], check=False).returncode
            after = path.read_bytes().decode("utf-8-sig")
        except SuspendNotSupported:
            raise WorkbenchError("this terminal cannot be lent to an editor") from None
        except (OSError, ValueError) as error:
            raise WorkbenchError(f"{editor}: {error}") from error
    if code:
        raise WorkbenchError(f"{editor} ended with code {code}; its changes were not taken over")
    return after
