"""A run's configuration: TOML and `--set` in, a checked `RunConfig` out, and back to TOML.

Whoever gets a `RunConfig` from here may rely on it: every value has its type and lies in its range, and no two
fields contradict each other. Anything else is a `ConfigurationError` that lists all problems at once, each with its
file and line. The fields are declared in `config.schema`.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

from workbench.config.checking import check_values
from workbench.config.rules import Problem
from workbench.config.schema import TABLES, DataConfig, DocumentedField, RunConfig, TrainConfig, fields
from workbench.config.toml_text import (
    KeyPath,
    as_written,
    key_lines,
    toml_key,
    toml_value,
    value_at,
)
from workbench.errors import ConfigurationError
from workbench.system.foreign import ForeignTextError, parse_toml
from workbench.system.terminal import on_one_line

__all__ = [
    "DataConfig",
    "DocumentedField",
    "RunConfig",
    "fields",
    "load_config",
    "parse_config",
    "read_text",
    "to_toml",
]

LARGEST_FILE_BYTES = 1 << 20
"""A preset is a page of text; anything above this is a file named by mistake."""


def load_config(path: Path, overrides: Sequence[str] = (), *, look_for: Collection[str] = ()) -> RunConfig:
    """Read the configuration in the file `path`, with `overrides` ("table.key=value") on top.

    `look_for`: the fields (of `config.references.REFERENCES`) whose files, folders and names are looked up.

    Raises ConfigurationError with every problem found, each on a line that starts with file and line.
    """
    return parse_config(
        read_text(path, "a preset, a TOML file", LARGEST_FILE_BYTES), str(path), overrides, look_for=look_for
    )


def parse_config(
    text: str, name: str, overrides: Sequence[str] = (), *, look_for: Collection[str] = ()
) -> RunConfig:
    """Do the same as `load_config` with a text; `name` stands for the file in messages."""
    document = _Document(text, name)
    for override in overrides:
        document.set(override)
    return document.checked(look_for)


def to_toml(config: RunConfig) -> str:
    """Return the configuration with every field, in TOML that `parse_config` reads back to its equal.

    Steps that nobody named are left out beside epochs, which decide them.
    """
    lines = [f"description = {toml_value(config.description)}"]
    for name in TABLES:
        table = getattr(config, name)
        if table is None:
            continue
        values = table.model_dump()
        if isinstance(table, TrainConfig) and table.epochs and "steps" not in table.model_fields_set:
            del values["steps"]
        tables = {key: values.pop(key) for key, value in list(values.items()) if isinstance(value, dict)}
        lines += ["", f"[{name}]", *_pairs(values)]
        for key, inner in tables.items():
            lines += ["", f"[{name}.{key}]", *_pairs(inner)]
    return "\n".join(lines) + "\n"


def _pairs(values: dict[str, Any]) -> Iterator[str]:
    return (f"{toml_key(key)} = {toml_value(value)}" for key, value in values.items())


def read_text(path: Path, wanted: str, largest_bytes: int) -> str:
    """Return the text of a small file. `wanted`: "a preset, a TOML file", for messages.

    Raises:
        ConfigurationError: it is not there, is no file of text in UTF-8 or UTF-16, or cannot be read.
    """
    try:
        if path.exists() and not path.is_file():
            raise ConfigurationError(
                f"{path}: is {'a folder' if path.is_dir() else 'no plain file'}; name {wanted}"
            )
        if path.stat().st_size > largest_bytes:
            raise ConfigurationError(f"{path}: is too large; name {wanted}")
        raw = path.read_bytes()
        text = raw.decode("utf-16" if raw[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig")
    except FileNotFoundError:
        raise ConfigurationError(f"{path}: there is no such file; name {wanted}") from None
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        raise ConfigurationError(
            f"{path}:{line}: is not UTF-8 text (byte 0x{error.object[error.start]:02x}); name {wanted}"
        ) from None
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        reason = error.strerror if isinstance(error, OSError) else error
        raise ConfigurationError(f"{path}: cannot be read: {reason}") from None
    if "\0" in text:
        line = text[: text.index("\0")].count("\n") + 1
        raise ConfigurationError(f"{path}:{line}: is not text (it has a zero byte); name {wanted}")
    return text


class _Document:
    """A parsed text with the line of every key, so that a problem names the line where it was written."""

    def __init__(self, text: str, name: str) -> None:
        self.name = name
        self.values = _parse_toml(text, name)
        self.lines = key_lines(text)
        self.overridden: set[KeyPath] = set()
        self.complaints: list[str] = []

    def set(self, override: str) -> None:
        """Put one "table.key=value" on top; a mistake in its form joins the complaints."""
        key, equals, written = override.partition("=")
        path = tuple(part.strip() for part in key.split("."))
        if not equals:
            self._complain_of(override, "has no '='; write table.key=value, for example train.steps=100")
        elif not all(path):
            self._complain_of(override, "has no name before the '='; write table.key=value")
        elif len(path) == 1 and path[0] in TABLES:
            self._complain_of(override, f"[{path[0]}] is a table; set one of its keys, {path[0]}.key=value")
        elif any("\ud800" <= letter <= "\udfff" for letter in override):  # bytes that are no UTF-8
            self._complain_of(ascii(override), "is not valid text")
        else:
            self._put(path, _value_of(written.strip()), override)

    def checked(self, look_for: Collection[str] = ()) -> RunConfig:
        """Return the configuration. Raises ConfigurationError with everything that is wrong."""
        config, problems = check_values(self.values, look_for)
        if problems or self.complaints:
            ordered = sorted(problems, key=lambda problem: self._line(problem.path) or sys.maxsize)
            raise ConfigurationError("\n".join([*map(self._sentence, ordered), *self.complaints]))
        return config

    def _put(self, path: tuple[str, ...], value: Any, override: str) -> None:
        table = self.values
        for depth, name in enumerate(path[:-1], 1):
            inner = table.setdefault(name, {})
            if not isinstance(inner, dict):
                self._complain_of(override, f"{'.'.join(path[:depth])} is not a table")
                return
            table = inner
        table[path[-1]] = value
        self.overridden.add(path)

    def _complain_of(self, override: str, what: str) -> None:
        self.complaints.append(on_one_line(f"--set {override}: {what}"))

    def _sentence(self, problem: Problem) -> str:
        line = self._line(problem.path)
        place = "--set" if self._is_overridden(problem.path) else f"{self.name}:{line}" if line else self.name
        names = [name for name in problem.path if isinstance(name, str)]
        what = ".".join(map(toml_key, names)) + "".join(
            f"[{index}]" for index in problem.path if isinstance(index, int)
        )
        value = value_at(self.values, problem.path)
        if isinstance(value, dict) and len(problem.path) == 1:
            what = f"[{what}]"
        elif value is not None:
            what += f" = {as_written(value)}"
        return on_one_line(f"{place}: {what}: {problem.wrong}; {problem.right}")

    def _is_overridden(self, path: KeyPath) -> bool:
        """Return True where `--set` gave this value, or made this table."""
        return any(
            path[: len(at)] == at or (at[: len(path)] == path and path not in self.lines)
            for at in self.overridden
        )

    def _line(self, path: KeyPath) -> int | None:
        """Return the line of `path`, or of the nearest table around it; None when `--set` put it there."""
        if self._is_overridden(path):
            return None
        return next((self.lines[path[:n]] for n in range(len(path), 0, -1) if path[:n] in self.lines), None)


def _parse_toml(text: str, name: str) -> dict[str, Any]:
    name = on_one_line(name)
    try:
        return parse_toml(text)
    except ForeignTextError as error:
        raise ConfigurationError(f"{name}: is not a configuration: {error}") from None
    except ValueError as error:  # its place is at the end of its message
        what, _, at = str(error).rpartition(" (at ")
        line, _, column = at.rstrip(")").removeprefix("line ").partition(", column ")
        if line.isdigit():
            raise ConfigurationError(f"{name}:{line}:{column}: is not valid TOML: {what}") from None
        last = text.rstrip().count("\n") + 1
        raise ConfigurationError(f"{name}:{last}: is not valid TOML: {what or error}") from None


def _value_of(written: str) -> Any:
    """Read the right side of an override as a TOML value, or as plain text where it is none."""
    try:
        parsed = parse_toml(f"value = {written}")
    except ValueError:
        return written
    return parsed["value"] if len(parsed) == 1 else written
