"""What stands in an input reads back as the value it shows, and what is no value is told or left as a text."""

from __future__ import annotations

from typing import Any

import pytest

from workbench.config import load_config
from workbench.presets import shipped_folder
from workbench.tui.form.draft import FIELDS
from workbench.tui.form.values import Kind, UnreadableError, kind_of, shown, typed


def kinds() -> dict[str, Kind]:
    return {name: kind_of(field) for name, field in FIELDS.items()}


def test_every_kind_of_input_is_used_by_the_fields_that_need_it() -> None:
    found = kinds()
    assert found["train.deterministic"] == "switch"
    assert found["offload.state_format"] == "choice"
    assert found["train.steps"] == "whole"
    assert found["optimizer.learning_rate"] == "number"
    assert found["description"] == "text"
    assert found["model.config"] == "table"
    assert found["offload.threads"] == found["optimizer.betas"] == found["data.source"] == "any"


@pytest.mark.parametrize("name", FIELDS)
def test_defaults_and_shipped_values_read_back_as_they_are(name: str) -> None:
    kind = kind_of(FIELDS[name])
    values = [FIELDS[name].default]
    for preset in shipped_folder().glob("*.toml"):
        config: Any = load_config(preset)
        for part in name.split("."):
            config = getattr(config, part, None)
        values += [] if config is None else [config]
    for value in values:
        again = typed(shown(value, kind), kind)
        assert (list(value) if isinstance(value, tuple) else value) == again


@pytest.mark.parametrize(
    ("text", "kind", "value"),
    [
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
    ],
)
def test_what_is_typed_is_read_as_the_field_means_it(text: str, kind: Kind, value: Any) -> None:
    again = typed(text, kind)
    assert again == value and isinstance(again, type(value))


@pytest.mark.parametrize("value", ["8", "true", '["a"]', "auto", "", 'say "so"'])
def test_a_text_that_looks_like_a_value_stays_a_text(value: str) -> None:
    assert typed(shown(value, "any"), "any") == value


@pytest.mark.parametrize("number", [3e-4, 0.1, 1 / 3, 1e-8, 123456789.125, 0.0])
def test_no_digit_of_a_number_is_lost(number: float) -> None:
    assert typed(shown(number, "number"), "number") == number


def test_a_table_that_is_no_toml_says_where() -> None:
    with pytest.raises(UnreadableError, match="line 2"):
        typed("a = 1\nb = =\n", "table")
