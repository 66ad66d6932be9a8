"""The line of a key, however TOML lets it be written."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import pytest

from workbench.config.toml_text import key_lines
from workbench.presets import shipped_folder

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

TEXT = """# a comment with [brackets] and = signs
title = "a # b = [c]"   # trailing
[one]
plain = 1
"quoted key" = 'it "is"'
dotted . key = 2
text = '''
[not.a.table]
x = 1
'''
list = [
  1,   # one
  {deep = 4},
]
[ one . two ]  # comment
inline = {a = 1, b = {c = 2}}
"""


def test_tables_and_keys_have_the_line_where_they_begin() -> None:
    tomllib.loads(TEXT)
    assert key_lines(TEXT) == {
        ("title",): 2,
        ("one",): 3,
        ("one", "plain"): 4,
        ("one", "quoted key"): 5,
        ("one", "dotted"): 6,
        ("one", "dotted", "key"): 6,
        ("one", "text"): 7,
        ("one", "list"): 11,
        ("one", "two"): 15,
        ("one", "two", "inline"): 16,
    }


@pytest.mark.parametrize("path", sorted(shipped_folder().glob("*.toml")), ids=lambda path: path.stem)
def test_every_table_and_key_of_a_shipped_preset_is_found(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    written = {(name,) for name in tomllib.loads(text)}
    for name, table in tomllib.loads(text).items():
        written |= {(name, key) for key in table} if isinstance(table, dict) else set()
    assert written == {place for place in key_lines(text) if len(place) < 3}


def test_a_text_that_is_not_toml_raises_nothing() -> None:
    chance = random.Random(20)
    for _ in range(2000):
        key_lines("".join(chance.choices("a.=[]{}\"'\\\n #,1", k=chance.randrange(40))))
    key_lines("x = " + "[" * 100_000)
