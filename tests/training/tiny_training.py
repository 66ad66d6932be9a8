"""A GPT-2 of a few thousand parameters, its engine, and steps for it."""

from __future__ import annotations

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
