"""Runs with frozen parameters, parameters without decay and scaled learning rates, from the configuration on."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from workbench.config import parse_config
from workbench.errors import ConfigurationError
from workbench.profiles.meta_model import count_parts, meta_model
from workbench.profiles.model_profile import model_profile_key, model_table
from workbench.runs import RunDirectory
from workbench.training.command import run as train

TINY = [
    "model.config.n_layer=2",
    "model.config.n_embd=32",
    "model.config.n_positions=32",
    "train.device=cpu",
    "train.micro_batch_size=2",
    "data.sequence_length=32",
    "data.tokenizer=bytes",
    "schedule.type=constant",
    "schedule.warmup_steps=0",
    "optimizer.learning_rate=1e-2",
    "evaluate.tokens=64",
    "sample.tokens=0",
]
GROUPS = [
    'model.freeze=["*.h.0.ln_1.*", "*.wpe.*"]',
    'optimizer.no_decay=["*.wte.*"]',
    'optimizer.learning_rate_scales={"*.h.1.*" = 0.1}',
]


def trained(folder: Path, text: Path, *options: str, resume: str | None = None) -> RunDirectory:
    words = [*TINY, *GROUPS, f"data.source={text}", *options]
    assert train(preset=None if resume else "quickstart", overrides=words, runs=folder, resume=resume) == 0
    return RunDirectory.list(folder)[-1]


def weights(run: RunDirectory, step: int) -> dict[str, torch.Tensor]:
    return load_file(run.checkpoints / f"step-{step:08}" / "model.safetensors")


def test_a_resumed_run_has_the_bits_of_one_that_never_stopped(tmp_path: Path, text_file: Path) -> None:
    straight = trained(tmp_path / "straight", text_file, "train.steps=4", "checkpoint.every=2")
    stopped = trained(tmp_path / "stopped", text_file, "train.steps=2")
    trained(tmp_path / "stopped", text_file, "train.steps=4", resume=stopped.name)
    half, whole, resumed = weights(straight, 2), weights(straight, 4), weights(stopped, 4)
    assert whole.keys() == resumed.keys()
    for name, weight in whole.items():
        assert torch.equal(weight, resumed[name]), name
        frozen = ".h.0.ln_1." in name or ".wpe." in name
        assert torch.equal(weight, half[name]) == frozen, name


@pytest.mark.parametrize(
    ("option", "told"),
    [
        (
            'model.freeze=["*.wtf.*"]',
            'model.freeze: no parameter has a name like "*.wtf.*"; names are such as "',
        ),
        ('model.freeze=["*"]', "every parameter is frozen, and nothing is left to train"),
        ('optimizer.no_decay=["x"]', 'optimizer.no_decay: no parameter has a name like "x"'),
        (
            'optimizer.learning_rate_scales={"x" = 2.0}',
            'learning_rate_scales: no parameter has a name like "x"',
        ),
        ('optimizer.learning_rate_scales={"x" = 0.0}', "is not a factor; must be a number above 0"),
        ("optimizer.no_decay=x", "must be an array of patterns"),
    ],
)
def test_a_pattern_without_a_parameter_is_refused(
    option: str, told: str, tmp_path: Path, text_file: Path
) -> None:
    words: Sequence[str] = [*TINY, f"data.source={text_file}", option]
    with pytest.raises(ConfigurationError) as refused:
        train(preset="quickstart", overrides=words, runs=tmp_path / "runs")
    assert told in str(refused.value)


def test_the_plan_knows_what_is_frozen() -> None:
    text = '[model]\narchitecture = "gpt2"\n[model.config]\nn_layer = 2\nn_embd = 32\nn_head = 2\n'
    plain, frozen = (model_table(parse_config(text, "p", options)) for options in ([], GROUPS[:1]))
    assert "freeze" not in plain and model_profile_key(plain) != model_profile_key(frozen)
    layouts = [count_parts(meta_model(table), "p").layout(None, 1 << 20) for table in (plain, frozen)]
    whole, part = (layout.trainable_parameters for layout in layouts)
    assert whole - part == 1024 * 32 + 2 * 32
