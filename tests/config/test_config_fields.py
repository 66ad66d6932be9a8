"""Every field is documented once, completely, and in the words that everything else is generated from."""

from __future__ import annotations

import re

import pytest

from workbench.config import DocumentedField, RunConfig, fields, parse_config, to_toml
from workbench.config.schema import TABLES

FIELDS = list(fields())


@pytest.mark.parametrize("field", FIELDS, ids=lambda field: field.name)
def test_a_field_has_one_sentence_of_help(field: DocumentedField) -> None:
    assert re.fullmatch(r"[A-Z].*[^.]\.", field.help), field.help
    assert not re.search(r"\. [A-Z]", field.help), field.help


@pytest.mark.parametrize("field", FIELDS, ids=lambda field: field.name)
def test_a_number_has_a_lower_bound(field: DocumentedField) -> None:
    if field.type in ("a number", "a whole number"):
        assert field.minimum is not None
        assert field.range


@pytest.mark.parametrize("field", FIELDS, ids=lambda field: field.name)
def test_a_default_lies_in_its_range(field: DocumentedField) -> None:
    if field.choices:
        assert field.default in field.choices
    if field.minimum is not None:
        assert field.default >= field.minimum
    if field.maximum is not None:
        assert field.default <= field.maximum


def test_counts_have_a_unit() -> None:
    units = {field.name: field.unit for field in FIELDS}
    for name in ("train.steps", "schedule.warmup_steps", "evaluate.every", "checkpoint.every", "log.every"):
        assert units[name] == "steps"
    assert units["data.sequence_length"] == "tokens"
    assert units["offload.chunk_mib"] == "MiB"


def test_every_table_of_a_run_is_documented() -> None:
    assert ["description", *TABLES] == list(RunConfig.model_fields)


def test_every_key_of_every_table_is_documented() -> None:
    documented = {(field.table, field.key) for field in FIELDS}
    assert documented == {("", "description")} | {
        (table, key) for table, model in TABLES.items() for key in model.model_fields
    }


def test_the_names_are_those_of_the_design() -> None:
    names: dict[str, list[str]] = {}
    for field in FIELDS:
        names.setdefault(field.table, []).append(field.key)
    assert names == {
        "": ["description"],
        "model": ["architecture", "pretrained", "revision", "trust_remote_code", "config"],
        "data": [
            "source",
            "subset",
            "split",
            "text_field",
            "loss_on",
            "tokenizer",
            "sequence_length",
            "separate_documents",
            "validation_fraction",
        ],
        "train": [
            "device",
            "steps",
            "epochs",
            "micro_batch_size",
            "gradient_accumulation",
            "gradient_clipping",
            "precision",
            "activation_checkpointing",
            "seed",
            "deterministic",
        ],
        "optimizer": ["type", "learning_rate", "betas", "eps", "weight_decay"],
        "schedule": [
            "type",
            "warmup_steps",
            "warmup_type",
            "warmup_ratio",
            "min_ratio",
            "decay_fraction",
            "total_steps",
        ],
        "loss_scale": ["fixed", "initial_power", "window", "hysteresis", "minimum"],
        "offload": [
            "weights",
            "state",
            "device_fraction",
            "state_format",
            "overlap",
            "delay_warmup",
            "activations",
            "chunk_mib",
            "threads",
            "disk_path",
        ],
        "evaluate": ["every", "tokens"],
        "sample": ["every", "prompt", "tokens"],
        "checkpoint": ["every", "keep", "keep_every", "keep_best"],
        "log": ["every", "tensorboard"],
        "adapter": ["type", "rank", "alpha", "dropout", "targets"],
    }


def test_the_documented_defaults_are_those_that_apply() -> None:
    resolved = parse_config('[model]\narchitecture = "gpt2"\n', "x")
    assert "architecture" in to_toml(resolved)
    for field in FIELDS:
        if field.table not in ("", "adapter") and field.name != "model.architecture":
            assert getattr(getattr(resolved, field.table), field.key) == field.default
