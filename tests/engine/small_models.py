"""Small random models and token batches for the engine's tests, and plain torch training to compare with."""

from __future__ import annotations

import copy
import random
import time
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from workbench.engine.devices.device import CpuDevice
from workbench.timeline import Lane

VOCABULARY = 97
SEQUENCE = 24
CHUNK_BYTES = 1  # the smallest: one block of the norm a chunk


def build(architecture: str, settings: dict[str, Any], dropouts: Iterable[str], dropout: float) -> Any:
    """A causal language model of transformers; the fields `dropouts` of its configuration are `dropout`."""
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model(architecture, **settings, **dict.fromkeys(dropouts, dropout))
    return AutoModelForCausalLM.from_config(config)


def gpt2(dropout: float = 0.0, layers: int = 2, seed: int = 0) -> Any:
    """A GPT-2 with tied embeddings."""
    settings = {"n_layer": layers, "n_embd": 48, "n_head": 2, "n_positions": SEQUENCE}
    special = {"vocab_size": VOCABULARY, "bos_token_id": 0, "eos_token_id": 0}
    torch.manual_seed(seed)
    return build("gpt2", {**settings, **special}, ("attn_pdrop", "resid_pdrop", "embd_pdrop"), dropout)


def llama(dropout: float = 0.0, layers: int = 2, seed: int = 0) -> Any:
    """A Llama with grouped attention and a head of its own."""
    settings = {
        "num_hidden_layers": layers,
        "hidden_size": 48,
        "intermediate_size": 96,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": SEQUENCE,
        "vocab_size": VOCABULARY,
    }
    torch.manual_seed(seed)
    return build("llama", settings, ("attention_dropout",), dropout)


MODELS: dict[str, Callable[..., Any]] = {"gpt2": gpt2, "llama": llama}


def batches(count: int, size: int = 2, seed: int = 1) -> list[Tensor]:
    """Token ids, int64 [size, SEQUENCE] each: counting up from a random token in steps of 1 to 3, to be learned."""
    generator = torch.Generator().manual_seed(seed)
    made = []
    for _ in range(count):
        first = torch.randint(VOCABULARY, (size, 1), generator=generator)
        stride = torch.randint(1, 4, (size, 1), generator=generator)
        made.append((first + stride * torch.arange(SEQUENCE)) % VOCABULARY)
    return made


def loss_of(model: Any, ids: Tensor) -> Tensor:
    loss: Tensor = model(input_ids=ids, labels=ids, use_cache=False).loss
    return loss


def torch_adamw(model: nn.Module, lr: float, weight_decay: float, **options: Any) -> torch.optim.AdamW:
    """torch's AdamW with decay on parameters of two or more dimensions, as the engine has it."""
    trainable = [p for p in model.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in trainable if p.dim() >= 2], "weight_decay": weight_decay},
        {"params": [p for p in trainable if p.dim() < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW([g for g in groups if g["params"]], lr=lr, **options)


class SeparateMemory(CpuDevice):
    """The CPU as a device with memory of its own; a seed delays every lane's tasks at random."""

    def __init__(self, seed: int | None = None, longest_s: float = 0.002) -> None:
        super().__init__(shared_memory=False)
        self._random = None if seed is None else {lane: random.Random(f"{seed}/{lane}") for lane in Lane}
        self._longest_s = longest_s

    def before_task(self, lane: Lane) -> None:
        if self._random is not None:
            chance = self._random[lane]
            # Mostly short, now and then long: both orders of every pair of lanes come up.
            time.sleep(chance.random() ** 4 * self._longest_s)


def clone(model: Any) -> Any:
    return copy.deepcopy(model)
