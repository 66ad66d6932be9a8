"""The line of a key is found however TOML lets it be written."""

from __future__ import annotations

import random
import sys
from typing import Any

import pytest

from workbench.config.toml_lines import KeyPath, key_lines
from workbench.presets import shipped_folder

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

LINES = [
    "# a comment with [brackets] and = signs",
    'title = "a # b = [c]"   # trailing',
    "[one]",
    "plain = 1",
    '"quoted key" = \'it "is"\'',
    "dotted . key = 2",
    "text = '''",
    "[not.a.table]",
    "x = 1",
    "''''",
    'more = """a \\""" b',
    'y = 2""""',
    "list = [",
    "  1,   # one",
    "  [2, 3],",
    "",
    "  {deep = 4},",
    "]",
    "[ one . two ]",
    "inline = {a = 1, b = {c = 2}, d.e = [5]}",
    "when = 1979-05-27 07:32:00",
    "[[many]]",
    "name = 1",
    "[[many]]",
    "name = 2",
]
TEXT = "\n".join(LINES)

EXPECTED: dict[KeyPath, int] = {
    ("title",): 2,
    ("one",): 3,
    ("one", "plain"): 4,
    ("one", "quoted key"): 5,
    ("one", "dotted", "key"): 6,
    ("one", "text"): 7,
    ("one", "more"): 11,
    ("one", "list"): 13,
    ("one", "list", 0): 14,
    ("one", "list", 1, 1): 15,
    ("one", "list", 2, "deep"): 17,
    ("one", "two"): 19,
    ("one", "two", "inline", "b", "c"): 20,
    ("one", "two", "inline", "d", "e", 0): 20,
    ("one", "two", "when"): 21,
    ("many",): 24,
    ("many", 0, "name"): 23,
    ("many", 1, "name"): 25,
}


def paths(value: Any, at: KeyPath = ()) -> list[KeyPath]:
    """Every path in a parsed document."""
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path for key, held in inside for path in [(*at, key), *paths(held, (*at, key))]]


def test_the_sample_is_valid_toml() -> None:
    tomllib.loads(TEXT)


@pytest.mark.parametrize(("path", "line"), EXPECTED.items(), ids=str)
def test_a_key_is_found_on_its_line(path: KeyPath, line: int) -> None:
    assert key_lines(TEXT)[path] == line


def test_every_key_of_the_sample_is_found_and_nothing_else() -> None:
    assert set(key_lines(TEXT)) == set(paths(tomllib.loads(TEXT)))


@pytest.mark.parametrize("path", sorted(shipped_folder().glob("*.toml")), ids=lambda path: path.stem)
def test_every_key_of_a_shipped_preset_is_found(path: Any) -> None:
    text = path.read_text(encoding="utf-8")
    assert set(key_lines(text)) == set(paths(tomllib.loads(text)))


def test_a_text_that_is_not_toml_raises_nothing() -> None:
    chance = random.Random(20)
    for _ in range(2000):
        key_lines("".join(chance.choices("a.=[]{}\"'\\\n #,1", k=chance.randrange(40))))


def test_deep_nesting_raises_nothing() -> None:
    key_lines("x = " + "[" * 100_000)
