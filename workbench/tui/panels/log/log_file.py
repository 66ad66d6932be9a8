"""A log file in pieces: its end, what comes before or after an offset, and where a text is next.

Every function reads a bounded part and gives whole lines; none keeps anything, so that they may run in any thread.
Invariant: memory does not grow with the file, nor with a line: one longer than LONGEST_LINE is given in several parts.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Literal, NamedTuple

Level = Literal["all", "warning", "error"]
LEVELS: tuple[Level, ...] = ("all", "warning", "error")
CHUNK_BYTES = 256 * 1024
LONGEST_LINE = 4096
_FINGERPRINT_BYTES = 64

# What the trainer, Python and CUDA print where something went wrong.
_ERRORS = (
    b"error",
    b"fatal",
    b"critical",
    b"traceback",
    b"exception",
    b"failed",
    b"cannot",
    b"diverged",
    b"killed",
    b"aborted",
    b"out of memory",
    b"segmentation fault",
)
_WARNINGS = (b"warning",)


class LogLine(NamedTuple):
    """One line, or a part of a very long one."""

    offset: int
    """Of its first byte."""
    text: str
    level: Level
    """"all" for a line that is neither."""


@dataclass(frozen=True)
class Piece:
    """Lines of the file between two offsets, and what the file was when they were read."""

    lines: tuple[LogLine, ...] = ()
    start: int = 0
    end: int = 0
    """Behind the last whole line."""
    size: int = 0
    identity: tuple[int, int] = (0, 0)
    """Device and inode."""
    mark: bytes = b""
    """The last bytes before `end`: while they stand there, nothing but more lines has come."""
    tail: str = ""
    """What stands behind `end`: a line that is not finished, its begin at most."""
    problem: str = ""


def level_of(line: bytes) -> Level:
    """By the words in it; a warning about an error is a warning."""
    lower = line.lower()
    if any(word in lower for word in _WARNINGS):
        return "warning"
    return "error" if any(word in lower for word in _ERRORS) else "all"


def passes(level: Level, wanted: Level) -> bool:
    """Whether a line is shown: warnings show errors too."""
    return LEVELS.index(level) >= LEVELS.index(wanted)


def read_end(path: Path, wanted: Level, lines: int, stopped: Callable[[], bool]) -> Piece:
    """The last `lines` lines of this level. Never raises; see `problem`."""
    try:
        with path.open("rb") as file:
            return _before(file, os.fstat(file.fileno()).st_size, wanted, lines, stopped)
    except OSError as error:
        return Piece(problem=_words(path, error))


def read_before(path: Path, offset: int, wanted: Level, lines: int, stopped: Callable[[], bool]) -> Piece:
    """Up to `lines` lines of this level that end at `offset`, a line's begin."""
    try:
        with path.open("rb") as file:
            return _before(file, offset, wanted, lines, stopped)
    except OSError as error:
        return Piece(problem=_words(path, error))


def read_after(path: Path, offset: int, wanted: Level, lines: int, stopped: Callable[[], bool]) -> Piece:
    """Lines of this level from `offset` on, a line's begin: `lines` of them or a few more."""
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            found: list[LogLine] = []
            at = offset
            while len(found) < lines and not stopped():
                file.seek(at)
                data = file.read(CHUNK_BYTES)
                whole = _whole_lines(data)
                if not whole:
                    break
                found += _lines(data[:whole], at, wanted)
                at += whole
            return _piece(file, tuple(found), offset, at, size)
    except OSError as error:
        return Piece(problem=_words(path, error))


def read_new(
    path: Path, known: Piece, wanted: Level, lines: int, stopped: Callable[[], bool]
) -> Piece | None:
    """What came after `known`; None where nothing did; from the file's end anew where it is another file now.

    A file that was cut off, replaced or written anew does not hold `known.mark` before `known.end`.
    What came is given from `known.end` on unless it is more than `lines`: then it is the end of the file.
    """
    try:
        status = path.stat()
        same = (status.st_dev, status.st_ino) == known.identity and status.st_size >= known.end
        if same and status.st_size == known.size and not known.problem:
            return None
        if same:
            with path.open("rb") as file:
                file.seek(known.end - len(known.mark))
                same = file.read(len(known.mark)) == known.mark
        if not same or status.st_size - known.end > 16 * CHUNK_BYTES:
            return read_end(path, wanted, lines, stopped)
        return read_after(path, known.end, wanted, 1 << 30, stopped)
    except OSError as error:
        return None if known.problem else Piece(problem=_words(path, error))


