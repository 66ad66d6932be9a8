"""Contradictions are refused with a sentence, never ignored."""

from __future__ import annotations

import pytest

from workbench.config import fields, parse_config
from workbench.config.rules import CONTRADICTIONS
from workbench.errors import ConfigurationError

MODEL = '[model]\narchitecture = "gpt2"\n'


def complaint(*overrides: str, text: str = MODEL) -> str:
    with pytest.raises(ConfigurationError) as caught:
        parse_config(text, "my.toml", overrides)
    return str(caught.value)


@pytest.mark.parametrize(
    ("overrides", "wrong"),
    [
        (("model.architecture=",), "no model is named"),
        (("model.revision=main",), "a revision is named of nothing"),
        (("data.tokenizer=bpe:6",), "a whole number from 257"),
        (("data.tokenizer=bpe:",), "no BPE of such a size can be trained"),
        (
            ("offload.weights=host", "train.activation_checkpointing=false"),
            "weights that leave the device cannot be trained without activation checkpointing",
        ),
        (("offload.state=disk",), "the disk tier has no folder"),
        (("offload.weights=host", "offload.state=device"), "the state cannot stay on the device"),
        (("offload.weights=disk", "offload.state=host"), "the state is larger than they are"),
        (("offload.state_format=half", "offload.state=device"), "on the device the state is kept exact"),
        (
            ("offload.device_fraction=0.5", "offload.state=device"),
            "all of the state is on the device already",
        ),
        (
            ("offload.overlap=delayed", "offload.weights=disk", "offload.state=disk", "offload.disk_path=/d"),
            "a delayed update keeps the weights twice",
        ),
        (
            ("offload.activations=host", "train.activation_checkpointing=false"),
            "what moves to the host is what activation checkpointing keeps",
        ),
    ],
)
def test_fields_that_contradict_each_other_are_refused(overrides: tuple[str, ...], wrong: str) -> None:
    assert wrong in complaint(*overrides)


def test_a_contradiction_is_reported_at_the_line_of_its_field() -> None:
    text = MODEL + '[offload]\nweights = "disk"\nstate = "host"\ndisk_path = "/tmp"\n'
    assert "my.toml:5: offload.state = " in complaint(text=text)


def test_no_contradiction_is_invented_about_a_field_that_is_ill_formed() -> None:
    assert "cannot stay" not in complaint("offload.weights=host", "offload.state=many")


def test_a_run_may_end_while_it_still_warms_up() -> None:
    overrides = ("train.steps=10", "schedule.warmup_steps=11")
    assert parse_config(MODEL, "my.toml", overrides).schedule.warmup_steps == 11


def test_a_loss_scale_that_would_start_below_its_minimum_is_refused() -> None:
    message = complaint("loss_scale.minimum=128", "loss_scale.initial_power=6")
    assert "loss_scale.minimum = 128" in message and "at most 2 to that power" in message
    parse_config(
        MODEL, "my.toml", ["loss_scale.minimum=64", "loss_scale.initial_power=6", "loss_scale.fixed=8"]
    )


@pytest.mark.parametrize("fraction", ["0", "0.51", "-0.1"])
def test_the_validation_share_lies_above_zero_and_at_most_at_a_half(fraction: str) -> None:
    assert "above 0 and up to 0.5" in complaint(f"data.validation_fraction={fraction}")


@pytest.mark.parametrize(
    "override",
    [
        *(f"offload.state={state}" for state in ("device", "host", "auto")),
        *(f"offload.weights={weights}" for weights in ("device", "host", "auto")),
        *(f"offload.overlap={overlap}" for overlap in ("serial", "exact", "delayed")),
        *(f"offload.activations={place}" for place in ("device", "host")),
        "offload.device_fraction=0.5",
        "offload.delay_warmup=10",
        "offload.disk_path=/fast",
        *(f"offload.state_format={state_format}" for state_format in ("exact", "half", "compact")),
        *(f"optimizer.type={kind}" for kind in ("adamw", "adam")),
        *(f"train.precision={precision}" for precision in ("auto", "fp32", "bf16", "fp16")),
        "log.tensorboard=true",
        *(f"schedule.type={schedule}" for schedule in ("constant", "linear", "cosine", "wsd")),
    ],
)
def test_every_choice_is_accepted(override: str) -> None:
    parse_config(MODEL, "my.toml", [override])


@pytest.mark.parametrize("weights", ["device", "host", "disk", "auto"])
@pytest.mark.parametrize("state_format", ["exact", "half", "compact"])
def test_state_on_disk_goes_with_weights_anywhere_and_with_every_format(
    weights: str, state_format: str
) -> None:
    wanted = (f"offload.weights={weights}", "offload.state=disk", f"offload.state_format={state_format}")
    assert parse_config(MODEL, "my.toml", (*wanted, "offload.disk_path=/fast")).offload.state == "disk"


@pytest.mark.parametrize("state", ["host", "disk", "auto"])
@pytest.mark.parametrize("weights", ["device", "host", "auto"])
def test_a_share_on_the_device_goes_with_state_and_weights_anywhere_else(weights: str, state: str) -> None:
    wanted = (f"offload.weights={weights}", f"offload.state={state}", "offload.device_fraction=0.25")
    config = parse_config(MODEL, "my.toml", (*wanted, "offload.disk_path=/fast"))
    assert config.offload.device_fraction == 0.25


def test_every_rule_is_about_fields_that_exist() -> None:
    names = {field.name for field in fields()} | {field.table for field in fields()}
    assert {name for rule in CONTRADICTIONS for name in rule.fields} <= names
