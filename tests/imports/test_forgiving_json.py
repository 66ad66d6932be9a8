"""JSON as people paste it is read as it was meant, each repair is told with its line, and nonsense gets one message."""

from __future__ import annotations

import json
import math
import time

import pytest

from workbench.errors import ConfigurationError
from workbench.imports.forgiving_json import (
    DEEPEST,
    LONGEST_TEXT,
    MOST_ITEMS,
    MOST_KEYS,
    MOST_REPAIRS,
    read_document,
)

STRICT = {
    "a": {"b": [1, -2.5, 3e8, [], {}], "c": None, "d": True, "e": False},
    "text": 'quo"te \\ \n é 😀 // no comment, "b": 1 }',
    "": 0,
}


@pytest.mark.parametrize("indent", [None, 2])
def test_strict_json_is_read_as_the_standard_library_does_and_nothing_is_mended(indent: int | None) -> None:
    document = read_document(json.dumps(STRICT, indent=indent, ensure_ascii=indent is None), "x.json")
    assert document.values == STRICT
    assert not document.repairs


def test_every_key_outside_arrays_has_its_line() -> None:
    document = read_document('{\n"a": {\n"b": [{"c": 1}],\n"d": 2}, "e": 3}', "x.json")
    assert document.lines == {("a",): 2, ("a", "b"): 3, ("a", "d"): 4, ("e",): 4}


WANTED = {"a": 1, "b": {"c": True}}


@pytest.mark.parametrize(
    ("text", "repairs"),
    [
        ('{"a": 1, // one\n"b": {"c": true}}', [(1, "left out a comment")]),
        ('{"a": 1, // one\r"b": {"c": true}}', [(1, "left out a comment")]),
        (
            '```json\n{"a": 1,\r\n"b": {"c": true}}\n```',
            [(1, "left out a comment"), (4, "left out a comment")],
        ),
        ('{"a": 1, # one\n# two\n"b": {"c": true}}', [(1, "left out comments, up to line 2")]),
        ('{"a": 1, /* one\n two */ "b": {"c": true}}', [(1, "left out comments, up to line 2")]),
        ('{"a": 1,\n"b": {"c": true,},}', [(2, 'left out the comma before "}"')] * 2),
        ('{"a": 1,, "b": {"c": true}}', [(1, "left out a comma too many")]),
        ('{, "a": 1, "b": {"c": true}}', [(1, "left out the comma before the first key")]),
        ('{"a": 1\n"b": {"c": true}}', [(2, "added the missing comma before this key")]),
        ('{"a": 1; "b": {"c": true}}', [(1, 'read ";" as a comma')]),
        (
            '{"a": 1,\n"b": {"c": true',
            [
                (2, 'added the missing "}" of the "{" in line 1'),
                (2, 'added the missing "}" of the "{" in line 2'),
            ],
        ),
        ('{"a": 1,\n"b": {"c": true}\n\n', [(2, 'added the missing "}" of the "{" in line 1')]),
        ('"a": 1, "b": {"c": true}', [(1, "put braces around the whole: it starts with a key")]),
        ('"a": 1, "b": {"c": true}}', [(1, "put braces around the whole: it starts with a key")]),
        (
            '{"a": 1, "b": {"c": true}}}\n]',
            [(1, 'left out a "}" that belongs to nothing'), (2, 'left out a "]"')],
        ),
        (
            '{"a": 1},\n"b": {"c": true}}',
            [(1, 'left out a "," that'), (2, "went on reading: a brace had closed the whole too early")],
        ),
        ('{"a": 7, "a": 1, "b": {"c": true}}', [(1, 'read "a" twice; the last one counts')]),
        ("{'a': 1, 'b': {'c': true}}", [(1, "read single quotes as double ones")] * 3),
        ('{“a”: 1, "b": {"c": true}}', [(1, "read printed quotes as plain ones")]),
        ('{a: 1, "b": {"c": true}}', [(1, "put quotes around the key a")]),
        ('{"a": 1, "b": {"c": True}}', [(1, "read True as true")]),
        ('{"a" = 1, "b": {"c": true}}', [(1, 'read "=" as ":"')]),
        ('{"a" 1, "b": {"c": true}}', [(1, 'added the missing ":" behind a key')]),
        ('{"a": +1, "b": {"c": true}}', [(1, "read +1 as a number")]),
        ('\ufeff{"a": 1,\u00a0"b": {"c": true}}', []),
        ('{"a": 1 ], "b": {"c": true}}', [(1, 'left out a "]" that belongs to nothing')]),
    ],
)
def test_a_repair_gives_what_was_meant_and_is_told_with_its_line(
    text: str, repairs: list[tuple[int, str]]
) -> None:
    document = read_document(text, "x.json")
    assert document.values == WANTED
    assert [repair.line for repair in document.repairs] == [line for line, _ in repairs]
    for repair, (_, what) in zip(document.repairs, repairs, strict=True):
        assert repair.what.startswith(what)