def find(
    path: Path, text: str, offset: int, *, down: bool, wanted: Level, stopped: Callable[[], bool]
) -> int | None:
    """The offset of the next line with this text: the first that begins after `offset`, else the last before it.

    Upper and lower case are the same (of ASCII letters). Reads one chunk at a time; gives up when `stopped`.
    """
    needle = text.encode().lower()
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            return (
                _find_down(file, needle, offset, wanted, stopped)
                if down
                else _find_up(file, needle, min(offset, size), wanted, stopped)
            )
    except OSError:
        return None


def _find_up(
    file: BinaryIO, needle: bytes, end: int, wanted: Level, stopped: Callable[[], bool]
) -> int | None:
    while end > 0 and not stopped():
        start, data = _chunk_before(file, end)
        if needle in data.lower():
            lines = [line for line in _lines(data, start, wanted) if needle in _encoded(line)]
            if lines:
                return lines[-1].offset
        end = start
    return None


def _find_down(
    file: BinaryIO, needle: bytes, offset: int, wanted: Level, stopped: Callable[[], bool]
) -> int | None:
    at = offset
    while not stopped():
        file.seek(at)
        data = file.read(CHUNK_BYTES)
        whole = _whole_lines(data)
        if not whole:
            return None
        if needle in data[:whole].lower():
            for line in _lines(data[:whole], at, wanted):
                if line.offset > offset and needle in _encoded(line):
                    return line.offset
        at += whole
    return None


def _before(file: BinaryIO, end: int, wanted: Level, lines: int, stopped: Callable[[], bool]) -> Piece:
    """Chunks from `end` upwards until there are lines enough. A last line that is not finished is left out."""
    size = os.fstat(file.fileno()).st_size
    end = min(end, size)
    parts: list[list[LogLine]] = []
    count, at = 0, end
    last: int | None = None
    while at > 0 and count < lines and not stopped():
        start, data = _chunk_before(file, at)
        whole = len(data)
        if last is None:
            whole = _whole_lines(data)
            last = start + whole
        part = _lines(data[:whole], start, wanted)
        parts.append(part)
        count += len(part)
        at = start
    found = [line for part in reversed(parts) for line in part]
    start = at
    if len(found) > lines:
        found = found[-lines:]
        start = found[0].offset
    return _piece(file, tuple(found), start, end if last is None else last, size)


def _chunk_before(file: BinaryIO, end: int) -> tuple[int, bytes]:
    """The whole lines of about a chunk before `end`, and where they start."""
    start = max(0, end - CHUNK_BYTES)
    file.seek(start)
    data = file.read(end - start)
    if start > 0:
        # The first line may have begun before; one that fills the whole chunk is given in parts.
        cut = data.find(b"\n") + 1
        if 0 < cut < len(data):
            return start + cut, data[cut:]
    return start, data


def _whole_lines(data: bytes) -> int:
    """How many of these bytes are whole lines; a chunk without an end of line counts as one."""
    cut = data.rfind(b"\n") + 1
    return len(data) if not cut and len(data) >= CHUNK_BYTES else cut


def _lines(data: bytes, start: int, wanted: Level) -> list[LogLine]:
    # Most chunks have no line of a level: that is told for all lines at once.
    lower = data.lower()
    words = _ERRORS if wanted == "error" else _ERRORS + _WARNINGS
    remarkable = any(word in lower for word in words)
    if wanted != "all" and not remarkable:
        return []
    out = []
    at = start
    for line in data.splitlines(keepends=True):
        level = level_of(line) if remarkable else "all"
        if passes(level, wanted):
            for first in range(0, len(line), LONGEST_LINE):
                part = line[first : first + LONGEST_LINE].rstrip(b"\r\n")
                if part or not first:
                    out.append(LogLine(at + first, _text(part), level))
        at += len(line)
    return out


def _encoded(line: LogLine) -> bytes:
    return line.text.encode(errors="replace").lower()


def _piece(file: BinaryIO, lines: tuple[LogLine, ...], start: int, end: int, size: int) -> Piece:
    status = os.fstat(file.fileno())
    first = max(0, end - _FINGERPRINT_BYTES)
    file.seek(first)
    mark = file.read(end - first)
    rest = file.read(min(LONGEST_LINE, max(0, size - end)))
    tail = "" if b"\n" in rest else _text(rest)
    return Piece(lines, start, end, size, (status.st_dev, status.st_ino), mark, tail)


def _text(data: bytes) -> str:
    return data.decode(errors="replace").expandtabs(4)


def _words(path: Path, error: OSError) -> str:
    if isinstance(error, FileNotFoundError):
        return f"There is no {path.name} yet."
    return f"{path} cannot be read: {error.strerror or error}"
