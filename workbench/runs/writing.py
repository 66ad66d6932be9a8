"""Write and read a run's files so that nobody ever sees half of one.

A whole file is replaced by a temporary one and a rename; a line is appended with a single `write`. A process may die at
any instruction and a disk may fill up: what is left is the old file, or the new one, or a torn last line that the next
append closes off. Nothing else in `workbench.runs` opens a file for writing, except the metrics and the log.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from workbench.errors import WorkbenchError
from workbench.system.files import write_atomically


class Lines(NamedTuple):
    """The content of a file of JSON lines from an offset on."""

    records: list[tuple[int, dict[str, Any]]]
    """(offset of the line, the object on it), for every line that holds one."""
    offset: int
    """The byte where the next reading starts: behind the last whole line."""
    problems: list[str]
    """One sentence for each line that could not be read."""


def cannot_write(path: Path, error: OSError) -> WorkbenchError:
    """Return the one error for a file of a run that could not be written."""
    return WorkbenchError(f"{path}: cannot be written: {error.strerror or error}")


def write_whole(path: Path, text: str, *, durable: bool = True) -> None:
    """Replace `path` by `text` at one instant; with `durable` a power failure leaves the new file too.

    Raises WorkbenchError where the file cannot be written; the old one then stands.
    """
    try:
        write_atomically(path, text, durable=durable)
    except OSError as error:
        raise cannot_write(path, error) from error


def write_json(path: Path, value: object, *, durable: bool = True) -> None:
    """Replace `path` by one JSON value, as `write_whole` does."""
    write_whole(path, json.dumps(plain(value), indent=1, allow_nan=False) + "\n", durable=durable)


def read_json(path: Path) -> tuple[dict[str, Any], str]:
    """Return the JSON object in `path` and an empty string, or an empty object and what is wrong."""
    try:
        value = json.loads(path.read_bytes())
    except FileNotFoundError:
        return {}, f"{path} is missing"
    except OSError as error:
        return {}, f"{path} cannot be read: {error.strerror or error}"
    except (ValueError, RecursionError) as error:
        return {}, f"{path} is damaged: {error}"
    if not isinstance(value, dict):
        return {}, f"{path} is damaged: expected a JSON object"
    return value, ""


def append_line(path: Path, value: Mapping[str, object]) -> None:
    """Append one JSON object as one line with one `write`, closing a torn last line first.

    Raises WorkbenchError where the line cannot be written whole.
    """
    line = json.dumps(plain(value), allow_nan=False).encode() + b"\n"
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            size = os.fstat(descriptor).st_size
            if size and os.pread(descriptor, 1, size - 1) != b"\n":
                line = b"\n" + line
            if os.write(descriptor, line) != len(line):
                raise WorkbenchError(f"{path}: a line was only written in part; the disk is full")
        finally:
            os.close(descriptor)
    except OSError as error:
        raise cannot_write(path, error) from error


def read_lines(path: Path, offset: int = 0) -> Lines:
    """Return the JSON objects on the whole lines of `path` from byte `offset` on. A missing file has no lines.

    A last line without its newline is left for the next reading; a line that is no JSON object is a problem.
    """
    try:
        with path.open("rb") as file:
            file.seek(offset)
            data = file.read()
    except FileNotFoundError:
        return Lines([], offset, [])
    except OSError as error:
        return Lines([], offset, [f"{path} cannot be read: {error.strerror or error}"])
    records: list[tuple[int, dict[str, Any]]] = []
    problems = []
    at = offset
    for line in data[: data.rfind(b"\n") + 1].splitlines(keepends=True):
        try:
            value = json.loads(line) if line.strip() else None
        except (ValueError, RecursionError):
            value = ()
        if isinstance(value, dict):
            records.append((at, value))
        elif value is not None:
            problems.append(f"{path}: the line at byte {at} is no JSON object and was skipped")
        at += len(line)
    return Lines(records, at, problems)


def plain(value: object) -> object:
    """Return `value` as JSON can hold it: a number that is not finite becomes null, a path its text."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, Path):
        return str(value)
    return value
