"""DeepSpeed configurations made of a few keys, imported, and what became of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from workbench.config import RunConfig, parse_config
from workbench.imports import Imported, import_text

ZERO = "zero_optimization"
BATCH = {"train_micro_batch_size_per_gpu": 4}

CONFIGS = Path(__file__).parent / "configs"
BLOG = (CONFIGS / "blog.json").read_text()
TUTORIAL = (CONFIGS / "tutorial.json").read_text()
"""Two configurations as they are printed where people copy them from; both lost braces."""

INFINITY = """{
    // stage 3, everything on a fast disk
    "train_batch_size": 16,
    "train_micro_batch_size_per_gpu": 4,
    "fp16": {"enabled": false, "loss_scale": 0, "loss_scale_window": 1000, "hysteresis": 2, "min_loss_scale": 1},
    "bf16": {"enabled": true},
    "optimizer": {
        "type": "Adam",
        "params": {"lr": 2e-4, "betas": [0.9, 0.95], "eps": 1e-8, "weight_decay": 0.1}
    },
    "scheduler": {
        "type": "WarmupDecayLR",
        "params": {"warmup_min_lr": 0, "warmup_max_lr": 2e-4, "warmup_num_steps": 10, "total_num_steps": 100}
    },
    "zero_optimization": {
        "stage": 3,
        "offload_optimizer": {"device": "nvme", "nvme_path": "/fast", "pin_memory": true, "ratio": 0.9},
        "offload_param": {"device": "nvme", "nvme_path": "/fast", "buffer_count": 5, "buffer_size": 1e8},
        "sub_group_size": 1e9,
        "stage3_prefetch_bucket_size": "auto"
    },
    "activation_checkpointing": {"cpu_checkpointing": true},
    "aio": {"block_size": 262144, "queue_depth": 32, "thread_count": 1, "single_submit": false},
    "tensorboard": {"enabled": false},
    "steps_per_print": 10,
    "wall_clock_breakdown": false
}
"""


def nested(**keys: Any) -> dict[str, Any]:
    """The sections of dotted names."""
    whole: dict[str, Any] = {}
    for key, value in keys.items():
        *sections, name = key.split(".")
        at = whole
        for section in sections:
            at = at.setdefault(section, {})
        at[name] = value
    return whole


def imported(**sections: Any) -> Imported:
    """Import these sections beside a batch size; names may be dotted."""
    return import_text(json.dumps(BATCH | nested(**sections)), "ds.json", architecture="gpt2")


def config_of(made: Imported) -> RunConfig:
    assert not made.refused
    return parse_config(made.preset, "made.toml")


def verdict_on(made: Imported, key: str) -> tuple[str, str]:
    (found,) = [verdict for verdict in made.verdicts if verdict.key == key]
    return found.judgement, found.reason
