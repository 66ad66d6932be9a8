"""JSON as web pages print it is read as it was meant, with a repair for each change; anything else gets one message."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from deepspeed_files import BLOG, INFINITY, TUTORIAL
from mutations import Mutation, change_characters, cut, mutilated, random_bytes, shuffle_lines, soon

from workbench.config import parse_config
from workbench.errors import ConfigurationError
from workbench.imports import import_file, import_text
from workbench.imports.lenient_json import DEEPEST, LONGEST_TEXT, read_document

STRICT = {
    "a": {"b": [1, -2.5, 3e8, [], {}], "c": None, "d": True, "e": False},
    "text": 'quo"te \\ \n é 😀 // no comment, "b": 1 }',
    "": 0,
}
WANTED = {"a": 1, "b": {"c": True}}


@pytest.mark.parametrize("indent", [None, 2])
def test_strict_json_is_read_as_the_standard_library_does_without_a_repair(indent: int | None) -> None:
    document = read_document(json.dumps(STRICT, indent=indent, ensure_ascii=indent is None), "x.json")
    assert (document.values, document.repairs) == (STRICT, ())


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ('{"a": 1, // one\n"b": {"c": true}}', [1]),
        ('{"a": 1, // it\'s {one\r"b": {"c": true}}', [1]),
        ('```json\n{"a": 1,\r\n"b": {"c": true}}\n```', [1]),
        ('{"a": 1, # one\n# two\n"b": {"c": true}}', [1]),
        ('{"a": 1, /* one }\n two */ "b": {"c": true}}', [1]),
        ('{"a": 1,\n"b": {"c": true,},}', [2]),
        ('{"a": 1\n"b": {"c": true}}', [2]),
        ('{"a": 1,\n"b": {"c": true', [2, 2]),
        ('{"a": 1,\n"b": {"c": true}\n\n', [2]),
        ('"a": 1, "b": {"c": true}', [1]),
        ('\n"a": 1, "b": {"c": true}}', [2, 2]),
        ('{"a": 1, "b": {"c": true}}}\n]', [1, 2]),
        ("{'a': 1, 'b': {'c': true}}", [1]),
        ('\ufeff{"a": 1,\u00a0"b": {"c": true}}', []),
    ],
)
def test_a_repair_gives_what_was_meant_and_names_its_line(text: str, lines: list[int]) -> None:
    document = read_document(text, "x.json")
    assert document.values == WANTED
    assert [repair.line for repair in document.repairs] == lines


def test_every_key_outside_arrays_has_its_line() -> None:
    document = read_document('{\n"a": {\n"b": [{"c": 1}],\n"d": 2}, "e": "b: 1",\n"b": 3, // c\n}', "x.json")
    assert document.lines == {("a",): 2, ("a", "b"): 3, ("a", "d"): 4, ("e",): 4, ("b",): 5}


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("", "x.json: "),
        ("[1, 2]", "x.json:1:1: "),
        ("train a model", "x.json:1:"),
        ('{"a":\n  ,}', "x.json:2:3: "),
        ('{"a": 1,\n "b": "open\n}', "x.json:3:1: "),
        ('{"a": 1e400, }', "x.json: "),
        ('{"a": 1}\nand so on', "x.json:2:1: "),
        ('{"a": 1, "a": 2}', 'x.json: "a" '),
        ('{"a": ' + "9" * 5000 + "}", "x.json: "),
        ('{"a":' * DEEPEST + '{"a": 1}' + "}" * DEEPEST, "x.json: "),
    ],
)
def test_a_text_that_cannot_be_read_is_one_message_with_its_place(text: str, place: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        read_document(text, "x.json")
    assert str(caught.value).startswith(place)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        "{" + '"a":{' * 20_000,
        '{"a":' + "[" * 20_000,
        "{" + ",".join(f'"{at}": 1' for at in range(13_000)) + "}",
        '{"a": "' + "x\\n" * 40_000,
        "{" + "#\n" * 60_000,
        "{" + "/*" * 60_000,
        "{" + "]" * 100_000,
        '{"a": [' + "1," * 60_000,
        " " * (LONGEST_TEXT + 1),
    ],
    ids=range(9),
)
def test_a_hostile_text_is_read_or_refused_soon(text: str) -> None:
    with soon():
        try:
            read_document(text, "x.json")
        except ConfigurationError as error:
            assert str(error).startswith("x.json:")


# Whatever is done to a file, importing it ends in a preset or in a message, soon: never in a traceback

FILES = (BLOG, TUTORIAL, INFINITY)
VALUES = (
    *"0 -1 0.5 1e400 -Infinity NaN true False null [] {} [[1]] [0.9,0.99] cpu “cpu” - 1_0 1e 2e8 /*".split(),  # noqa: SIM905
    *('"auto"', '{"enabled": true}', '"\\ud800"', '"\\x"', '"é\u2028"', '"', '"a" "b"'),
    *("9" * 5000, "{" * 60, "[" * 5000),
)


def replace_a_value(text: str, chance: random.Random) -> str:
    colons = [at for at, letter in enumerate(text) if letter == ":"]
    if not colons:
        return text
    start = chance.choice(colons) + 1
    end = next((at for at in range(start, len(text)) if text[at] in ",}\n"), len(text))
    return f"{text[:start]} {chance.choice(VALUES)}{text[end:]}"


def drop_a_mark(text: str, chance: random.Random) -> str:
    marks = [at for at, letter in enumerate(text) if letter in '{}[]",:'] or [0]
    at = chance.choice(marks)
    return text[:at] + text[at + 1 :] or "{"


def add_something(text: str, chance: random.Random) -> str:
    places = [at for at, letter in enumerate(text) if letter in "{,"] or [0]
    at = chance.choice(places) + 1
    added = chance.choice(
        (",", "}", "{", "]", "// c\n", "/*", '"x": 1,', '"lr": 2,', " = ", '"stage": 3,', "\n#\n")
    )
    return text[:at] + added + text[at:]


def shuffle_settings(text: str, chance: random.Random) -> str:
    return shuffle_lines(text.replace(", ", ",\n"), chance)


def repeat(text: str, chance: random.Random) -> str:
    return text * chance.choice((2, 3, 40))


MUTATIONS: tuple[Mutation, ...] = (
    *(change_characters, cut, replace_a_value, replace_a_value),
    *(drop_a_mark, add_something, shuffle_settings, repeat),
)


@pytest.mark.parametrize("seed", range(150))
def test_a_mutilated_file_is_imported_or_refused_with_a_message(seed: int) -> None:
    with soon():
        try:
            made = import_text(mutilated(FILES, MUTATIONS, seed), "mutilated.json", architecture="gpt2")
        except ConfigurationError as error:
            assert all(line.startswith("mutilated.json:") for line in str(error).split("\n"))
            return
    assert bool(made.preset) != bool(made.refused)
    assert all(line.split(":")[0].endswith("mutilated.json") for line in made.refused)
    if made.preset:
        parse_config(made.preset, "made.toml")


@pytest.mark.parametrize("seed", range(10))
def test_a_file_of_random_bytes_is_refused_with_a_message(seed: int, tmp_path: Path) -> None:
    path = tmp_path / "noise.json"
    path.write_bytes(random_bytes(seed))
    with pytest.raises(ConfigurationError, match=r"noise\.json:"):
        import_file(path)
