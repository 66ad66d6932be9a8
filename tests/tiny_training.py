"""A GPT-2 of a few thousand parameters, its engine, steps for it, and checkpoints of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from workbench.data.tokenizers import ByteTokenizer
from workbench.engine import AdamW, OffloadEngine
from workbench.model.build import UnitInitializer, build_on_meta, model_config
from workbench.runs.checkpoints import Progress, SavedStep, find_checkpoints
from workbench.training.checkpoints.save import Removal, save_checkpoint

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


def save(root: Path, step: int, model: Any, engine: OffloadEngine, **options: Any) -> Path:
    """Save a checkpoint, of which nine are kept unless `options` say otherwise."""
    settings = {"tokenizer": ByteTokenizer(), "progress": Progress(step), "keep": 9, **options}
    with Removal() as removal:
        return save_checkpoint(root, step, engine=engine, model=model, removal=removal, **settings)


def newest(root: Path) -> SavedStep:
    """Return the newest checkpoint; none may be damaged."""
    return next(find_checkpoints(root, pytest.fail))


def flip(path: Path, place: int | None = None) -> None:
    """Turn one bit of the byte at `place`, by default the middle one."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2 if place is None else place] ^= 1
    path.write_bytes(data)


def state_of(engine: OffloadEngine) -> dict[str, Tensor]:
    """Return copies of the engine's tensors, from whatever tier they are in."""
    return {
        name: kept.clone() if isinstance(kept, Tensor) else kept.read(0, kept.numel())
        for name, kept in engine.state()
    }


def weights_of(engine: OffloadEngine) -> dict[str, Tensor]:
    return {name: weight.clone() for unit in engine.weights() for name, weight in unit.items()}


def differing(one: dict[str, Tensor], other: dict[str, Tensor]) -> list[str]:
    """Return the names of tensors that are not the same to the bit."""
    return [name for name in {**one, **other} if not torch.equal(one[name], other[name])]
