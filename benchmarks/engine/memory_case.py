"""One case of `memory`, in its own process: two steps, then what the system says the peak was."""

from __future__ import annotations

import gc
import time
from typing import Any

import torch
from torch import Tensor

from benchmarks.engine.contenders import LEARNING_RATE, WEIGHT_DECAY, batch, decayed, trainers_loss
from benchmarks.engine.memory import PLAIN
from benchmarks.engine.shapes import LARGE_VOCABULARY, Shape, meta_model, shape_of, whole_model
from workbench.training.measurements import peak_host_bytes

STEPS = 2


def run(case: dict[str, Any]) -> dict[str, Any]:
    """Train as the case says; bytes and seconds."""
    alike = shape_of(case["parameters"])
    shape = Shape("", case["layers"], case["width"], alike.n_head, alike.vocab_size)
    assert shape.vocab_size <= LARGE_VOCABULARY
    ids = batch(shape, case["tokens"])
    gc.collect()
    start_bytes = peak_host_bytes()
    trained = _plain(shape, ids) if case["contender"] == PLAIN else _engine(shape, ids, case)
    return {
        "parameters": shape.parameters,
        "peak_bytes": peak_host_bytes(),
        "start_bytes": start_bytes,
        **trained,
    }


def _plain(shape: Shape, ids: Tensor) -> dict[str, Any]:
    model: Any = whole_model(shape)
    optimizer = torch.optim.AdamW(decayed(model), lr=LEARNING_RATE, fused=True)
    step_s, losses = [], []
    for _ in range(STEPS):
        begin = time.perf_counter()
        loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        step_s.append(time.perf_counter() - begin)
    return {"step_s": step_s, "losses": losses}


def _engine(shape: Shape, ids: Tensor, case: dict[str, Any]) -> dict[str, Any]:
    from workbench.engine import OffloadEngine
    from workbench.optimizer import AdamW

    model, materialize = meta_model(shape)
    on_disk = case["tier"] == "disk"
    with OffloadEngine(
        model,
        optimizer=AdamW(lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY),
        weights="disk" if on_disk else "device",
        state=case["tier"],
        state_format=case["state_format"],
        gradient_clipping=case["gradient_clipping"],
        precision="bf16",
        disk_path=case["folder"],
        device="cpu",
        materialize=materialize,
    ) as engine:
        loss_of = trainers_loss(model, ids[:, :16])
        step_s, losses = [], []
        for _ in range(STEPS):
            begin = time.perf_counter()
            loss = loss_of(ids)
            engine.backward(loss)
            engine.step().result()
            losses.append(loss.item())
            step_s.append(time.perf_counter() - begin)
        return {"step_s": step_s, "losses": losses, "memory_breakdown": engine.memory()}
