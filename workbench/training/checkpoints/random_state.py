"""The state of every random number generator of the process, as plain data, and back."""

from __future__ import annotations

import random
import sys
from typing import Any

import torch


def capture_random_state() -> dict[str, Any]:
    """Python's, torch's, each CUDA device's, and numpy's where it is loaded; JSON can hold it."""
    version, numbers, gauss = random.getstate()
    state: dict[str, Any] = {
        "python": [version, list(numbers), gauss],
        "torch": _text(torch.get_rng_state()),
    }
    if torch.cuda.is_available():
        state["cuda"] = [_text(s) for s in torch.cuda.get_rng_state_all()]
    if "numpy" in sys.modules:
        name, keys, position, has_gauss, cached = sys.modules["numpy"].random.get_state()
        state["numpy"] = [name, keys.tolist(), position, has_gauss, cached]
    return state


def restore_random_state(state: dict[str, Any]) -> None:
    """Set every generator that `state` speaks of."""
    version, numbers, gauss = state["python"]
    random.setstate((version, tuple(numbers), gauss))
    torch.set_rng_state(_tensor(state["torch"]))
    devices = state.get("cuda", [])
    if devices and torch.cuda.device_count() == len(devices):
        torch.cuda.set_rng_state_all([_tensor(s) for s in devices])
    if "numpy" in state:
        import numpy

        name, keys, position, has_gauss, cached = state["numpy"]
        numpy.random.set_state((name, numpy.array(keys, dtype=numpy.uint32), position, has_gauss, cached))


def seed_everything(seed: int) -> None:
    """Seed every generator of the process."""
    random.seed(seed)
    torch.manual_seed(seed)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(seed % (1 << 32))


def _text(state: torch.Tensor) -> str:
    return bytes(state.tolist()).hex()


def _tensor(text: str) -> torch.Tensor:
    return torch.tensor(list(bytes.fromhex(text)), dtype=torch.uint8)