def test_an_array_that_is_not_closed_is_closed_before_the_brace() -> None:
    document = read_document('{"a": [1 2,}', "x.json")
    assert document.values == {"a": [1, 2]}
    assert 'added the missing "]" of the "["' in " ".join(repair.what for repair in document.repairs)


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("2e8", 2e8),
        ("5e-5", 5e-5),
        ("1.", 1.0),
        (".5", 0.5),
        ("0x", None),
        ("Infinity", math.inf),
        ("9" * 5000, math.inf),
    ],
)
def test_numbers_are_read_as_they_are_written(written: str, value: float | None) -> None:
    if value is None:
        with pytest.raises(ConfigurationError, match=r"x\.json:1:7: .* where a value was expected"):
            read_document(f'{{"a": {written}}}', "x.json")
    else:
        assert read_document(f'{{"a": {written}}}', "x.json").values == {"a": value}


@pytest.mark.parametrize(
    ("written", "text"),
    [
        (r'"C:\local\nvme"', "C:\\local\nvme"),
        (r'"\ud83d\ude00"', "😀"),
        (r'"a\ud800b"', "a\ufffdb"),
        (r"'it\'s \"'", "it's \""),
    ],
)
def test_texts_with_odd_escapes_are_mended(written: str, text: str) -> None:
    assert read_document(f'{{"a": {written}}}', "x.json").values == {"a": text}


@pytest.mark.parametrize(
    ("text", "place", "expected"),
    [
        ("", "x.json: ", "is empty"),
        ("[1, 2]", "x.json:1:1: ", 'where "{" was expected'),
        ("train a model", "x.json:1:1: ", 'where "{" was expected'),
        ('{"a":\n  ,}', "x.json:2:3: ", "where a value was expected"),
        ('{"a": 1,\n "b": "open\n}', "x.json:2:12: ", "the closing quote"),
        ('{"a": 1,\n"b":\n', "x.json:2:5: ", "the end of the file where a value was expected"),
        ('{"a": 1,\n"b":  \r\n\r\n', "x.json:2:5: ", "the end of the file where a value was expected"),
        ('{"a": 1}\nand so on', "x.json:2:1: ", "where the end of the file was expected"),
        ('{"a": 1, 2}', "x.json:1:10: ", "a key in quotes"),
        ('{"a": 1_000}', "x.json:1:7: ", "where a value was expected"),
    ],
)
def test_what_cannot_be_mended_is_one_message_with_its_place(text: str, place: str, expected: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        read_document(text, "x.json")
    assert str(caught.value).startswith(place)
    assert expected in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        "{" + '"a":{' * 20_000,
        '{"a":' + "[" * 20_000,
        "{" + ",".join(f'"{at}": 1' for at in range(20_000)) + "}",
        '{"a": 1 ' + " ".join(f'"{at}": 1' for at in range(500)),
        '{"a": "' + "x\\n" * 50_000,
        "{" + "#\n" * 60_000,
        "{" + "/*" * 60_000,
        '{"a": [' + "1," * 60_000,
        '{"a": 1 #\n' + "".join(f',"{at}": 1 #\n\n' for at in range(5000)),
        " " * (LONGEST_TEXT + 1),
    ],
    ids=range(10),
)
def test_a_hostile_text_is_settled_in_under_two_seconds(text: str) -> None:
    start = time.process_time()
    try:
        read_document(text, "x.json")
    except ConfigurationError as error:
        assert str(error).startswith("x.json:")
    assert time.process_time() - start < 2


def test_depth_keys_items_and_repairs_have_their_bounds() -> None:
    deepest = '{"a":' * DEEPEST + "1" + "}" * DEEPEST
    assert read_document(deepest, "x.json").values
    with pytest.raises(ConfigurationError, match="nested"):
        read_document('{"a":' + deepest + "}", "x.json")
    with pytest.raises(ConfigurationError, match=f"more than {MOST_REPAIRS} things"):
        read_document("{" + " ".join(f'"{at}": 1' for at in range(MOST_REPAIRS + 2)) + "}", "x.json")
    with pytest.raises(ConfigurationError, match=f"more than {MOST_KEYS} keys"):
        read_document(json.dumps({str(at): at for at in range(MOST_KEYS + 1)}), "x.json")
    with pytest.raises(ConfigurationError, match=f"more than {MOST_ITEMS} values"):
        read_document(json.dumps({"a": [1] * (MOST_ITEMS + 1)}), "x.json")
