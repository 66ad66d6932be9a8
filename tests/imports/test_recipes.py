"""Configurations of five tools: every key has a verdict, and what is not refused becomes the preset that is meant."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from real_configurations import AC, AX, LF_FULL, LF_ZERO, REAL, STAGE_2, Real

from workbench.cli import main
from workbench.config import parse_config
from workbench.errors import ConfigurationError
from workbench.imports import Imported, import_text


def imported(tool: str, keys: dict[str, Any], folder: Path = Path()) -> Imported:
    text = json.dumps(keys) if tool == "DeepSpeed" else yaml.safe_dump(keys, sort_keys=False)
    return import_text(text, str(folder / ("ds.json" if tool == "DeepSpeed" else "recipe.yaml")))


def leaves(keys: dict[str, Any], at: str = "") -> set[str]:
    found = set()
    for key, value in keys.items():
        found |= leaves(value, f"{at}{key}.") if isinstance(value, dict) and value else {f"{at}{key}"}
    return found


def test_there_are_sixty() -> None:
    assert len(REAL) >= 60


@pytest.mark.parametrize(("tool", "name"), REAL, ids=[": ".join(each) for each in REAL])
def test_a_real_configuration(tool: str, name: str) -> None:
    real: Real = REAL[tool, name]
    made = imported(tool, real.keys)
    assert made.tool == tool
    judged = {verdict.key: verdict for verdict in made.verdicts}
    assert leaves(real.keys) <= judged.keys()
    assert {key for key, verdict in judged.items() if verdict.judgement == "unknown"} == set(real.unknown)
    refused = {
        key for key, verdict in judged.items() if verdict.judgement == "refused" and not verdict.within
    }
    assert refused == set(real.refused)
    assert bool(made.preset) is not bool(real.refused)
    if not made.preset:
        return
    config = parse_config(
        made.preset, "preset", () if made.names_model else ("model.architecture=gpt2",)
    ).model_dump()
    for field, value in real.fields.items():
        table, _, key = field.partition(".")
        assert (config[table][key] if key else config[table]) == value, field


def test_a_schedule_ends_where_the_file_says() -> None:
    kwargs = {"lr_scheduler_type": "cosine_with_min_lr", "lr_scheduler_kwargs": {"min_lr_rate": 0.25}}
    for tool, keys, ratio in (
        ("LLaMA-Factory", {**LF_FULL, **kwargs}, 0.25),
        ("LLaMA-Factory", {**LF_FULL, "lr_scheduler_type": "linear"}, 0.0),
        ("LLaMA-Factory", {**LF_FULL, "lr_scheduler_type": "constant"}, 0.1),
        ("Axolotl", {**AX, "cosine_min_lr_ratio": 0.2}, 0.2),
    ):
        assert parse_config(imported(tool, keys).preset, "preset").schedule.min_ratio == ratio


@pytest.mark.parametrize("tool", ["LLaMA-Factory", "Axolotl", "Accelerate"])
def test_the_deepspeed_file_that_a_recipe_names_is_read(tool: str, tmp_path: Path) -> None:
    content = {**LF_ZERO, "zero_optimization": {**STAGE_2, "offload_optimizer": {"device": "cpu"}}}
    (tmp_path / "z2.json").write_text(json.dumps(content))
    keys = {
        "LLaMA-Factory": {**LF_FULL, "deepspeed": "examples/z2.json"},
        "Axolotl": {**AX, "deepspeed": "deepspeed_configs/z2.json"},
        "Accelerate": {**AC, "deepspeed_config": {"deepspeed_config_file": "z2.json"}},
    }[tool]
    made = imported(tool, keys, tmp_path)
    assert (
        'state = "host"' in made.preset
        and "z2.json: zero_optimization.offload_optimizer.device" in made.preset
    )
    (tmp_path / "z2.json").write_text(
        json.dumps({**content, "sparse_gradients": True, "zero_optimization": {"stage": 7}})
    )
    assert "stage = 7" in imported(tool, keys, tmp_path).refused[0]


@pytest.mark.parametrize(
    ("tool", "key", "value", "words"),
    [
        ("LLaMA-Factory", "max_samples", 1000, "all records are read; leave it out"),
        ("LLaMA-Factory", "learning_rat", 1e-5, 'did you mean "learning_rate"?'),
        ("LLaMA-Factory", "num_train_epoch", 2.0, 'did you mean "num_train_epochs"?'),
        ("Axolotl", "val_set_siz", 0.1, 'did you mean "val_set_size"?'),
        ("torchtune", "max_steps_per_epoch", 5, "epochs are whole"),
    ],
)
def test_a_key_that_would_change_the_result_is_refused(tool: str, key: str, value: Any, words: str) -> None:
    base = {"LLaMA-Factory": LF_FULL, "Axolotl": AX, "torchtune": REAL["torchtune", "full"].keys}[tool]
    [refused] = imported(tool, {**base, key: value}).refused
    assert key in refused and words in refused


def test_a_misspelling_of_a_key_without_effect_is_left_out() -> None:
    [verdict] = [
        each
        for each in imported("LLaMA-Factory", {**LF_FULL, "plot_los": True}).verdicts
        if each.key == "plot_los"
    ]
    assert verdict.judgement == "unknown" and 'did you mean "plot_loss"?' in verdict.reason


def test_data_that_is_named_elsewhere_decides_the_source() -> None:
    verdicts = {each.key: each for each in imported("LLaMA-Factory", LF_FULL).verdicts}
    assert verdicts["dataset"].judgement == "mapped" and verdicts["dataset"].fields == ("data.source",)
    assert "--set data.source=NAME" in verdicts["dataset"].reason


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: &x [1]\nb: *x\nbase_model: y\n", "recipe.yaml:2: refers to *x; write the value out"),
        ("base_model: [1\n", "is not YAML"),
        ("- base_model\n", "expected a mapping"),
        ("", "expected a mapping"),
        ("base_model: " + "[" * 40 + "]" * 40, "nested deeper"),
        ("base_model: !!python/object/apply:os.system ['true']\n", "must be a string"),
        ("apples: 1\npears: 2\n", 'has keys such as "apples", "pears", and is of no tool that is read here: DeepSpeed'),
        ("x" * 200_000, "too large"),
    ],
)  # fmt: skip
def test_what_is_no_recipe_is_refused_in_a_sentence(text: str, words: str) -> None:
    try:
        refused = "\n".join(import_text(text, "recipe.yaml").refused)
    except ConfigurationError as error:
        refused = str(error)
    assert words in refused


def test_a_number_without_a_dot_is_a_number() -> None:
    made = import_text("base_model: gpt2\nlearning_rate: 2e-5\n", "recipe.yaml")
    assert "learning_rate = 2e-05" in made.preset


def test_an_object_in_a_page_is_read_and_its_lines_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# How to train\n\nSet {this} first.\n\n```json\n"
        '{\n  "train_batch_size": 8,\n  "zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}}\n}\n'
        "```\n\nThen run {it}.\n"
    )
    assert main(["import", str(page), "--architecture", "gpt2", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert parse_config(report["preset"], "preset").offload.state == "host"
    assert {each["key"]: each["line"] for each in report["keys"]}["train_batch_size"] == 7
    assert "read the object that begins here, and not the text around it" in report["repairs"][0]["what"]


def test_a_json_of_another_program_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "package.json"
    path.write_text('{"name": "x", "scripts": {"build": "y"}}')
    assert main(["import", str(path)]) == 2
    assert (
        'has keys such as "name", "scripts", and is of no tool that is read here' in capsys.readouterr().err
    )
