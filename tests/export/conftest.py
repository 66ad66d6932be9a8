"""Small finished runs to export and to sample from: one of a whole model, one of an adapter on pretrained weights."""

from __future__ import annotations

import contextlib
import io
import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from workbench.cli import main
from workbench.data.tokenizers import ByteTokenizer
from workbench.profiles.meta_model import count_parts
from workbench.profiles.model_profile import ModelProfile
from workbench.profiles.obtain import obtain_model_profile
from workbench.runs import RunDirectory, find_run
from workbench.training import fitting

TOKENS = {"bos_token_id": 256, "eos_token_id": 256, "pad_token_id": None}
LLAMA = {
    **TOKENS,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 2,
    "vocab_size": 257,
    "max_position_embeddings": 64,
}
GPT2 = {"n_layer": 2, "n_embd": 32, "n_head": 4, "n_positions": 64, "vocab_size": 260}

PRESET = """
[data]
source = {text}
sequence_length = 32
[train]
steps = 4
micro_batch_size = 2
device = "cpu"
precision = "{precision}"
[optimizer]
learning_rate = 1e-2
[evaluate]
every = 2
tokens = 128
[checkpoint]
every = 2
keep = 5
keep_best = true
[sample]
tokens = 0
prompt = "one"
[model]
{model}
"""
ADAPTER = "[adapter]\nrank = 4\n"


@pytest.fixture(autouse=True, scope="session")
def _one_quiet_thread(one_torch_thread: None, no_progress_bars: None) -> None: ...


@pytest.fixture(scope="session")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Llama with a byte tokenizer, saved by transformers in several files."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(3)
    folder = tmp_path_factory.mktemp("base") / "llama"
    LlamaForCausalLM(LlamaConfig(**LLAMA)).save_pretrained(folder, max_shard_size="60KB")
    ByteTokenizer().save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def train(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., RunDirectory]:
    """Trains a preset made of a [model] table, here and now, and gives its run."""
    text = tmp_path_factory.mktemp("text") / "words.txt"
    text.write_text("one two three four five six seven. " * 300)

    def trained(model: str, precision: str = "fp32") -> RunDirectory:
        folder = tmp_path_factory.mktemp("trained")
        preset = folder / "small.toml"
        preset.write_text(PRESET.format(text=json.dumps(str(text)), precision=precision, model=model))

        def obtain(table: Mapping[str, Any], tell: Callable[[str], None], **_: Any) -> ModelProfile:
            return obtain_model_profile(table, tell, take=False) or _counted(table)

        with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(io.StringIO()):
            patch.setattr(fitting, "obtain_model_profile", obtain)
            with torch.random.fork_rng():
                assert main(["run", str(preset), "--runs", str(folder / "runs")]) == 0
        return find_run(folder / "runs", None)

    return trained


def _counted(table: Mapping[str, Any]) -> ModelProfile:
    from workbench.profiles.meta_model import meta_model

    return count_parts(meta_model(table), "small")


@pytest.fixture(scope="session")
def whole(train: Callable[..., RunDirectory]) -> RunDirectory:
    """A GPT-2 from scratch in fp32, saved at steps 2 and 4."""
    settings = "\n".join(f"{key} = {value}" for key, value in GPT2.items())
    return train(f'architecture = "gpt2"\n[model.config]\n{settings}')


@pytest.fixture(scope="session")
def adapter(train: Callable[..., RunDirectory], base: Path) -> RunDirectory:
    """An adapter on `base` in fp32, saved at steps 2 and 4."""
    return train(f"pretrained = {json.dumps(str(base))}\n{ADAPTER}")


@pytest.fixture
def broken(whole: RunDirectory, tmp_path: Path) -> RunDirectory:
    """The whole model's run, with a bit flipped in its newest checkpoint's weights."""
    shutil.copytree(whole.path, tmp_path / "runs" / whole.name)
    run = RunDirectory(tmp_path / "runs" / whole.name)
    path = run.checkpoints / "step-00000004" / "model.safetensors"
    data = bytearray(path.read_bytes())
    data[-9] ^= 1
    path.write_bytes(data)
    return run
