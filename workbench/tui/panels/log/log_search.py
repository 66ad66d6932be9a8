"""A search through a log of any size, with the lines around what it finds. For a thread; no textual.

Invariant: it reads no more of the file than the way to what it finds, and that part.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from workbench.tui.panels.log.log_file import Level, Piece, find, read_after, read_before

Stopped = Callable[[], bool]


@dataclass(frozen=True)
class Found:
    """What a search found."""

    offset: int | None
    """Where in the file; None: there is no such line."""
    around: Piece | None
    """Lines before and after it, where they are not at hand."""


@dataclass(frozen=True)
class Search:
    """For `text`, from the place `at` of the file, up or `down`; lines from `first` to before `end` are at hand."""

    text: str
    at: int
    down: bool
    first: int
    end: int


def search(path: Path, wanted: Search, level: Level, lines: int, stopped: Stopped) -> Found:
    """Look for a line of this level; `lines`: how many around it are read."""
    offset = find(path, wanted.text, wanted.at, down=wanted.down, wanted=level, stopped=stopped)
    if offset is None or wanted.first <= offset < wanted.end:
        return Found(offset, None)
    before = read_before(path, offset, level, lines // 2, stopped)
    after = read_after(path, offset, level, lines // 2, stopped)
    return Found(offset, replace(after, lines=before.lines + after.lines, start=before.start))
