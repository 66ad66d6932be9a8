"""A form finds the problems that `parse_config` finds, each at its field."""

from __future__ import annotations

from pathlib import Path

import pytest
import tomllib

from workbench.config import load_config, parse_config
from workbench.config.references import REFERENCES
from workbench.config.rules import CONTRADICTIONS, warnings
from workbench.errors import ConfigurationError
from workbench.presets import shipped_folder
from workbench.tui.form.problems import check, check_references

MODEL = '[model]\narchitecture = "gpt2"\n'

WRONG = {
    "a value of the wrong type": ('[train]\nsteps = "ten"', ["train.steps"]),
    "a value out of range": ("[train]\nsteps = 0\nseed = -1", ["train.steps", "train.seed"]),
    "a choice that there is not": ('[offload]\nstate = "cloud"', ["offload.state"]),
    "a number that is not finite": ("[optimizer]\nlearning_rate = nan", ["optimizer.learning_rate"]),
    "an unknown key": ("[train]\nstep = 1", [""]),
    "an unknown table": ("[trian]\nsteps = 1", [""]),
    "a key above the tables": ("steps = 1", [""]),
    "a table that is none": ("train = 3", [""]),
    "an array with something else in it": ("[optimizer]\nbetas = [1, 2, 3]", ["optimizer.betas"]),
    "a contradiction": ('[offload]\nstate = "device"\nstate_format = "half"', ["offload.state_format"]),
    "a contradiction of three": ('[offload]\nstate = "disk"', ["offload.disk_path"]),
    "several at once": ("[train]\nsteps = 0\n[log]\nevery = 0\nx = 1", ["train.steps", "log.every", ""]),
}


def write(words: str) -> str:
    """The model's table goes in front of the other tables, behind what stands above all."""
    above, bracket, rest = words.partition("[") if not words.startswith("[") else ("", "[", words[1:])
    return f"{above}\n{MODEL}{bracket}{rest}"


@pytest.mark.parametrize("name", WRONG)
def test_a_problem_is_found_at_its_field(name: str) -> None:
    words, fields = WRONG[name]
    config, problems = check(tomllib.loads(write(words)))
    assert config is None
    assert sorted(problem.field for problem in problems) == sorted(fields)


@pytest.mark.parametrize("name", WRONG)
def test_the_words_are_those_of_the_command_line(name: str) -> None:
    text = write(WRONG[name][0])
    with pytest.raises(ConfigurationError) as refused:
        parse_config(text, "preset")
    said = str(refused.value).splitlines()
    problems = check(tomllib.loads(text)).problems
    assert len(said) == len(problems)
    for problem in problems:
        if problem.field:
            assert any(line.endswith(problem.words) for line in said), (problem.words, said)


@pytest.mark.parametrize("preset", sorted(shipped_folder().glob("*.toml")), ids=lambda path: path.stem)
def test_what_is_right_has_no_problems_and_is_the_same_configuration(preset: Path) -> None:
    text = preset.read_text()
    config, problems = check(tomllib.loads(text))
    assert not problems
    assert config == parse_config(text, "preset")


def test_every_rule_is_about_fields_that_a_form_has() -> None:
    from workbench.tui.form.fields import FIELDS

    named = {field for rule in CONTRADICTIONS for field in rule.fields}
    assert named <= set(FIELDS)


@pytest.mark.parametrize(
    ("words", "unknown"),
    [("[train]\nstep = 1", True), ("[trian]\na = 1", True), ("[train]\nsteps = 0", False)],
)
def test_what_can_be_dropped_is_told_from_what_can_be_mended(words: str, unknown: bool) -> None:
    (problem,) = check(tomllib.loads(MODEL + words)).problems
    assert problem.is_unknown is unknown


def test_a_wrong_value_inside_the_models_table_is_told_at_that_field_by_its_name() -> None:
    (problem,) = check({"model": {"architecture": "gpt2", "config": {"rate": float("inf")}}}).problems
    assert problem.field == "model.config"
    assert problem.words.startswith("rate = inf: cannot be passed to a model")


def test_an_empty_input_is_called_empty() -> None:
    (problem,) = check({"model": {"architecture": "gpt2"}, "train": {"steps": ""}}).problems
    assert problem.words.startswith("is empty; must be a whole number")


@pytest.mark.parametrize("text", ["model = 3", "model = 3\n[offload]\nstate = 'disk'", MODEL + "offload = 3"])
def test_a_table_that_is_none_is_one_problem_and_breaks_no_rule_besides(text: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        parse_config(text, "preset")
    problems = check(tomllib.loads(text)).problems
    assert len(problems) == len(str(refused.value).splitlines())


def test_a_check_of_references_finds_what_config_check_refuses_each_at_its_field(tmp_path: Path) -> None:
    preset = tmp_path / "own.toml"
    preset.write_text(
        f"""\
[model]
architecture = "gpt22"
[data]
source = ["stdlib", "{tmp_path}/gone.txt"]
tokenizer = "./no-tokenizer"
[offload]
state = "disk"
disk_path = "{tmp_path}/no-disk"
"""
    )
    missing = check_references(tomllib.loads(preset.read_text())).missing
    assert [each.field for each in missing] == [
        "model.architecture",
        "data.source",
        "data.tokenizer",
        "offload.disk_path",
    ]
    assert missing[1].words.startswith(f'"{tmp_path}/gone.txt": there is no such file or folder; ')
    with pytest.raises(ConfigurationError) as refused:
        load_config(preset, look_for=REFERENCES)
    assert len(str(refused.value).splitlines()) == len(missing)


def test_a_check_of_references_says_nothing_again_that_is_wrong_already() -> None:
    values = {"model": {"architecture": 3}, "data": {"source": "gone.txt", "tokenizer": 7}}
    found = check_references(values)
    assert [each.field for each in found.missing] == ["data.source"] and not found.warnings


def test_the_field_warnings_are_those_of_config_check() -> None:
    text = (
        f'{MODEL}[model.config]\nvocab_size = 300\n[data]\ntokenizer = "bpe:512"\n'
        '[schedule]\nwarmup_steps = 7\n[train]\nsteps = 5\n[offload]\noverlap = "delayed"\n'
    )
    found = check_references(tomllib.loads(text)).warnings
    told = list(warnings(parse_config(text, "own")))
    assert len(found) == len(told) == 3
    assert set(found) == {"schedule.warmup_steps", "offload.delay_warmup", "model.config"}
    assert all(sentence.endswith(words) for sentence, words in zip(told, found.values(), strict=True))
