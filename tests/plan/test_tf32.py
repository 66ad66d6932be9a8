"""fp32 matrix products that are rounded to TF32: in the plan, and in training."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from workbench.config import load_config
from workbench.config.schema import TrainConfig
from workbench.plan.machine import planned_machine
from workbench.plan.rates import Rates
from workbench.plan.step_time import compute_times
from workbench.plan.workload import workload
from workbench.presets import find_preset
from workbench.profiles.model_profile import model_table
from workbench.profiles.named_machines import load_profile
from workbench.profiles.obtain import read_shipped
from workbench.training.session import choose_kernels


@pytest.mark.parametrize(("name", "rounds"), [("server-80gb", True), ("server-v100-32gb", False)])
def test_a_block_is_as_much_shorter_as_its_products_where_the_gpu_has_tf32(name: str, rounds: bool) -> None:
    config = load_config(find_preset("gpt2-124m"), ["train.precision=fp32", "train.tf32=true"])
    profile = read_shipped(model_table(config))
    machine = planned_machine(load_profile(Path(name)))
    assert profile is not None and machine.profile is not None
    rates = Rates(machine.profile, "auto")
    speeds = machine.profile.device.matrix_flops_per_s
    assert ("tf32" in speeds) == rounds
    forward = []
    for tf32 in (False, True):
        work = replace(workload(config, machine.precision(config), shared_memory=False), tf32=tf32)
        forward.append(compute_times(profile, work, rates, None).forward[0])
    # Attention is not rounded.
    flops = profile.kinds[0].flops.per_token * work.micro_batch_size * work.sequence_length
    saved = flops / speeds["float32"] - flops / speeds["tf32"] if rounds else 0.0
    assert forward[0] - forward[1] == pytest.approx(saved)


@pytest.mark.parametrize("tf32", [True, False])
def test_training_sets_what_torch_multiplies_with(tf32: bool) -> None:
    before = torch.backends.cuda.matmul.fp32_precision
    try:
        choose_kernels(TrainConfig(tf32=tf32))
        assert torch.backends.cuda.matmul.fp32_precision == ("tf32" if tf32 else "ieee")
    finally:
        torch.backends.cuda.matmul.fp32_precision = before
