"""A draft is its text with the changed values in it, and nothing else."""

from __future__ import annotations

import pytest

from workbench.config import parse_config
from workbench.tui.form.draft import Draft

TEXT = """\
# my preset
description = "mine"   # one line

[model]
architecture = "gpt2"
[model.config]         # sizes
n_layer = 4            # blocks
n_embd = 64

[train]
# how long
steps = 10             # few
"""


def draft(text: str = TEXT) -> Draft:
    return Draft(text, "mine.toml")


def test_without_changes_the_text_is_the_same_to_the_byte() -> None:
    assert draft().toml() == TEXT
    assert draft().changed == ()


def test_a_changed_value_changes_its_line_and_keeps_every_comment() -> None:
    made = draft()
    made.type("train.steps", "20")
    assert made.toml() == TEXT.replace("steps = 10 ", "steps = 20 ")
    assert made.changed == ("train.steps",)


def test_a_field_that_the_preset_does_not_name_is_added_and_taken_away_again() -> None:
    made = draft()
    made.type("offload.state_format", "half")
    made.type("train.seed", "7")
    assert parse_config(made.toml(), "").offload.state_format == "half"
    assert parse_config(made.toml(), "").train.seed == 7
    made.reset("offload.state_format")
    made.reset("train.seed")
    assert made.toml() == TEXT
    assert made.changed == ()


def test_setting_a_default_that_is_not_written_writes_nothing() -> None:
    made = draft()
    made.type("checkpoint.keep", "2")
    assert made.toml() == TEXT


def test_the_models_sizes_change_key_by_key() -> None:
    made = draft()
    made.type("model.config", "n_layer = 8\nn_embd = 64\nn_head = 2")
    assert "n_layer = 8            # blocks" in made.toml()
    assert parse_config(made.toml(), "").model.config == {"n_layer": 8, "n_embd": 64, "n_head": 2}


def test_reset_gives_back_what_the_preset_says_and_not_the_default() -> None:
    made = draft()
    made.type("train.steps", "99")
    made.reset("train.steps")
    assert made.value("train.steps") == 10


def test_what_is_typed_stays_while_it_is_no_value_and_is_a_problem() -> None:
    made = draft()
    made.type("model.config", "n_layer =")
    assert made.typed_text("model.config") == "n_layer ="
    (problem,) = made.check().problems
    assert problem.field == "model.config" and "is not valid TOML" in problem.words
    assert made.config is None
    assert made.toml() == TEXT
    made.type("model.config", "n_layer = 1")
    assert made.config is not None


def test_a_table_that_is_optional_goes_with_its_last_field() -> None:
    made = draft()
    made.type("adapter.rank", "4")
    assert made.config is not None and made.config.adapter is not None and made.config.adapter.rank == 4
    made.reset("adapter.rank")
    assert made.config is not None and made.config.adapter is None


def test_a_preset_with_errors_is_edited_until_it_has_none() -> None:
    made = draft(TEXT.replace("steps = 10 ", 'steps = "x" ').replace("[train]", "[train]\nstep = 5"))
    assert {problem.field for problem in made.check().problems} == {"train.steps", ""}
    made.type("train.steps", "10")
    assert made.drop_unknown() == 1
    assert made.config == draft().config
    assert "# few" in made.toml() and "step = 5" not in made.toml()
    assert parse_config(made.toml(), "") == draft().config


def test_an_ill_formed_value_can_be_set_to_its_default() -> None:
    made = draft(TEXT.replace("steps = 10 ", 'steps = "x" '))
    made.type("train.steps", "1000")
    assert parse_config(made.toml(), "").train.steps == 1000


def test_a_table_that_was_written_as_a_value_becomes_one() -> None:
    made = draft('log = 3\n[model]\narchitecture = "gpt2"\n')
    made.type("log.every", "5")
    assert parse_config(made.toml(), "").log.every == 5


def test_a_text_that_is_no_toml_says_where_and_is_left_alone() -> None:
    made = draft("[model\n")
    assert "mine.toml:1" in made.unreadable
    assert made.config is None and made.toml() == "[model\n"


def test_a_text_from_an_editor_is_compared_with_the_preset() -> None:
    made = Draft(TEXT.replace("steps = 10 ", "steps = 11 "), "mine.toml", preset=TEXT)
    assert made.changed == ("train.steps",)
    made.reset("train.steps")
    assert made.toml() == TEXT


@pytest.mark.parametrize(
    ("field", "text"), [("train.gradient_clipping", "1"), ("optimizer.betas", "[0.9, 0.95]")]
)
def test_the_same_value_in_other_words_is_no_change(field: str, text: str) -> None:
    made = draft()
    made.type(field, text)
    assert not made.is_changed(field)


def test_true_and_one_are_two_values() -> None:
    made = draft(TEXT + "deterministic = true\n")
    made.set("train.deterministic", 1)
    assert made.is_changed("train.deterministic")
