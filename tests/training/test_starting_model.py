"""A run starts from pretrained files, and goes on from its own checkpoints when these are gone."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_training import differing, newest, save, state_of, weights_of

from workbench.config import parse_config, to_toml
from workbench.config.schema import RunConfig
from workbench.data.tokenizers import ByteTokenizer
from workbench.engine import OffloadEngine
from workbench.errors import ConfigurationError
from workbench.runs import RunDirectory, write_config
from workbench.training.checkpoints.load import load_state
from workbench.training.prepare import prepare_run
from workbench.training.starting_model import StartingModel, give_token_ids, starting_model

SIZES: dict[str, Any] = {"n_layer": 2, "n_embd": 16, "n_head": 2, "n_positions": 32, "vocab_size": 300}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(
        AutoConfig.for_model("gpt2", **SIZES, bos_token_id=5, eos_token_id=6, pad_token_id=7)
    )
    model.generation_config.eos_token_id = [6, 9]
    model.save_pretrained(tmp_path / "pretrained")
    return tmp_path / "pretrained"


def configured(folder: Path, *overrides: str, architecture: bool = False, **sizes: Any) -> RunConfig:
    lines = [f'[model]\npretrained = "{folder}"']
    if architecture:
        lines += ['architecture = "gpt2"', "[model.config]"]
        lines += [f"{key} = {json.dumps(value)}" for key, value in {**SIZES, **sizes}.items()]
    return parse_config("\n".join(lines), "case", overrides)


def start(config: RunConfig, run: RunDirectory | None = None) -> tuple[StartingModel, list[str]]:
    told: list[str] = []
    return starting_model(config, run, told.append), told


def engine_of(start: StartingModel) -> OffloadEngine:
    return OffloadEngine(
        start.model, device="cpu", threads=1, precision="fp32", materialize=start.weights(1, pytest.fail)
    )


def saved(config: RunConfig, root: Path, step: int = 3) -> tuple[RunDirectory, dict[str, torch.Tensor]]:
    """A run with one checkpoint of its model after a training step, and what was saved."""
    run = RunDirectory.create(root, "case")
    write_config(run, to_toml(config))
    begun, _ = start(config)
    give_token_ids(begun, 256)
    with engine_of(begun) as engine:
        ids = torch.arange(8).reshape(1, 8)
        engine.backward(begun.model(input_ids=ids, labels=ids).loss)
        engine.step().result()
        save(run.checkpoints, step, begun.model, engine)
        return run, state_of(engine)


def test_the_shape_is_that_of_the_files_and_their_weights_begin_the_run(folder: Path) -> None:
    from transformers import AutoModelForCausalLM

    begun, told = start(configured(folder))
    assert begun.shape.n_layer == 2 and all(p.is_meta for p in begun.model.parameters())
    assert len(told) == 1 and 'its own tokenizer is at the same place (data.tokenizer = "' in told[0]
    theirs = AutoModelForCausalLM.from_pretrained(folder).state_dict()
    with engine_of(begun) as engine:
        assert all(torch.equal(tensor, theirs[name]) for name, tensor in weights_of(engine).items())


def test_a_description_beside_the_files_has_to_be_of_the_same_model(folder: Path) -> None:
    assert start(configured(folder, architecture=True))[0].shape.n_embd == 16
    with pytest.raises(ConfigurationError, match=r"model\.config\.n_layer is 3 and there it is 2"):
        start(configured(folder, architecture=True, n_layer=3))


def test_what_a_pretrained_model_says_of_its_tokens_stands(folder: Path) -> None:
    begun, _ = start(configured(folder))
    give_token_ids(begun, 256)
    model: Any = begun.model
    assert (model.config.bos_token_id, model.config.eos_token_id) == (5, 6)
    assert model.generation_config.eos_token_id == [6, 9]
    content = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**content, "eos_token_id": None}))
    begun, _ = start(configured(folder))
    give_token_ids(begun, 256)
    model = begun.model
    assert (model.config.bos_token_id, model.config.eos_token_id) == (5, 256)


def test_generation_settings_that_cannot_be_saved_are_mended_before_they_stand_in_a_save(
    folder: Path, tmp_path: Path
) -> None:
    content = json.loads((folder / "generation_config.json").read_text())
    (folder / "generation_config.json").write_text(
        json.dumps({**content, "temperature": 0.6, "do_sample": False})
    )
    run, _ = saved(configured(folder), tmp_path)
    written = json.loads((run.checkpoints / "step-00000003" / "generation_config.json").read_text())
    assert (written["temperature"], written["do_sample"]) == (0.6, True)


def test_a_run_goes_on_without_the_files_it_started_from(folder: Path, tmp_path: Path) -> None:
    config = configured(folder)
    run, state = saved(config, tmp_path)
    shutil.rmtree(folder)
    again, told = start(config, run)
    assert again.resumed and told == []
    assert again.table(config)["pretrained"] == str(run.checkpoints / "step-00000003")
    model: Any = again.model
    assert (model.config.eos_token_id, model.generation_config.eos_token_id) == (6, [6, 9])
    with engine_of(again) as engine:
        load_state(newest(run.checkpoints), engine)
        assert differing(state_of(engine), state) == []


def test_a_run_goes_on_with_its_checkpoints_tokenizer_where_the_one_it_started_with_is_gone(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORKBENCH_CACHE", str(tmp_path / "cache"))
    (tmp_path / "text.txt").write_text("two and two are four\n" * 200)
    ByteTokenizer().save_pretrained(folder)
    source = [f"data.source={tmp_path / 'text.txt'}", "data.sequence_length=16", "evaluate.tokens=16"]
    config = configured(folder, *source, f"data.tokenizer={folder}")
    run, _ = saved(config, tmp_path)
    before = prepare_run(config, tmp_path, lambda _: None, run).data
    shutil.rmtree(folder)
    told: list[str] = []
    after = prepare_run(config, tmp_path, told.append, run).data
    (warning,) = [line for line in told if "tokenizer of its checkpoint step-00000003" in line]
    assert str(folder) in warning
    assert after.fingerprint == before.fingerprint
    assert torch.equal(after.train, before.train)


def test_a_checkpoint_whose_description_is_damaged_is_passed_over_for_the_files(
    folder: Path, tmp_path: Path
) -> None:
    config = configured(folder)
    run, _ = saved(config, tmp_path)
    described = run.checkpoints / "step-00000003" / "config.json"
    described.write_bytes(b"x" * described.stat().st_size)
    assert not start(config, run)[0].resumed
