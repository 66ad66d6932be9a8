"""TOML texts: where each key is, and how a value, a key or a message is written on one line."""

from __future__ import annotations

import json
import re
from typing import Any

KeyPath = tuple[str | int, ...]
"""The names from the top of a document to a value; an element of an array has its index."""
LONGEST_VALUE_SHOWN = 160
"""Characters: a wrong path has to be seen whole."""

_HEADER = re.compile(r"\s*\[+([^\[\]]+)\]+\s*(?:#.*)?$")
_PAIR = re.compile(r"""\s*((?:[\w-]+|"[^"\n]*"|'[^'\n]*')(?:\s*\.\s*(?:[\w-]+|"[^"\n]*"|'[^'\n]*'))*)\s*=""")
_LONG_STRING = re.compile(r'''"""(?:\\.|[^\\])*?"""|\'{3}.*?\'{3}''', re.DOTALL)
_NAME = re.compile(r"""[\w-]+|"[^"\n]*"|'[^'\n]*'""")


def key_lines(text: str) -> dict[KeyPath, int]:
    """Return the line (from 1) of every table and key of a TOML text that stands at the start of a line.

    Keys of inline tables and elements of arrays have the line of what is around them: nobody looks for them longer
    than that. The first mention of a table counts.
    """
    lines: dict[KeyPath, int] = {}
    table: KeyPath = ()
    text = _LONG_STRING.sub(lambda found: "\n" * found.group().count("\n"), text)
    for number, line in enumerate(text.split("\n"), 1):
        if header := _HEADER.match(line):
            table = path = _names(header.group(1))
        elif pair := _PAIR.match(line):
            path = table + _names(pair.group(1))
        else:
            continue
        for length in range(1, len(path) + 1):
            lines.setdefault(path[:length], number)
    return lines


def _names(dotted: str) -> KeyPath:
    return tuple(name.strip("\"'") for name in _NAME.findall(dotted))


def value_at(document: dict[str, Any], path: KeyPath) -> Any:
    """Return the value at `path`, or None where the document does not say."""
    value: Any = document
    for name in path:
        if isinstance(value, list) and isinstance(name, int) and name < len(value):
            value = value[name]
            continue
        if not isinstance(value, dict) or name not in value:
            return None
        value = value[name]
    return value


def as_written(value: Any) -> str:
    """Return a value as TOML writes it, on one line and not too long."""
    text = toml_value(value)
    return text if len(text) <= LONGEST_VALUE_SHOWN else text[: LONGEST_VALUE_SHOWN - 1] + "…"


def toml_value(value: Any) -> str:
    """Return a value in TOML, on one line; dates, which no field takes, as they print."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(toml_value, value)) + "]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{toml_key(key)} = {toml_value(held)}" for key, held in value.items()) + "}"
    return str(value)


def toml_key(key: str) -> str:
    """Return a key in TOML, quoted only where it must be."""
    bare = key and all(letter.isascii() and (letter.isalnum() or letter in "_-") for letter in key)
    return key if bare else toml_value(key)
