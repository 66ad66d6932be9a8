"""The lives of a gradient and of a weight, as docs/engine.md tells them, name files and functions that exist."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SUFFIXES = (".py", ".c", ".h")


def stops() -> list[tuple[str, list[str]]]:
    """Each numbered row with the words in backquotes of its last column."""
    text = (ROOT / "docs" / "engine.md").read_text()
    rows = re.findall(r"^\| \d+ \| (.*?) \| (.*) \|$", text, flags=re.MULTILINE)
    return [(stop, re.findall(r"`([^`]+)`", where)) for stop, where in rows]


def test_every_stop_is_a_file_and_a_function_in_it() -> None:
    assert len(stops()) >= 20
    for stop, words in stops():
        files = [word for word in words if word.endswith(SUFFIXES)]
        paths = [
            ROOT / f if f.startswith(("workbench/", "native/")) else ROOT / "workbench/engine" / f
            for f in files
        ]
        assert paths and all(path.is_file() for path in paths), (stop, files)
        source = "\n".join(path.read_text() for path in paths)
        for word in words:
            if word not in files:
                for name in word.split("."):
                    assert re.search(rf"(def|class) {name}\b", source), (stop, word)
