"""A GPT-2 of a few thousand parameters, its engine, and steps for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from workbench.engine import AdamW, OffloadEngine
from workbench.model.build import UnitInitializer, build_on_meta, model_config

SETTINGS: dict[str, Any] = {
    "n_layer": 2,
    "n_embd": 16,
    "n_head": 2,
    "n_positions": 16,
    "vocab_size": 257,
    "resid_pdrop": 0.0,
    "embd_pdrop": 0.0,
    "attn_pdrop": 0.0,
}


PLACEMENTS: dict[str, dict[str, Any]] = {
    "device": {"weights": "device", "state": "device"},
    "state-on-host": {"weights": "device", "state": "host"},
    "partly-on-device": {"weights": "device", "state": "host", "device_fraction": 0.5},
    "host": {"weights": "host", "state": "host"},
    "state-on-disk": {"weights": "device", "state": "disk"},
    "disk": {"weights": "disk", "state": "disk"},
}


def placed(folder: Path, placement: str, **options: Any) -> dict[str, Any]:
    """Engine options for one of `PLACEMENTS`, whose disk tier is in `folder`."""
    return {**PLACEMENTS[placement], "disk_path": str(folder), "chunk_bytes": 1 << 14, **options}


def build_engine(seed: int = 1, **options: Any) -> tuple[Any, OffloadEngine]:
    """The model with its values drawn from `seed`, and an engine around it."""
    model: Any = build_on_meta(model_config("gpt2", dict(SETTINGS)))
    settings: dict[str, Any] = {
        "state": "host",
        "precision": "fp32",
        "device": "cpu",
        "threads": 1,
        **options,
    }
    engine = OffloadEngine(
        model, optimizer=AdamW(lr=1e-2), materialize=UnitInitializer(model, seed), **settings
    )
    return model, engine


def train(model: Any, engine: OffloadEngine, steps: int, seed: int = 0) -> list[float]:
    """Do `steps` steps on random tokens; their losses."""
    generator = torch.Generator().manual_seed(seed)
    losses = []
    for _ in range(steps):
        ids = torch.randint(257, (2, 16), generator=generator)
        loss = model(input_ids=ids, labels=ids, use_cache=False).loss
        engine.backward(loss)
        engine.step()
        losses.append(float(loss.detach()))
    engine.wait()
    return losses
