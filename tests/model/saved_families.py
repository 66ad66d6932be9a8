"""Tiny random models of seven families of causal language models, and folders to compare what is saved of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from workbench.engine.blocks.discovery import find_units

COMMON = {"vocab_size": 67, "bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0}
MODERN = {
    **COMMON,
    "hidden_size": 24,
    "intermediate_size": 40,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "max_position_embeddings": 32,
}
SETTINGS: dict[str, dict[str, Any]] = {
    "gpt2": {**COMMON, "n_layer": 3, "n_embd": 24, "n_head": 2, "n_positions": 32},
    "llama": {**MODERN, "num_key_value_heads": 1, "tie_word_embeddings": False},
    "qwen3": {**MODERN, "num_key_value_heads": 1, "head_dim": 12, "tie_word_embeddings": True},
    "mixtral": {**MODERN, "num_key_value_heads": 1, "num_local_experts": 5},
    "gemma": {**MODERN, "num_key_value_heads": 1, "head_dim": 12},
    "opt": {
        **COMMON,
        "hidden_size": 24,
        "ffn_dim": 40,
        "num_hidden_layers": 3,
        "num_attention_heads": 2,
        "max_position_embeddings": 32,
        "word_embed_proj_dim": 12,
    },
    "gpt_neox": {**MODERN, "tie_word_embeddings": False},
}


def build(family: str, seed: int = 0, dtype: torch.dtype = torch.float32) -> Any:
    """A model whose every parameter is random, ones and zeros of initialisation too."""
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **SETTINGS[family]))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.1)
    return model.to(dtype).eval()


def units_of(model: Any) -> Iterator[dict[str, Tensor]]:
    """What an engine gives: a dictionary a unit, each parameter once."""
    for unit in find_units(model):
        yield {name: parameter.detach().clone() for name, parameter in unit.parameters.items()}


def blank(model: Any) -> None:
    """Leave placeholders where the parameters were, as an engine does that streams them."""
    for parameter in model.parameters():
        parameter.data = torch.full((1,), torch.nan).expand(parameter.shape)


def tensors_in(folder: Path) -> dict[str, Tensor]:
    """Every tensor in the folder's safetensors files."""
    found: dict[str, Tensor] = {}
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118 - it is no dictionary
                assert name not in found, name
                found[name] = file.get_tensor(name)
    return found


def same_bytes(one: Tensor, other: Tensor) -> bool:
    return (
        one.dtype == other.dtype
        and one.shape == other.shape
        and torch.equal(one.reshape(-1).view(torch.uint8), other.reshape(-1).view(torch.uint8))
    )
