"""Tiny random models of nine families of causal language models, and what the matrix crosses them with.

Widths are small and odd on purpose: every block has at least two chunks of the smallest size, and some parameters are
cut by a chunk's end. Some families have more blocks than there are device slots, some have fewer. All nine take
`input_ids` and `labels`, so one training loop serves them.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from small_models import SEQUENCE, VOCABULARY, build, clone
from torch import Tensor, nn

WIDTH, HEADS, INNER = 48, 4, 512
WIDER = 1408  # WIDTH * WIDER elements are more than one block of the norm: such a matrix is cut

COMMON = {"vocab_size": VOCABULARY, "bos_token_id": 0, "eos_token_id": 0, "pad_token_id": None}
MODERN = {
    **COMMON,
    "hidden_size": WIDTH,
    "intermediate_size": INNER,
    "num_attention_heads": HEADS,
    "num_hidden_layers": 2,
    "max_position_embeddings": SEQUENCE,
}
GROUPED = {**MODERN, "num_key_value_heads": 2}
GPT2 = {**COMMON, "n_layer": 4, "n_embd": WIDTH, "n_head": HEADS, "n_inner": WIDER, "n_positions": SEQUENCE}
OPT = {"pad_token_id": 1, "word_embed_proj_dim": WIDTH // 2, "ffn_dim": WIDER}
MIXTRAL = {"intermediate_size": 128, "num_local_experts": 6, "num_experts_per_tok": 2}

# Each family's settings, and the names of its dropouts.
FAMILIES: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "gpt2": (GPT2, ("attn_pdrop", "resid_pdrop", "embd_pdrop")),
    "llama": ({**GROUPED, "num_hidden_layers": 5}, ("attention_dropout",)),
    "qwen3": ({**GROUPED, "head_dim": 16, "tie_word_embeddings": True}, ("attention_dropout",)),
    "mistral": (
        {**MODERN, "num_hidden_layers": 4, "num_key_value_heads": 1, "sliding_window": 8},
        ("attention_dropout",),
    ),
    "gemma": ({**MODERN, "num_key_value_heads": 1, "head_dim": 20}, ("attention_dropout",)),
    "opt": ({**MODERN, **OPT}, ("dropout", "attention_dropout")),
    "gpt_neox": (
        {**MODERN, "intermediate_size": WIDER, "num_hidden_layers": 4},
        ("hidden_dropout", "attention_dropout"),
    ),
    "phi3": (GROUPED, ("resid_pdrop", "embd_pdrop", "attention_dropout")),
    "mixtral": ({**GROUPED, **MIXTRAL}, ("attention_dropout",)),
}


class Placement(NamedTuple):
    """Where a run keeps its weights and its state."""

    weights: str
    state: str
    device_fraction: float = 0.0

    def __str__(self) -> str:
        return f"{self.weights}-{self.state}" + f"-{self.device_fraction}" * bool(self.device_fraction)


PLACEMENTS = (
    Placement("device", "device"),
    Placement("device", "host"),
    Placement("device", "host", 0.5),
    Placement("host", "host"),
    Placement("host", "disk"),
    Placement("disk", "disk"),
    Placement("device", "disk"),
)
OVERLAPS = ("serial", "exact", "delayed")


class LoRA(nn.Module):
    """A frozen matrix and a trained change of low rank beside it: y = base(x) + B(A(dropout(x))), both in fp32."""

    def __init__(self, base: nn.Module, rank: int = 4, dropout: float = 0.0) -> None:
        super().__init__()
        weight = base.weight
        # transformers' Conv1D keeps its weight as [in, out], a Linear as [out, in].
        inside, outside = weight.shape[::-1] if isinstance(base, nn.Linear) else weight.shape
        self.base = base
        self.dropout = nn.Dropout(dropout)
        self.lora_a = nn.Parameter(torch.randn(rank, inside) / inside**0.5)
        # Not zero as one would begin with: A would have no gradient at first, and half of this would go untested.
        self.lora_b = nn.Parameter(torch.randn(outside, rank) * 0.02)

    def forward(self, x: Tensor) -> Tensor:
        base: Tensor = self.base(x)
        change = self.dropout(x).to(self.lora_a.dtype) @ self.lora_a.T @ self.lora_b.T
        return base + change.to(base.dtype)


def add_adapters(
    model: nn.Module,
    names: Iterable[str] = ("q_proj", "c_attn", "query_key_value", "qkv_proj", "down_proj", "fc2"),
    dropout: float = 0.0,
) -> nn.Module:
    """Freeze `model` and put a `LoRA` around every matrix called one of `names`; returns it."""
    model.requires_grad_(False)
    wanted = set(names)
    places = [
        (parent, name, child)
        for parent in model.modules()
        for name, child in parent.named_children()
        if name in wanted and getattr(child, "weight", None) is not None and child.weight.dim() == 2
    ]
    assert places, f"no matrix is called one of {sorted(wanted)}"
    for parent, name, child in places:
        setattr(parent, name, LoRA(child, dropout=dropout))
    return model


@functools.cache
def _made(family: str, dropout: float, adapters: bool) -> Any:
    torch.manual_seed(sorted(FAMILIES).index(family))
    model = build(family, *FAMILIES[family], dropout).train()
    return add_adapters(model, dropout=dropout) if adapters else model


def make(family: str, dropout: float = 0.0, adapters: bool = False) -> Any:
    """A model of `family` in training mode, the same values at every call; with `adapters` only they are trained."""
    return clone(_made(family, dropout, adapters))
