"""Figures of a run: its peak, the time left, the share of a device's peak; and the random state."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path

import numpy
import pytest
import torch

from workbench.training.measurements import PEAKS, RemainingTime, flops_per_token, met_parameters, peak_flops
from workbench.training.trainer import capture_random_state, restore_random_state, seed_everything

MIB = 1 << 20


@pytest.mark.skipif(
    not Path("/proc/self/clear_refs").exists(), reason="a process cannot forget its peak here"
)
def test_what_was_held_before_is_forgotten_and_what_comes_after_counts() -> None:
    program = f"""
from workbench.training.measurements import forget_peak, peak_host_bytes
held = bytearray(b"x") * (200 * {MIB})
high = peak_host_bytes()
del held
forget_peak()
low = peak_host_bytes()
held = bytearray(b"x") * (100 * {MIB})
assert low < high - 150 * {MIB}, (low, high)
assert low + 90 * {MIB} < peak_host_bytes() < high
"""
    subprocess.run([sys.executable, "-c", program], check=True)


def draw() -> list[float]:
    return [random.random(), random.gauss(0, 1), float(torch.rand(())), float(numpy.random.rand())]


def test_every_random_generator_goes_on_where_it_was() -> None:
    seed_everything(5)
    draw()
    state = json.loads(json.dumps(capture_random_state()))
    expected = [draw() for _ in range(3)]
    seed_everything(6)
    restore_random_state(state)
    assert [draw() for _ in range(3)] == expected


def test_the_remaining_time_follows_recent_steps() -> None:
    remaining = RemainingTime()
    assert remaining.seconds(5) is None
    for _ in range(10):
        remaining.add(100.0)  # the slow first steps
    assert remaining.seconds(5) == 500.0
    for _ in range(100):
        remaining.add(1.0)
    for _ in range(50):
        remaining.add(3.0)
    assert remaining.seconds(10) == 30.0


@pytest.mark.parametrize(
    ("name", "dtype", "tflops"),
    [
        ("NVIDIA H100 PCIe", "bfloat16", 756),
        ("NVIDIA H100 80GB HBM3", "bfloat16", 989),
        ("NVIDIA H200 NVL", "float16", 835),
        ("NVIDIA H100 80GB HBM3", "float32", 67),
        ("NVIDIA L40S", "bfloat16", 362),
        ("NVIDIA L4", "bfloat16", 121),
        ("NVIDIA A10G", "bfloat16", 70),
        ("NVIDIA RTX 6000 Ada Generation", "bfloat16", 364),
        ("NVIDIA GeForce RTX 3090 Ti", "bfloat16", 80),
        ("NVIDIA GeForce RTX 4090", "float32", 82.6),
        ("Tesla V100-SXM2-16GB", "float16", 125),
        ("Tesla V100-SXM2-16GB", "bfloat16", None),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", "bfloat16", None),
        ("NVIDIA A1000", "float16", None),
        ("NVIDIA H100 80GB HBM3", "float64", None),
        ("", "bfloat16", None),
    ],
)
def test_a_device_is_known_by_a_part_of_its_name_and_has_a_peak_for_each_dtype(
    name: str, dtype: str, tflops: float | None
) -> None:
    assert peak_flops(name, dtype) == (None if tflops is None else pytest.approx(tflops * 1e12))


def test_fp32_products_in_tf32_have_a_peak_of_their_own_where_there_is_one() -> None:
    assert peak_flops("NVIDIA A100-SXM4-80GB", "float32", tf32=True) == 156e12
    assert peak_flops("Tesla V100-SXM2-16GB", "float32", tf32=True) == 15.7e12


def test_of_names_that_contain_each_other_the_longer_comes_first() -> None:
    names = list(PEAKS)
    for number, name in enumerate(names):
        assert not [later for later in names[number + 1 :] if later.startswith(f"{name} ")], name
    assert all(peak.sixteen_bit > peak.fp32 for peak in PEAKS.values())


def test_frozen_parameters_leave_two_thirds_of_their_work_and_experts_only_that_of_the_chosen() -> None:
    assert flops_per_token(1000, layers=2, hidden_size=8, sequence_length=16) == 6000 + 12 * 2 * 8 * 16
    assert flops_per_token(1000, 1, 0, 16, frozen=900) == 4 * 900 + 6 * 100
    shapes = [(10, 4), (8, 4, 6), (8, 3), (5, 4, 6)]
    assert met_parameters(shapes, experts=8, chosen=2) == 40 + 2 * 24 + 24 + 120
    assert met_parameters(shapes, experts=0, chosen=0) == 40 + 192 + 24 + 120
