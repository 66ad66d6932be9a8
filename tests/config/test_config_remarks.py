"""What has no effect, or was hardly meant, is told in a sentence, and only that."""

from __future__ import annotations

import pytest

from workbench.config import fields, parse_config, to_toml
from workbench.config.rules import NO_EFFECT, warnings
from workbench.presets import shipped_folder

MODEL = '[model]\narchitecture = "gpt2"\n[model.config]\nvocab_size = 320\n'


def said(*overrides: str, text: str = MODEL) -> list[str]:
    return list(warnings(parse_config(text, "my.toml", overrides)))


def test_every_option_that_may_have_no_effect_exists() -> None:
    assert {row.field for row in NO_EFFECT} <= {field.name for field in fields()}


@pytest.mark.parametrize("path", sorted(shipped_folder().glob("*.toml")), ids=lambda path: path.stem)
def test_nothing_is_said_of_a_shipped_preset(path) -> None:  # type: ignore[no-untyped-def]
    assert said(text=path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (["train.epochs=2", "train.steps=1000"], "train.steps = 1000 has no effect: train.epochs decides"),
        (
            ["loss_scale.window=5", "loss_scale.hysteresis=3"],
            'loss_scale.window = 5, loss_scale.hysteresis = 3 have no effect: train.precision is not "fp16"',
        ),
        (["schedule.decay_fraction=0.5"], "schedule.decay_fraction = 0.5 has no effect"),
        (["schedule.type=constant", "schedule.min_ratio=0"], "schedule.min_ratio = 0.0 has no effect"),
        (["schedule.warmup_type=log"], 'schedule.warmup_type = "log" has no effect'),
        (["data.subset=x"], 'data.subset = "x" has no effect'),
        (["sample.tokens=0", "sample.prompt=x"], 'sample.prompt = "x" has no effect'),
        (
            ["train.precision=fp16", "loss_scale.fixed=8", "loss_scale.window=5"],
            "loss_scale.window = 5 has no effect: loss_scale.fixed never moves",
        ),
        (["schedule.warmup_steps=2000"], "schedule.warmup_steps = 2,000: the run ends at step 1,000"),
        (["offload.overlap=delayed", "train.steps=9"], "offload.delay_warmup = 40: the run ends at step 9"),
        (["data.tokenizer=bpe:8192"], "vocab_size = 8192"),
    ],
)
def test_what_was_hardly_meant_is_told(overrides: list[str], sentence: str) -> None:
    (line,) = said(*overrides)
    assert sentence in line


@pytest.mark.parametrize(
    "overrides",
    [
        ["train.epochs=2"],
        ["train.precision=fp16", "loss_scale.window=5"],
        ["schedule.type=wsd", "schedule.decay_fraction=0.5"],
        ["schedule.warmup_steps=2000", "train.epochs=2"],
        ["model.config.vocab_size=50257"],
        ["data.tokenizer=some/folder"],
    ],
)
def test_nothing_is_said_of_what_may_well_be_meant(overrides: list[str]) -> None:
    assert said(*overrides) == []


def test_a_configuration_written_out_is_not_said_to_name_steps_beside_its_epochs() -> None:
    text = to_toml(parse_config(MODEL, "my.toml", ["train.epochs=2"]))
    assert said(text=text) == []
