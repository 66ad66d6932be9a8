"""The text of an input reads back as the value it shows, and text that is no value stays text or is refused."""

from __future__ import annotations

from typing import Any

import pytest

from workbench.config import load_config
from workbench.presets import shipped_folder
from workbench.tui.form.fields import FIELDS, Kind, UnreadableError, as_text, kind_of, parse_text

KINDS: dict[str, Kind] = {
    "train.deterministic": "switch",
    "offload.state_format": "choice",
    "train.steps": "whole",
    "optimizer.learning_rate": "number",
    "description": "text",
    "model.config": "table",
    "offload.threads": "any",
    "optimizer.betas": "any",
    "data.source": "any",
}
TYPED: list[tuple[str, Kind, Any]] = [
    ("10", "whole", 10),
    (" 10 ", "whole", 10),
    ("1.5", "whole", 1.5),
    ("ten", "whole", "ten"),
    ("", "whole", ""),
    ("3e-4", "number", 3e-4),
    ("1", "number", 1),
    ("true", "switch", True),
    ("auto", "any", "auto"),
    ("8", "any", 8),
    ("[0.9, 0.95]", "any", [0.9, 0.95]),
    ('"8"', "any", "8"),
    ("corpus/*.txt", "any", "corpus/*.txt"),
    ("1979-05-27", "any", "1979-05-27"),
    ("a = 1\nb = { c = true }", "table", {"a": 1, "b": {"c": True}}),
    (" spaces stay ", "text", " spaces stay "),
]
SHOWN: list[tuple[Kind, Any]] = [
    *(("any", text) for text in ("8", "true", '["a"]', "auto", "", 'say "so"')),
    *(("number", number) for number in (3e-4, 0.1, 1 / 3, 1e-8, 123456789.125, 0.0)),
]


def test_a_field_has_the_input_of_its_type() -> None:
    assert {name: kind_of(FIELDS[name]) for name in KINDS} == KINDS


def test_defaults_and_shipped_values_read_back_as_they_are() -> None:
    documents = [load_config(path).model_dump() for path in shipped_folder().glob("*.toml")]
    for name, field in FIELDS.items():
        kind = kind_of(field)
        values = [
            field.default,
            *((document.get(field.table) or {}).get(field.key) for document in documents),
        ]
        for value in values:
            if value is not None:
                again = parse_text(as_text(value, kind), kind)
                assert (list(value) if isinstance(value, tuple) else value) == again, name


@pytest.mark.parametrize(("text", "kind", "value"), TYPED)
def test_text_is_read_as_the_field_means_it(text: str, kind: Kind, value: Any) -> None:
    again = parse_text(text, kind)
    assert again == value and isinstance(again, type(value))


@pytest.mark.parametrize(("kind", "value"), SHOWN)
def test_a_value_reads_back_with_its_type_and_every_digit(kind: Kind, value: Any) -> None:
    assert parse_text(as_text(value, kind), kind) == value


def test_a_table_that_is_no_toml_is_refused_with_its_line() -> None:
    with pytest.raises(UnreadableError, match="line 2"):
        parse_text("a = 1\nb = =\n", "table")
