"""JSON as web pages print it is read as it was meant, with a repair for each change; anything else gets one message."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from workbench.errors import ConfigurationError
from workbench.imports import import_text
from workbench.imports.lenient_json import DEEPEST, LONGEST_TEXT, read_document

CONFIGS = Path(__file__).parent / "configs"
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
def test_a_hostile_text_is_read_or_refused_in_under_two_seconds(text: str) -> None:
    start = time.process_time()
    try:
        read_document(text, "x.json")
    except ConfigurationError as error:
        assert str(error).startswith("x.json:")
    assert time.process_time() - start < 2


def test_a_blogs_configuration_imports_as_it_is_printed() -> None:
    """Its braces are lost two levels deep, and it names more GPUs than one only by "auto"."""
    made = import_text((CONFIGS / "blog.json").read_text(), "blog.json", architecture="gpt2")
    assert not made.refused
    verdicts = {verdict.key: verdict.judgement for verdict in made.verdicts}
    for key in (
        "optimizer.params.lr",
        "zero_optimization.stage",
        "zero_optimization.offload_optimizer.device",
        "zero_optimization.overlap_comm",
        "fp16.enabled",
        "gradient_clipping",
    ):
        assert verdicts[key] in ("used", "mapped"), key
    assert "unknown" not in verdicts.values()


def test_a_tutorials_fragment_imports_as_it_is_printed() -> None:
    made = import_text((CONFIGS / "tutorial.json").read_text(), "tutorial.json", architecture="gpt2")
    assert {verdict.key for verdict in made.verdicts} == {
        "zero_optimization.stage",
        "zero_optimization.offload_optimizer.device",
        "zero_optimization.contiguous_gradients",
        "zero_optimization.overlap_comm",
    }
    assert made.preset
