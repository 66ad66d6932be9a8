"""`--set table.key=value`: what it means, and what is said when it is wrong."""

from __future__ import annotations

import pytest

from workbench.config import RunConfig, parse_config
from workbench.errors import ConfigurationError

TEXT = '[model]\narchitecture = "gpt2"\n[model.config]\nn_layer = 4\n[train]\nsteps = 10\n'


def read(*overrides: str) -> RunConfig:
    return parse_config(TEXT, "my.toml", overrides)


def complaint(*overrides: str) -> str:
    with pytest.raises(ConfigurationError) as caught:
        read(*overrides)
    return str(caught.value)


def test_a_value_is_read_as_toml() -> None:
    config = read(
        "train.steps=20", "optimizer.betas=[0.8, 0.9]", "train.deterministic=true", 'train.device="cpu"'
    )
    assert (config.train.steps, config.optimizer.betas, config.train.deterministic) == (20, (0.8, 0.9), True)
    assert config.train.device == "cpu"


@pytest.mark.parametrize("text", ["stdlib", "cuda:1", "a=b", "two words", "", "1\nx = 2", "[half", '"half'])
def test_a_value_that_is_not_toml_is_taken_as_the_text_it_is(text: str) -> None:
    assert read(f"sample.prompt={text}").sample.prompt == text


def test_a_model_option_is_set_without_losing_the_others() -> None:
    assert read("model.config.n_embd=64").model.config == {"n_layer": 4, "n_embd": 64}


def test_all_model_options_are_replaced_when_the_whole_is_set() -> None:
    assert read("model.config={n_embd = 64}").model.config == {"n_embd": 64}


def test_the_description_is_set_without_a_table() -> None:
    assert read("description=mine").description == "mine"


def test_the_last_of_two_values_for_a_key_counts() -> None:
    assert read("train.steps=20", "train.steps=30").train.steps == 30


def test_a_wrong_value_is_blamed_on_the_option_and_not_on_the_file() -> None:
    assert complaint("train.steps=many") == (
        '--set: train.steps = "many": is a text; must be a whole number from 1 to 1,000,000,000'
    )


def test_an_unknown_key_is_answered_with_the_nearest_one() -> None:
    assert complaint("train.step=3") == (
        '--set: train.step = 3: there is no such key in [train]; did you mean "steps"?'
    )


def test_an_unknown_table_is_answered_with_the_nearest_one() -> None:
    assert complaint("optimiser.eps=1e-8") == (
        "--set: [optimiser]: there is no such table; did you mean [optimizer]?"
    )


@pytest.mark.parametrize(
    ("override", "what"),
    [
        ("train.steps", "has no '='"),
        ("=3", "has no name"),
        ("train.=3", "has no name"),
        ("train={steps = 3}", "is a table"),
        ("sample.prompt=\udcff", "is not valid text"),
    ],
)
def test_a_malformed_option_is_shown_and_told_what_it_lacks(override: str, what: str) -> None:
    message = complaint(override)
    assert message.startswith("--set ")
    assert what in message


def test_a_key_below_a_value_is_refused() -> None:
    assert complaint("train.steps.x=1") == "--set train.steps.x=1: train.steps is not a table"


def test_a_key_of_a_table_that_the_file_does_not_have_is_set() -> None:
    assert read("log.every=5").log.every == 5


def test_an_unknown_table_of_the_file_is_blamed_on_the_file_even_when_an_option_adds_to_it() -> None:
    with pytest.raises(ConfigurationError, match=r"^my\.toml:7: \[trian\]"):
        parse_config(TEXT + "[trian]\nx = 1\n", "my.toml", ["trian.y=2"])


def test_a_wrong_value_inside_a_replaced_table_is_blamed_on_the_option() -> None:
    assert complaint("model.config={n_layer = 1979-05-27}").startswith("--set: model.config.n_layer = 1979")


def test_mistakes_in_options_and_in_the_file_are_told_together() -> None:
    with pytest.raises(ConfigurationError) as caught:
        parse_config(TEXT + "seed = -1\n", "my.toml", ["log.every=0", "nonsense"])
    assert [line.split(":")[0] for line in str(caught.value).splitlines()] == [
        "my.toml",
        "--set",
        "--set nonsense",
    ]
