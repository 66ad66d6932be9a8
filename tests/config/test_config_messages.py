"""Every mistake is reported with its file, line, key and value, what is wrong, and what would be right."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from wrong_configurations import MODEL, WRONG

from workbench.config import fields, parse_config
from workbench.config.references import REFERENCES
from workbench.config.rules import CONTRADICTIONS
from workbench.errors import ConfigurationError

STORED = Path(__file__).with_name("messages.txt")


def messages(name: str) -> list[str]:
    text, overrides, _ = WRONG[name]
    with pytest.raises(ConfigurationError) as caught:
        parse_config(text, "my.toml", overrides, look_for=REFERENCES)
    return str(caught.value).splitlines()


@pytest.mark.parametrize("name", WRONG)
def test_every_problem_is_one_line_that_says_where_it_is(name: str) -> None:
    found = messages(name)
    assert len(found) == len(WRONG[name].at), found
    for line, at in zip(found, WRONG[name].at, strict=True):
        assert line.startswith(at) and len(line) < 400


def test_the_words_are_those_that_were_stored() -> None:
    # What is said of a text that is no TOML is the parser's, and another with each version of Python.
    found = "".join(
        f"{line}\n" for name in WRONG if not name.startswith("not TOML") for line in messages(name)
    )
    if os.environ.get("WORKBENCH_UPDATE_MESSAGES"):
        STORED.write_text(found, encoding="utf-8")
    assert found == STORED.read_text(encoding="utf-8"), "read them; WORKBENCH_UPDATE_MESSAGES=1 stores them"


def test_a_file_with_nearly_that_name_is_suggested(tmp_path: Path) -> None:
    (tmp_path / "texts").mkdir()
    with pytest.raises(ConfigurationError, match=f'did you mean "{tmp_path}/texts"'):
        parse_config(MODEL, "my.toml", [f"data.source={tmp_path}/text"], look_for=REFERENCES)


def test_every_rule_and_look_up_is_about_fields_that_exist_and_is_met_by_a_wrong_configuration() -> None:
    known = {field.name for field in fields()} | {field.table for field in fields()}
    assert {name for rule in CONTRADICTIONS for name in rule.fields} <= known
    stored = STORED.read_text(encoding="utf-8")
    for rule in CONTRADICTIONS:
        assert f"{rule.wrong} (" in stored or f"{rule.wrong}; " in stored, rule.wrong
