"""Whatever can be wrong about model, data or machine is found before a run begins, in one clear message."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from workbench.config import parse_config
from workbench.errors import ConfigurationError
from workbench.training import preparation
from workbench.training.preparation import Prepared, prepare_run


def prepare(text_file: Path, *changes: str, model: dict[str, Any] | None = None) -> Prepared:
    settings = {
        "n_layer": 1,
        "n_embd": 16,
        "n_head": 2,
        "n_positions": 32,
        "vocab_size": 257,
        **(model or {}),
    }
    lines = [
        '[model]\narchitecture = "gpt2"\n[model.config]',
        *(f"{key} = {json.dumps(value)}" for key, value in settings.items()),
        f'[data]\nsource = "{text_file}"\nsequence_length = 32\nvalidation_fraction = 0.1',
        '[train]\ndevice = "cpu"\nsteps = 5\nmicro_batch_size = 1\n[schedule]\nwarmup_steps = 0',
    ]
    config = parse_config("\n".join(lines), "preset.toml", changes)
    return prepare_run(config, text_file.parent, lambda message: None)


def refusal(text_file: Path, *changes: str, model: dict[str, Any] | None = None) -> str:
    with pytest.raises(ConfigurationError) as error:
        prepare(text_file, *changes, model=model)
    assert error.value.exit_code == 2
    assert "\n" not in str(error.value)
    return str(error.value)


def test_what_can_start_is_prepared_without_taking_memory_for_the_model(text_file: Path) -> None:
    prepared = prepare(text_file)
    assert all(parameter.is_meta for parameter in prepared.model.parameters())
    assert prepared.plan.fits and prepared.data.documents == 1


def test_an_unknown_architecture_is_refused_with_the_nearest_one(text_file: Path) -> None:
    assert refusal(text_file, "model.architecture=gtp2").endswith('did you mean "gpt2"?')
    assert "gpt2, llama" in refusal(text_file, "model.architecture=0123456789")


def test_an_architecture_that_is_no_causal_language_model_is_refused(text_file: Path) -> None:
    assert "no causal language model of this name" in refusal(text_file, "model.architecture=vit")


def test_an_unknown_setting_of_the_architecture_is_refused_with_the_nearest_one(text_file: Path) -> None:
    assert refusal(text_file, model={"n_layers": 3}) == (
        'model.config.n_layers: the gpt2 architecture has no such setting; did you mean "n_layer"?'
    )


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"n_embd": 17}, "n_head|num_heads|divisible"),
        ({"n_head": 0}, "model.config"),
        ({"n_layer": "many"}, "n_layer"),
        ({"n_layer": 0}, "n_layer = 0: expected at least 1"),
        ({"n_layer": -1}, "n_layer = -1: expected at least 1"),
        ({"n_embd": 0}, "model.config"),
        ({"n_embd": -16}, "model.config"),
        ({"vocab_size": -5}, "model.config"),
        ({"vocab_size": "257"}, "vocab_size"),
        ({"activation_function": "none"}, "model.config"),
        ({"resid_pdrop": 2.0}, "model.config"),
        ({"n_positions": -1}, "model.config"),
    ],
    ids=str,
)
def test_settings_that_no_model_can_be_built_from_are_refused(
    text_file: Path, settings: dict[str, Any], said: str
) -> None:
    assert re.search(said, refusal(text_file, model=settings))


def test_a_vocabulary_smaller_than_the_tokenizers_is_refused_with_both_numbers(text_file: Path) -> None:
    for size in (256, 1, 0):
        message = refusal(text_file, model={"vocab_size": size})
        assert f"vocab_size = {size}: the tokenizer has 257 tokens" in message


def test_sequences_longer_than_the_models_positions_are_refused_with_the_limit(text_file: Path) -> None:
    assert refusal(text_file, "data.sequence_length=33") == (
        "data.sequence_length = 33: the model has 32 positions; lower it to 32, or give model.config more positions"
    )


def test_bf16_on_a_cpu_without_it_is_refused_with_what_works(
    text_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preparation, "has_bfloat16", lambda device: False)
    message = refusal(text_file, "train.precision=bf16")
    assert message.startswith('train.precision = "bf16": cpu has no bf16') and '"fp32" or "auto"' in message


def test_a_gpu_that_is_not_there_is_refused(text_file: Path) -> None:
    import torch

    device = f"cuda:{torch.cuda.device_count() + 3}"
    assert refusal(text_file, f"train.device={device}").startswith(f"train.device = '{device}'")


def test_text_that_is_missing_empty_or_no_text_is_refused(text_file: Path, tmp_path: Path) -> None:
    (tmp_path / "empty.txt").touch()
    (tmp_path / "binary.bin").write_bytes(b"\0" * 5000)
    (tmp_path / "nowhere").symlink_to(tmp_path / "gone")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    (tmp_path / "folder").mkdir()
    (tmp_path / "short.txt").write_text("short")
    for name, said in [
        ("wordz.txt", "no such file or folder; the nearest is"),
        ("empty.txt", "the file is empty"),
        ("binary.bin", "not a text file"),
        ("nowhere", "no such file or folder"),
        ("loop", "cannot be read: Too many levels of symbolic links"),
        ("folder", "no text file in this folder"),
        ("short.txt", "too little text"),
    ]:
        message = refusal(text_file, f"data.source={tmp_path / name}")
        assert message.startswith("data.source") and said in message, message


def test_nothing_is_left_behind_by_a_refusal(text_file: Path, tmp_path: Path) -> None:
    before = sorted(tmp_path.iterdir())
    refusal(text_file, "model.architecture=gtp2")
    assert sorted(tmp_path.iterdir()) == before


def test_the_ends_of_text_are_the_tokenizers_unless_the_preset_says_otherwise(text_file: Path) -> None:
    assert prepare(text_file).model.config.eos_token_id == 256
    assert prepare(text_file, model={"eos_token_id": 7}).model.config.eos_token_id == 7
