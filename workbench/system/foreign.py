"""TOML and JSON that somebody else may have written, read within bounds: size, depth, digits, lengths of names.

Invariant: whatever the text, a reader here returns in about a second or raises a ValueError of one short sentence.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from typing import Any, TypeVar

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # type: ignore[import-not-found, unused-ignore]

T = TypeVar("T")

LONGEST_TOML = 1 << 20
"""Characters; the longest preset has some 3,000."""
LONGEST_JSON = 256 << 20
"""Bytes; the tokenizer.json of a vocabulary of 256,000 has some 33 million."""
LONGEST_WORD = 200
DEEPEST_KEY = 16

_STRING = re.compile(
    r'''""".*?"""|\'{3}.*?\'{3}|"(?:\\.|[^"\\\n])*"|'[^'\n]*'|\#[^\n]*''',
    re.DOTALL,
)
_LONG_WORD = re.compile(rf"[\w+-]{{{LONGEST_WORD + 1}}}")
_DEEP_KEY = re.compile(rf"(?:[\w-]\s*\.\s*[\w-]*){{{DEEPEST_KEY + 1}}}")


class ForeignTextError(ValueError):
    """A text is out of bounds."""


def parse_toml(text: str) -> dict[str, Any]:
    """Return the document in `text`.

    Raises:
        tomllib.TOMLDecodeError, a ValueError: it is no TOML.
        ForeignTextError: it is far from any configuration in size, depth, or the length of a name or number.
    """
    if len(text) > LONGEST_TOML:
        raise ForeignTextError(f"it has {len(text):,} characters; at most {LONGEST_TOML:,} are read")
    bare = _STRING.sub(lambda found: "s" if found.group()[0] in "\"'" else "", text)
    if _LONG_WORD.search(bare):
        raise ForeignTextError(f"it has a name or a number of more than {LONGEST_WORD} characters")
    if _DEEP_KEY.search(bare):
        raise ForeignTextError(f"it has a key of more than {DEEPEST_KEY} parts")
    values: dict[str, Any] = _shallow(lambda: tomllib.loads(text))
    _check_words(values)
    return values


def parse_json(text: str | bytes, *, longest: int = LONGEST_JSON) -> Any:
    """Return the JSON value in `text`, str or UTF-8. Raises ValueError where there is none within the bounds."""
    if len(text) > longest:
        raise ForeignTextError(f"it has {len(text):,} bytes; at most {longest:,} are read")
    return _shallow(lambda: json.loads(text))


def as_kind(kind: type[T], value: Any) -> T:
    """Return parsed JSON as the dataclass `kind`, every field of its own type; unknown fields are ignored.

    Raises ValueError that names the first field that does not fit.
    """
    from pydantic import TypeAdapter, ValidationError

    try:
        return TypeAdapter(kind).validate_python(value)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        raise ValueError(f"{place[:LONGEST_WORD]}: {first['msg']}") from None


def _shallow(parse: Callable[[], Any]) -> Any:
    try:
        return parse()
    except RecursionError:
        raise ForeignTextError("it is nested too deeply") from None


def _check_words(value: Any) -> None:
    """Refuse quoted names that are long, and numbers that no field could hold."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if len(key) > LONGEST_WORD:
                raise ForeignTextError(f"it has a name or a number of more than {LONGEST_WORD} characters")
            _check_words(inner)
    elif isinstance(value, list):
        for inner in value:
            _check_words(inner)
    elif isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise ForeignTextError("it has a number of more than 64 bits")
