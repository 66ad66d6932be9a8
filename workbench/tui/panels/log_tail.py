"""The end of a log file, and what is appended to it: whole lines, each with the level that its words have.

Invariant: memory does not grow with the file, nor with a line: of a file no more than its last TAIL_BYTES are read, and
a line longer than LONGEST_LINE is given in several parts.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

Level = Literal["all", "warning", "error"]
LEVELS: tuple[Level, ...] = ("all", "warning", "error")
TAIL_BYTES = 2 << 20
LONGEST_LINE = 4096

# What the trainer, Python and CUDA print where something went wrong.
_ERRORS = (
    "error",
    "fatal",
    "critical",
    "traceback",
    "exception",
    "failed",
    "cannot",
    "diverged",
    "killed",
    "aborted",
    "out of memory",
    "segmentation fault",
)


class LogLine(NamedTuple):
    text: str
    level: Level
    """"all" for a line that is neither a warning nor an error."""


@dataclass(frozen=True)
class Appended:
    """Lines that have come since the last reading."""

    lines: tuple[LogLine, ...] = ()
    anew: bool = False
    """Whether they take the place of all lines before: it is the first reading, or another file now."""
    whole: bool = True
    """Whether they begin where the file does; told of those that are `anew`."""
    problem: str = ""


def level_of(line: str) -> Level:
    """Return the level of a line by its words; a warning about an error is a warning."""
    lower = line.lower()
    if "warning" in lower:
        return "warning"
    return "error" if any(word in lower for word in _ERRORS) else "all"


class LogTail:
    """Reads one file, for one thread at a time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: tuple[int, int] | None = None
        """Device and inode."""
        self._end = 0
        """Behind the last byte that was read."""
        self._rest = b""
        """The begin of a line whose end has not come yet."""

    def read(self) -> Appended:
        """Return what has come since the last reading. Never raises; see `problem`."""
        try:
            with self.path.open("rb") as file:
                status = os.fstat(file.fileno())
                size = status.st_size
                known = self._file == (status.st_dev, status.st_ino) and size >= self._end
                anew = not known or size - self._end > TAIL_BYTES
                if anew:
                    self._file, self._rest = (status.st_dev, status.st_ino), b""
                    self._end = max(0, size - TAIL_BYTES)
                start = self._end
                file.seek(start)
                data = file.read(size - start)
        except FileNotFoundError:
            self._file = None
            return Appended(problem=f"There is no {self.path.name} yet.")
        except OSError as error:
            self._file = None
            return Appended(problem=f"{self.path} cannot be read: {error.strerror or error}")
        self._end += len(data)
        if anew and start:
            data = data[data.find(b"\n") + 1 :]
        # What has no end yet waits for it until a reading finds nothing new: a process that died gives none.
        held = self._rest + data
        ready = len(held) if not data or len(held) > TAIL_BYTES else held.rfind(b"\n") + 1
        whole, self._rest = held[:ready], held[ready:]
        return Appended(tuple(_lines(whole)), anew, whole=not start)


def _lines(data: bytes) -> list[LogLine]:
    out = []
    for line in data.split(b"\n")[: None if data and not data.endswith(b"\n") else -1]:
        text = line.rstrip(b"\r").decode(errors="replace").expandtabs(4)
        level = level_of(text)
        out += [
            LogLine(text[at : at + LONGEST_LINE], level) for at in range(0, max(1, len(text)), LONGEST_LINE)
        ]
    return out
