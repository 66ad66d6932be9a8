"""A step that fp16 skips does not move the learning-rate schedule: not in any overlap, and not across a resume."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from workbench.config import RunConfig, load_config
from workbench.data.prepare import prepare
from workbench.engine.blocks.discovery import find_units
from workbench.model.build import UnitInitializer, build_on_meta, model_config
from workbench.runs import RunDirectory, read_run_metrics
from workbench.training.batches import training_sampler
from workbench.training.command import run
from workbench.training.prepare import learning_rate_schedule

STEPS, STOPPED, WINDOW, POWER = 24, 10, 3, 18
PRESET = """
[model]
architecture = "gpt2"
config = {{n_layer = 1, n_embd = 16, n_head = 2, n_positions = 16, vocab_size = 257, \
resid_pdrop = 0.0, embd_pdrop = 0.0, attn_pdrop = 0.0}}
[data]
source = "{text}"
sequence_length = 16
[train]
device = "cpu"
precision = "fp16"
steps = {steps}
micro_batch_size = 2
gradient_clipping = 0.0
[loss_scale]
initial_power = {power}
window = {window}
hysteresis = 1
[optimizer]
learning_rate = 3e-3
weight_decay = 0.0
[schedule]
type = "cosine"
warmup_steps = 4
total_steps = {steps}
[offload]
overlap = "{overlap}"
delay_warmup = 5
threads = 1
[evaluate]
every = 0
tokens = 64
[sample]
tokens = 0
[checkpoint]
every = 0
"""


def configured(folder: Path, text: Path, overlap: str) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / f"{overlap}.toml"
    path.write_text(PRESET.format(text=text, steps=STEPS, window=WINDOW, power=POWER, overlap=overlap))
    return path


def trained(preset: Path, *overrides: str) -> RunDirectory:
    runs = preset.parent / preset.stem
    assert run(preset=str(preset), overrides=overrides, runs=runs) == 0
    return next(RunDirectory(path) for path in runs.iterdir() if not path.is_symlink())


def resume(directory: RunDirectory) -> None:
    assert run(preset=None, resume=directory.path, overrides=[f"train.steps={STEPS}"]) == 0


def column(directory: RunDirectory, name: str) -> list[float]:
    return list(read_run_metrics(directory).column(name))


def with_grad_scaler(config: RunConfig) -> tuple[list[float], list[float], list[float]]:
    """Skipped steps, learning rates and losses of torch: its scaler, its AdamW, and its LambdaLR, which is not stepped
    after an overflow. In fp32, on weights and gradients that were rounded to fp16."""
    assert config.model.architecture and config.model.config
    model: Any = build_on_meta(model_config(config.model.architecture, dict(config.model.config)))
    initialize = UnitInitializer(model, config.train.seed)
    for unit in find_units(model):
        initialize(unit)
    masters = {name: p.detach().clone().requires_grad_() for name, p in model.named_parameters()}
    optimizer = torch.optim.AdamW(
        masters.values(), lr=1.0, betas=config.optimizer.betas, eps=config.optimizer.eps, weight_decay=0.0
    )
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, learning_rate_schedule(config).at)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**POWER, growth_interval=WINDOW)
    sampler = training_sampler(config, prepare(config.data))
    skipped, rates, losses = [], [], []
    for _ in range(STEPS):
        batch = sampler.next()
        for name, parameter in model.named_parameters():
            parameter.data, parameter.grad = masters[name].detach().half().float(), None
        logits: Tensor = model(input_ids=batch.input_ids, use_cache=False).logits
        loss = torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), batch.labels[:, 1:].flatten())
        scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
        for name, parameter in model.named_parameters():
            assert parameter.grad is not None
            masters[name].grad = parameter.grad.half().float()
        before = scaler.get_scale()
        rates.append(optimizer.param_groups[0]["lr"])
        scaler.step(optimizer)
        scaler.update()
        skipped.append(float(scaler.get_scale() < before))
        losses.append(loss.item())
        if not skipped[-1]:
            schedule.step()
    return skipped, rates, losses


@pytest.mark.parametrize("overlap", ["exact", "serial", "delayed"])
def test_the_schedule_stands_still_on_a_skipped_step_as_torchs_does(
    overlap: str, tmp_path: Path, text_file: Path
) -> None:
    preset = configured(tmp_path, text_file, overlap)
    directory = trained(preset)
    skipped, rates, losses = with_grad_scaler(load_config(preset))
    assert column(directory, "skipped") == skipped
    assert 0 < sum(skipped[STEPS // 2 :]) < sum(skipped) < STEPS - 4, (
        "overflows early and late, and updates between"
    )
    assert column(directory, "learning_rate") == pytest.approx(rates, rel=1e-12)
    if overlap != "delayed":  # which trains on weights that are one update behind
        assert column(directory, "loss") == pytest.approx(losses, rel=1e-4)


def test_a_resumed_run_goes_on_where_its_schedule_was(tmp_path: Path, text_file: Path) -> None:
    whole = trained(configured(tmp_path / "whole", text_file, "exact"))
    stopped = trained(configured(tmp_path / "stopped", text_file, "exact"), f"train.steps={STOPPED}")
    assert sum(column(whole, "skipped")[:STOPPED])
    resume(stopped)
    for name in ("learning_rate", "loss", "grad_norm"):
        assert column(stopped, name) == column(whole, name)
