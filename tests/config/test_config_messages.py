"""Every mistake is named with its file, line, key and value, what is wrong, and what would be right."""

from __future__ import annotations

import pytest

from workbench.config import parse_config
from workbench.errors import ConfigurationError

MODEL = '[model]\narchitecture = "gpt2"\n'


def complaints(text: str, *overrides: str) -> list[str]:
    with pytest.raises(ConfigurationError) as caught:
        parse_config(text, "my.toml", overrides)
    return str(caught.value).splitlines()


def only_complaint(text: str, *overrides: str) -> str:
    (line,) = complaints(text, *overrides)
    return line


def test_all_problems_are_told_at_once_in_the_order_of_the_file() -> None:
    lines = complaints(MODEL + "[train]\nsteps = 0\nstepz = 1\nseed = 1.5\n[schedule]\nmin_ratio = 2\n")
    assert [line.split(" ")[0] for line in lines] == ["my.toml:4:", "my.toml:5:", "my.toml:6:", "my.toml:8:"]


def test_an_unknown_key_is_answered_with_the_nearest_one() -> None:
    assert only_complaint(MODEL + "[train]\nmicro_batch = 4\n") == (
        'my.toml:4: train.micro_batch = 4: there is no such key in [train]; did you mean "micro_batch_size"?'
    )


def test_a_key_in_the_wrong_table_is_told_its_own() -> None:
    assert only_complaint(MODEL + "[train]\nlearning_rate = 1e-3\n") == (
        "my.toml:4: train.learning_rate = 0.001: there is no such key in [train]; it belongs in [optimizer]"
    )


def test_a_key_above_all_tables_is_told_where_it_belongs() -> None:
    assert only_complaint("steps = 3\n" + MODEL) == (
        "my.toml:1: steps = 3: there is no such key above the first table; it belongs in [train]"
    )


def test_a_key_like_no_other_is_answered_with_those_that_exist() -> None:
    line = only_complaint(MODEL + "[log]\nxyzzy = 1\n")
    assert line.endswith("the keys in [log] are every, tensorboard")


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ('[model]\npretrainde = "gpt2"\n', 'did you mean "pretrained"?'),
        ('[modle]\narchitecture = "gpt2"\n', "did you mean [model]?"),
        ('architecture = "gpt2"\n[train]\nsteps = 1\n', "it belongs in [model]"),
    ],
)
def test_a_misspelt_model_is_told_and_not_that_there_is_none(text: str, meant: str) -> None:
    assert only_complaint(text).endswith(meant)


def test_an_unknown_table_is_answered_with_the_nearest_one() -> None:
    assert only_complaint(MODEL + "[trian]\nsteps = 3\n") == (
        "my.toml:3: [trian]: there is no such table; did you mean [train]?"
    )


@pytest.mark.parametrize(
    ("written", "wrong"),
    [
        ('steps = "3"', 'train.steps = "3": is a text; must be a whole number from 1 to 1,000,000,000'),
        (
            "steps = 3.0",
            "train.steps = 3.0: is a number with a fraction; must be a whole number from 1 to 1,000,000,000",
        ),
        (
            "steps = true",
            "train.steps = true: is true or false; must be a whole number from 1 to 1,000,000,000",
        ),
        ("steps = [3]", "train.steps = [3]: is an array; must be a whole number from 1 to 1,000,000,000"),
        (
            "steps = 1979-05-27",
            "train.steps = 1979-05-27: is a date or time; must be a whole number from 1 to 1,000,000,000",
        ),
        ("steps = 0", "train.steps = 0: is too small; must be a whole number from 1 to 1,000,000,000"),
        ("deterministic = 1", "train.deterministic = 1: is a whole number; must be true or false"),
        (
            "gradient_clipping = true",
            "train.gradient_clipping = true: is true or false; must be a number from 0",
        ),
        ("gradient_clipping = inf", "train.gradient_clipping = inf: is not finite; must be a number from 0"),
        (
            'precision = "BF16"',
            'train.precision = "BF16": is not known (did you mean "bf16"?); '
            'must be one of "auto", "bf16", "fp16", "fp32"',
        ),
        (
            'device = "gpu"',
            'train.device = "gpu": is not known; '
            'must be "auto", "cpu", "cuda", or a numbered GPU such as "cuda:1"',
        ),
    ],
)
def test_a_wrong_value_is_told_what_it_is_and_what_it_must_be(written: str, wrong: str) -> None:
    assert only_complaint(MODEL + f"[train]\n{written}\n") == f"my.toml:4: {wrong}"


