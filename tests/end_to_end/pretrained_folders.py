"""Folders as transformers saves them, of a few million random parameters with a tokenizer trained on the spot, and
chats to fine-tune them on."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import torch

TEMPLATE = (
    "{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)
SPECIAL = ("<|endoftext|>", "<|user|>", "<|assistant|>", "<|end|>")
QUESTIONS = ("How many are", "What comes after", "Would you say that it is", "Please tell me more about")
THINGS = ("one", "two", "three", "seven", "the sea", "a café", "日本", "naïve words", "42 + 1")

MODERN = {
    "hidden_size": 192,
    "intermediate_size": 384,
    "num_hidden_layers": 4,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {**MODERN, "tie_word_embeddings": False},
    "qwen3": {**MODERN, "head_dim": 32, "tie_word_embeddings": True},
    "gpt2": {"n_embd": 192, "n_layer": 4, "n_head": 6, "n_positions": 128},
    "mixtral": {**MODERN, "intermediate_size": 192, "num_local_experts": 4},
}


def chats(count: int, seed: int = 3) -> list[dict[str, Any]]:
    """Conversations of one or two turns, some with a system message."""
    choose = random.Random(seed)
    made = []
    for _ in range(count):
        messages = [{"role": "system", "content": "Answer in one line."}] * (choose.random() < 0.2)
        for _ in range(choose.randint(1, 2)):
            thing = choose.choice(THINGS)
            messages.append({"role": "user", "content": f"{choose.choice(QUESTIONS)} {thing}?"})
            messages.append({"role": "assistant", "content": f"It is {thing}, and {choose.choice(THINGS)}."})
        made.append({"messages": messages})
    return made


def write_chats(path: Path, count: int = 300) -> Path:
    path.write_text("".join(json.dumps(chat, ensure_ascii=False) + "\n" for chat in chats(count)), "utf-8")
    return path


def save_pretrained(folder: Path, family: str, dtype: torch.dtype = torch.float32) -> Path:
    """A random model of `family` in several files of `dtype`, and a byte-level BPE tokenizer with a chat template."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    text = [message["content"] for chat in chats(100, seed=1) for message in chat["messages"]]
    backend.train_from_iterator(
        text,
        trainers.BpeTrainer(
            vocab_size=600,
            special_tokens=list(SPECIAL),
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    make: Any = PreTrainedTokenizerFast
    tokenizer = make(tokenizer_object=backend, eos_token=SPECIAL[0], bos_token=SPECIAL[0])
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(folder)
    with torch.random.fork_rng():
        torch.manual_seed(1)
        shape = AutoConfig.for_model(
            family, vocab_size=len(tokenizer), bos_token_id=0, eos_token_id=0, **FAMILIES[family]
        )
        model: Any = AutoModelForCausalLM.from_config(shape)
    model.to(dtype).save_pretrained(folder, max_shard_size="4MB")
    return folder
