"""[model] tables: tiny ones of nine families, and public models with the parameters that their authors count."""

from __future__ import annotations

from typing import Any

WIDTH, HEADS, INNER, POSITIONS = 48, 4, 160, 256
COMMON = {"vocab_size": 97, "bos_token_id": 0, "eos_token_id": 0}
MODERN = {
    **COMMON,
    "pad_token_id": None,
    "hidden_size": WIDTH,
    "intermediate_size": INNER,
    "num_attention_heads": HEADS,
    "num_hidden_layers": 3,
    "max_position_embeddings": POSITIONS,
}
GPT2 = {**COMMON, "n_layer": 3, "n_embd": WIDTH, "n_head": HEADS, "n_positions": POSITIONS}
NO_DROPOUT = {"attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0}


def table(architecture: str, **config: Any) -> dict[str, Any]:
    return {"architecture": architecture, "config": config}


FAMILIES: dict[str, dict[str, Any]] = {
    "gpt2": table("gpt2", **GPT2, **NO_DROPOUT),
    "gpt2 with dropout": table("gpt2", **GPT2),
    "llama": table("llama", **MODERN, num_key_value_heads=2),
    "qwen3": table("qwen3", **MODERN, num_key_value_heads=2, head_dim=16, tie_word_embeddings=True),
    "mistral": table("mistral", **MODERN, num_key_value_heads=1, sliding_window=8),
    "gemma": table("gemma", **MODERN, num_key_value_heads=1, head_dim=20),
    "opt": table(
        "opt",
        **{**COMMON, "pad_token_id": 1},
        hidden_size=WIDTH,
        word_embed_proj_dim=WIDTH // 2,
        ffn_dim=INNER,
        num_attention_heads=HEADS,
        num_hidden_layers=3,
        max_position_embeddings=POSITIONS,
        dropout=0.0,
    ),
    "gpt_neox": table("gpt_neox", **MODERN),
    "phi3": table("phi3", **MODERN, num_key_value_heads=2),
    "mixtral": table("mixtral", **MODERN, num_key_value_heads=2, num_local_experts=6, num_experts_per_tok=2),
    "gemma2": table(
        "gemma2", **MODERN, num_key_value_heads=1, head_dim=20, query_pre_attn_scalar=20, sliding_window=8
    ),
}

PUBLIC: dict[str, tuple[dict[str, Any], int]] = {
    "Mixtral-8x7B": (
        table(
            "mixtral",
            hidden_size=4096,
            intermediate_size=14336,
            num_hidden_layers=32,
            num_attention_heads=32,
            num_key_value_heads=8,
            num_local_experts=8,
            num_experts_per_tok=2,
            max_position_embeddings=32768,
            vocab_size=32000,
            tie_word_embeddings=False,
        ),
        46_702_792_704,
    ),
    "Gemma-2-9B": (
        table(
            "gemma2",
            hidden_size=3584,
            intermediate_size=14336,
            num_hidden_layers=42,
            num_attention_heads=16,
            num_key_value_heads=8,
            head_dim=256,
            sliding_window=4096,
            max_position_embeddings=8192,
            vocab_size=256000,
            tie_word_embeddings=True,
        ),
        9_241_705_984,
    ),
}