@pytest.mark.parametrize(
    "betas", ["0.9", "[0.9]", "[0.9, 0.95, 1]", "[0.9, 1.0]", '[0.9, "x"]', "[true, 0.9]", "[]"]
)
def test_betas_are_two_numbers_below_one(betas: str) -> None:
    line = only_complaint(MODEL + f"[optimizer]\nbetas = {betas}\n")
    assert line.startswith("my.toml:4: optimizer.betas = ")
    assert line.endswith("must be an array of two numbers, each from 0 to below 1")


@pytest.mark.parametrize("threads", ["0", '"many"', "true", "2.0"])
def test_threads_are_auto_or_a_count_and_complained_of_once(threads: str) -> None:
    line = only_complaint(MODEL + f"[offload]\nthreads = {threads}\n")
    assert line.endswith('must be "auto" or a whole number from 1 to 4,096')


@pytest.mark.parametrize("source", ["[]", "3", '["a", 3]', '[""]'])
def test_a_source_is_a_path_or_several(source: str) -> None:
    line = only_complaint(MODEL + f"[data]\nsource = {source}\n")
    assert line.startswith("my.toml:4: data.source = ")


def test_a_table_that_is_no_table_is_refused() -> None:
    assert only_complaint("train = 5\n" + MODEL) == (
        "my.toml:1: train = 5: is a whole number; must be a table, written [train]"
    )
    assert only_complaint(MODEL + "[[train]]\nsteps = 3\n") == (
        "my.toml:3: train = [{steps = 3}]: is an array; must be a table, written [train]"
    )


def test_a_date_among_the_model_options_is_refused_at_its_line() -> None:
    line = only_complaint(MODEL + "[model.config]\nn_layer = 2\nborn = 1979-05-27\n")
    assert line.startswith("my.toml:5: model.config.born = 1979-05-27: cannot be handed to a model")


def test_lines_are_found_in_inline_tables_and_dotted_keys() -> None:
    text = 'model.architecture = "gpt2"\ntrain = {steps = 0}\noptimizer.eps = 0\n'
    assert [line.split(" ")[0] for line in complaints(text)] == ["my.toml:2:", "my.toml:3:"]


def test_a_syntax_error_is_told_with_line_and_column() -> None:
    assert only_complaint("[model\n") == (
        "my.toml:1:7: is not valid TOML: Expected ']' at the end of a table declaration"
    )


def test_a_syntax_error_at_the_end_is_told_with_the_last_line() -> None:
    for end in ("", "\n", "\n\n"):
        assert only_complaint(f"[data]\nsource = [{end}").startswith("my.toml:2: is not valid TOML: ")


@pytest.mark.parametrize("text", ["x = " + "[" * 100_000, "[model]\nn = " + "9" * 10_000])
def test_a_text_that_the_parser_cannot_hold_is_refused(text: str) -> None:
    assert "my.toml: " in only_complaint(text)


def test_a_long_value_is_cut_short_in_the_message() -> None:
    line = only_complaint(MODEL + '[train]\nsteps = "' + "x" * 10_000 + '"\n')
    assert len(line) < 300


def test_a_message_is_one_line_whatever_the_value_holds() -> None:
    line = only_complaint(MODEL + '[train]\nsteps = "a\\nb\\u2028c\\u009b31m"\n')
    assert line.isprintable()


def test_an_empty_text_is_told_that_no_model_is_named() -> None:
    assert only_complaint("").startswith("my.toml: model.architecture: no model is named")


def test_a_syntax_error_in_a_file_with_a_strange_name_is_one_line() -> None:
    with pytest.raises(ConfigurationError) as caught:
        parse_config("[", "a\nb.toml")
    assert str(caught.value).startswith("a\\u000ab.toml:1")
