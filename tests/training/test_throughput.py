"""Speed and remaining time."""

from __future__ import annotations

import pytest

from workbench.training.throughput import RemainingTime, duration, flops_per_token, peak_flops


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "n/a"),
        (0, "0s"),
        (59.4, "59s"),
        (59.6, "1m00s"),
        (725, "12m05s"),
        (3599.7, "1h00m"),
        (79_800, "22h10m"),
        (86_399.6, "1d00h"),
        (3 * 86_400 + 4 * 3600, "3d04h"),
    ],
)
def test_a_time_span_is_short_and_rounds_over_its_units(seconds: float | None, text: str) -> None:
    assert duration(seconds) == text


def test_the_remaining_time_leaves_out_the_slow_first_steps() -> None:
    remaining = RemainingTime()
    assert remaining.seconds(5) is None
    for _ in range(10):
        remaining.add(100.0)
    assert remaining.seconds(5) == 500.0
    remaining.add(2.0)
    assert remaining.seconds(5) == 10.0


def test_the_remaining_time_follows_recent_steps() -> None:
    remaining = RemainingTime()
    for _ in range(100):
        remaining.add(1.0)
    for _ in range(50):
        remaining.add(3.0)
    assert remaining.seconds(10) == 30.0


def test_a_gpu_is_known_by_a_part_of_its_name_and_longer_names_come_first() -> None:
    assert peak_flops("NVIDIA H100 PCIe") == 756e12
    assert peak_flops("NVIDIA H100 80GB HBM3") == 989e12
    assert peak_flops("NVIDIA L40S") == 362e12
    assert peak_flops("NVIDIA RTX A6000") == 155e12
    assert peak_flops("") is None
    assert peak_flops("NVIDIA GeForce GTX 1080") is None


def test_work_a_token_is_that_of_the_palm_paper() -> None:
    assert flops_per_token(1000, layers=2, hidden_size=8, sequence_length=16) == 6000 + 12 * 2 * 8 * 16
