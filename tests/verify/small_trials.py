"""A configuration of a model that trains in milliseconds, and what verifying says of it."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from workbench.config import RunConfig, parse_config
from workbench.verify.checks import Row, guarded
from workbench.verify.command import CHECKS
from workbench.verify.trial import open_trial

STEPS = 6

PRESET = """
[model]
architecture = "gpt2"

[model.config]
n_layer = 5
n_embd = 32
n_head = 2
n_positions = 64
vocab_size = 257
attn_pdrop = 0.0
embd_pdrop = 0.0
resid_pdrop = 0.0

[data]
sequence_length = 32

[train]
device = "cpu"
precision = "fp32"
micro_batch_size = 2

[optimizer]
learning_rate = 1e-2

[offload]
threads = 2
"""


def small_config(*overrides: str) -> RunConfig:
    return parse_config(PRESET, "preset", overrides)


def write_preset(folder: Path, text: str = PRESET) -> Path:
    path = folder / "small.toml"
    path.write_text(text, encoding="utf-8")
    return path


def rows_of(config: RunConfig, checks: Iterable[str] | None = None) -> list[Row]:
    """The rows of `config`, of all checks or only some."""
    names = list(CHECKS) if checks is None else list(checks)
    with open_trial(config, STEPS) as trial:
        return [row for name in names for row in guarded(name, CHECKS[name], trial)]


def failed(rows: Iterable[Row]) -> list[str]:
    return [f"{row.name}: {row.compared}: {row.note}" for row in rows if not row.holds]
