"""A text in the user's own editor, while the application lends it the terminal."""

from __future__ import annotations

import os
import shlex
import subprocess
import tempfile
from pathlib import Path

from textual.app import App, SuspendNotSupported

from workbench.errors import WorkbenchError


def edited(app: App[object], text: str, name: str) -> str:
    """What was saved of `text` as a file `name` in $VISUAL, $EDITOR or vi. Blocks until the editor has ended.

    Raises:
        WorkbenchError: there is no terminal to lend, no such editor, or it gave up; what was saved is not taken.
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
        raise WorkbenchError(f"{editor} ended with code {code}; nothing was taken")
    return after
