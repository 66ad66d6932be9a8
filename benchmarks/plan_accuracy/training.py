"""One configuration trained in a process of its own: the growth of its resident memory, and the seconds of its steps.

As a run trains: the model from its architecture, units built one by one, the loss in chunks, the same engine options.
Only what surrounds a run is left out: data, checkpoints, evaluation.
"""

from __future__ import annotations

import gc
import time
from typing import Any

import torch

from workbench.config import parse_config
from workbench.engine import OffloadEngine
from workbench.engine.loss.chunked_loss import ChunkedLoss
from workbench.model.build import UnitInitializer, build_on_meta, model_config
from workbench.system.free_space import free_host_bytes
from workbench.training.measurements import peak_host_bytes
from workbench.training.prepare import engine_options
from workbench.training.trainer import seed_everything

LEAST_STEPS = 4
SECONDS = 12.0
"""Steps are made for so long, but no fewer than the least."""
MOST_STEPS = 60


def run(case: dict[str, Any]) -> dict[str, Any]:
    """Train as `case["config"]` (TOML) says; bytes and seconds."""
    from transformers.utils import logging

    logging.set_verbosity_error()
    config = parse_config(case["config"], "case")
    _touch_libraries()
    gc.collect()
    before = _resident_bytes()
    seed_everything(config.train.seed)
    model: Any = build_on_meta(model_config(config.model.architecture, dict(config.model.config)))
    initializer = UnitInitializer(model, config.train.seed)
    train = config.train
    generator = torch.Generator().manual_seed(1)
    vocabulary = model.config.get_text_config().vocab_size
    with OffloadEngine(model, **engine_options(config, device="cpu"), materialize=initializer) as engine:
        loss_of = ChunkedLoss(model)
        seconds: list[float] = []
        began = time.perf_counter()
        while len(seconds) < LEAST_STEPS or (
            time.perf_counter() - began < SECONDS and len(seconds) < MOST_STEPS
        ):
            start = time.perf_counter()
            for _ in range(train.gradient_accumulation):
                ids = torch.randint(
                    vocabulary, (train.micro_batch_size, config.data.sequence_length), generator=generator
                )
                if not seconds:
                    loss_of.check(ids, use_cache=False)
                loss = loss_of(ids, ids, use_cache=False)
                engine.backward(loss, tokens=ids.shape[0] * (ids.shape[1] - 1))
            engine.step()
            seconds.append(time.perf_counter() - start)
        engine.wait()
        peak = peak_host_bytes()
        memory_breakdown = engine.memory()
    return {
        "parameters": sum(p.numel() for p in model.parameters()),
        "grown_bytes": peak - before,
        "seconds": seconds,
        "memory_breakdown": memory_breakdown,
        "free_bytes": free_host_bytes(),
    }


def _touch_libraries() -> None:
    """What importing takes, and the first step that a process makes, is no part of any configuration."""
    import transformers.models.gpt2.modeling_gpt2
    import transformers.models.llama.modeling_llama
    import transformers.models.qwen3.modeling_qwen3  # noqa: F401

    sizes = {"n_layer": 1, "n_embd": 32, "n_head": 2, "vocab_size": 512}
    model: Any = build_on_meta(model_config("gpt2", sizes))
    ids = torch.arange(16).reshape(1, 16)
    with OffloadEngine(model, device="cpu", materialize=UnitInitializer(model, 1)) as engine:
        loss_of = ChunkedLoss(model)
        loss_of.check(ids, use_cache=False)
        engine.backward(loss_of(ids, ids, use_cache=False), tokens=15)
        engine.step()


def _resident_bytes() -> int:
    import psutil

    return int(psutil.Process().memory_info().rss)
