"""The configurations: three families, three sizes up to a billion parameters, and every choice that memory or time
depends on, each in at least two of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from workbench.config import RunConfig, parse_config

VOCABULARY = 32_000


@dataclass(frozen=True)
class Case:
    """A model by family and size, and what its configuration says beside the defaults. `{disk}` stands for a folder."""

    family: str
    size: str
    changes: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        words = [
            f"{key.split('.')[1]} {value}" for key, value in self.changes.items() if "disk_path" not in key
        ]
        return ", ".join([f"{self.family} {self.size}", *words])

    def config(self, folder: str) -> RunConfig:
        """The configuration, its disk tier in `folder`."""
        lines = [f'model.architecture = "{self.family}"', "evaluate.every = 0", "sample.tokens = 0"]
        settings = SETTINGS[self.family](*SIZES[self.size])
        lines += [f"model.config.{key} = {_toml(value)}" for key, value in settings.items()]
        values = {
            "train.device": "cpu",
            "train.precision": "fp32",
            "data.sequence_length": 256,
            **self.changes,
        }
        lines += [f"{key} = {_toml(value)}".replace("{disk}", folder) for key, value in values.items()]
        return parse_config("\n".join(lines), self.name)


def _gpt2(layers: int, width: int, heads: int) -> dict[str, Any]:
    dropout = {f"{name}_pdrop": 0.0 for name in ("attn", "embd", "resid")}
    sizes = {"n_layer": layers, "n_embd": width, "n_head": heads, "n_positions": 1024}
    return {**sizes, "vocab_size": VOCABULARY, **dropout}


def _llama(layers: int, width: int, heads: int) -> dict[str, Any]:
    return {
        "num_hidden_layers": layers,
        "hidden_size": width,
        "intermediate_size": 8 * width // 3 // 32 * 32,
        "num_attention_heads": heads,
        "num_key_value_heads": heads // 2,
        "vocab_size": VOCABULARY,
        "max_position_embeddings": 1024,
    }


def _qwen3(layers: int, width: int, heads: int) -> dict[str, Any]:
    return {**_llama(layers, width, heads), "head_dim": width // heads, "tie_word_embeddings": True}


SETTINGS = {"gpt2": _gpt2, "llama": _llama, "qwen3": _qwen3}
SIZES = {"20M": (6, 320, 10), "150M": (14, 832, 26), "1B": (18, 2048, 16)}
"""Blocks, width, heads: about so many parameters."""

SMALL = {"train.micro_batch_size": 4}
ONE = {"train.micro_batch_size": 1, "data.sequence_length": 128}
KEPT = {"train.activation_checkpointing": False}
FREE = {"train.gradient_clipping": 0.0}
HALF = {"train.precision": "bf16"}
DISK = {"offload.state": "disk", "offload.disk_path": "{disk}"}

CASES: tuple[Case, ...] = (
    Case("gpt2", "20M", {**SMALL, **KEPT}),
    Case("gpt2", "150M", SMALL),
    Case("gpt2", "150M", {**SMALL, **KEPT, "offload.state_format": "half"}),
    Case("gpt2", "150M", {**SMALL, **HALF, "offload.state_format": "compact"}),
    Case("gpt2", "1B", {**ONE, **FREE}),
    Case("gpt2", "1B", {**ONE, **HALF, "offload.state_format": "compact"}),
    Case("llama", "20M", {**SMALL, "train.gradient_accumulation": 2}),
    Case("llama", "150M", {**SMALL, **KEPT, **FREE}),
    Case("llama", "150M", {**SMALL, **DISK}),
    Case("llama", "1B", {**ONE, "offload.state_format": "half", "train.gradient_accumulation": 2}),
    Case("qwen3", "20M", {**SMALL, **HALF}),
    Case("qwen3", "150M", {**SMALL, "offload.state_format": "compact", "offload.overlap": "serial"}),
    Case("qwen3", "150M", {**SMALL, **FREE, "offload.overlap": "delayed", "offload.delay_warmup": 0}),
    Case(
        "qwen3",
        "150M",
        {**SMALL, **HALF, **DISK, "offload.weights": "disk", "offload.state_format": "compact"},
    ),
    Case("qwen3", "1B", {**ONE, **FREE, "offload.state_format": "compact"}),
)


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return f'"{value}"' if isinstance(value, str) else str(value)
