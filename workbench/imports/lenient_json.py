"""Read JSON as web pages print it: with comments, with commas too many or missing, and with braces that were lost.

`hjson` reads the comments and commas, as DeepSpeed itself does; only the braces are balanced here. Every repair is
reported with its line. The work grows with the length of the text alone, and length and depth are bounded.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from workbench.errors import ConfigurationError
from workbench.system.terminal import on_one_line

LONGEST_TEXT = 1 << 17
"""Characters; a configuration has a few thousand."""
DEEPEST = 32
MOST_REPAIRS = 100

KeyPath = tuple[str, ...]

# A string, a comment, or one character that opens or closes.
_TOKEN = re.compile(
    r"""("(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')|(//[^\n]*|\#[^\n]*|/\*.*?\*/)|([][{}])""", re.DOTALL
)
_FENCE = re.compile(r"^\s*```.*$", re.MULTILINE)
_KEY_FIRST = re.compile(r"""\s*(?:"[^"\n]*"|'[^'\n]*'|\w+)\s*:""")
_COMMENT_LINES = re.compile(r"\A(?:\s*(?:#|//)[^\n]*(?:\n|\Z))*\s*")
_OBJECT = re.compile(r"""\{(?=\s*(?:["'][\w.-]+["']\s*:|//|\#))""")
_CLOSES = {"{": "}", "[": "]"}


class Repair(NamedTuple):
    """A change to the text as it was read; `line` counts from 1."""

    line: int
    what: str


@dataclass(frozen=True)
class Document:
    """An object of the file. `lines`: the line of every key that is not inside an array, by its path."""

    values: dict[str, Any]
    lines: dict[KeyPath, int]
    repairs: tuple[Repair, ...]


def read_document(text: str, name: str) -> Document:
    """Return the JSON object that `text` holds; `name` stands for the file in messages.

    Raises:
        ConfigurationError: it is not an object, cannot be read, or is far from any configuration in size or depth.
    """
    name = on_one_line(name)
    if len(text) > LONGEST_TEXT:
        raise ConfigurationError(f"{name}: is too large for a configuration ({len(text):,} characters)")
    text = text.replace("\r\n", "\n").replace("\r", "\n").lstrip("\ufeff").replace("\u00a0", " ")
    if not text.strip():
        raise ConfigurationError(f"{name}: is empty; a configuration is a JSON object")
    repairs: list[Repair] = []
    text = _object_in_prose(text, repairs)
    try:
        values: Any = json.loads(text, object_pairs_hook=_unique)
    except _DuplicateKeyError as error:
        raise ConfigurationError(f"{name}: {error}") from None
    except (ValueError, RecursionError) as error:
        repaired = _balanced(text, name, repairs)
        if not repairs and isinstance(error, json.JSONDecodeError):
            repairs.append(Repair(error.lineno, f"not strict JSON ({error.msg}); read it as DeepSpeed does"))
        values = _read_hjson(repaired, name)
    if not isinstance(values, dict):
        raise ConfigurationError(f'{name}:1:1: expected a JSON object, which begins with "{{"')
    if _depth(values) > DEEPEST:
        raise ConfigurationError(f"{name}: is nested deeper than {DEEPEST} levels")
    return Document(values, _lines_of(values, text), tuple(sorted(repairs)))


def _object_in_prose(text: str, repairs: list[Repair]) -> str:
    """Return the text with all blanked that is around the longest object in it, where the whole is no object.

    Lines keep their numbers.
    """
    bare = _COMMENT_LINES.sub("", _FENCE.sub("", text))
    if bare.startswith(("{", "[", "/*")) or not bare or _KEY_FIRST.match(bare):
        return text
    found = [
        (start, _end_of_object(text, start)) for start in (each.start() for each in _OBJECT.finditer(text))
    ]
    if not found:
        return text
    start, stop = max(found, key=lambda each: each[1] - each[0])
    repairs.append(Repair(_line(text, start), "read the object that begins here, and not the text around it"))
    blanked = "\n" * text.count("\n", 0, start) + " " * (start - text.rfind("\n", 0, start) - 1)
    return blanked + text[start:stop]


def _end_of_object(text: str, start: int) -> int:
    """Return where the object that opens at `start` closes; the end of the text where it does not."""
    depth = 0
    for token in _TOKEN.finditer(text, start):
        if token.group(3):
            depth += 1 if token.group(3) in _CLOSES else -1
            if depth == 0:
                return token.end()
    return len(text)


def _read_hjson(text: str, name: str) -> Any:
    import hjson

    try:
        return hjson.loads(text, object_pairs_hook=_unique)
    except _DuplicateKeyError as error:
        raise ConfigurationError(f"{name}: {error}") from None
    except hjson.HjsonDecodeError as error:
        last = text.rstrip().count("\n") + 1
        reason = on_one_line(str(error.msg)).split(" (check your syntax")[0].replace(" %r", "")
        raise ConfigurationError(
            f"{name}:{min(error.lineno, last)}:{error.colno}: is not JSON: {reason}"
        ) from None
    except RecursionError:
        raise ConfigurationError(f"{name}: is nested deeper than {DEEPEST} levels") from None
    except (
        ValueError,
        OverflowError,
        IndexError,
    ) as error:  # hjson's own failures on odd numbers and endings
        raise ConfigurationError(
            f"{name}: cannot be read as JSON ({on_one_line(str(error))[:100]})"
        ) from None


def _balanced(text: str, name: str, repairs: list[Repair]) -> str:
    """Return `text` with a brace around a whole without one, lost closing braces added and spare ones left out."""
    text = _FENCE.sub("", text)
    wrapped = not text.lstrip().startswith(("{", "[")) and _KEY_FIRST.match(text) is not None
    if wrapped:
        repairs.append(
            Repair(1 + text[: len(text) - len(text.lstrip())].count("\n"), "put braces around the whole")
        )
    spare: list[int] = []
    opened: list[tuple[str, int]] = []
    for token in _TOKEN.finditer(text):
        character = token.group(3)
        if character is None:
            continue
        if character in _CLOSES:
            opened.append((character, token.start()))
        elif opened and _CLOSES[opened[-1][0]] == character:
            opened.pop()
        else:
            spare.append(token.start())
        if len(opened) > DEEPEST:
            raise ConfigurationError(f"{name}: is nested deeper than {DEEPEST} levels")
        if len(spare) > MOST_REPAIRS:
            raise ConfigurationError(f"{name}: has more than {MOST_REPAIRS} braces that close nothing")
    for at in reversed(spare):
        repairs.append(Repair(_line(text, at), f'left out a "{text[at]}" that closes nothing'))
        text = text[:at] + " " + text[at + 1 :]
    for character, at in reversed(opened):
        closing = _CLOSES[character]
        repairs.append(
            Repair(
                _line(text, len(text.rstrip())), f'added the "{closing}" missing for line {_line(text, at)}'
            )
        )
    # On lines of their own: a comment may end the text.
    text += "".join(f"\n{_CLOSES[character]}" for character, _ in reversed(opened))
    return f"{{{text}\n}}" if wrapped else text


def _line(text: str, at: int) -> int:
    return text.count("\n", 0, at) + 1


class _DuplicateKeyError(Exception):
    pass


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        names = [key for key, _ in pairs]
        twice = next(key for key in names if names.count(key) > 1)
        raise _DuplicateKeyError(
            f'"{on_one_line(twice)}" is in one object twice, which DeepSpeed refuses too'
        )
    return values


def _depth(value: Any) -> int:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return 1 + max(map(_depth, inner), default=0) if isinstance(value, (dict, list)) else 0


def _lines_of(values: dict[str, Any], text: str) -> dict[KeyPath, int]:
    """Find the line of every key: the keys of the file stand in the order in which they were read."""
    lines: dict[KeyPath, int] = {}
    starts = [found.end() for found in re.finditer("\n", text)]
    at = 0

    def search(inner: Mapping[str, Any], path: KeyPath) -> None:
        nonlocal at
        for key, value in inner.items():
            written = re.escape(json.dumps(key, ensure_ascii=False)[1:-1])
            found = re.compile(rf"""(?:"{written}"|'{written}'|(?<![\w"']){written})\s*:""").search(text, at)
            if found is not None:
                at = found.end()
            place = (*path, key)
            lines[place] = 1 + bisect_right(starts, at if found is None else found.start())
            if isinstance(value, Mapping):
                search(value, place)

    search(values, ())
    return lines
