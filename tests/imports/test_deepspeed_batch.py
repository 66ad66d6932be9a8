"""The batch sizes follow DeepSpeed's rule on one GPU: two give the third, and the product must hold."""

from __future__ import annotations

import json
from itertools import product
from typing import Any

import pytest
from deepspeed_files import config_of

from workbench.config import RunConfig
from workbench.imports import Imported, import_text

NAMES = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")


def imported(*sizes: Any) -> Imported:
    given = {name: size for name, size in zip(NAMES, sizes, strict=True) if size is not None}
    return import_text(json.dumps(given or {"dump_state": False}), "ds.json", architecture="gpt2")


def sizes_of(made: Imported) -> tuple[int, int]:
    train = config_of(made).train
    return train.micro_batch_size, train.gradient_accumulation


DEFAULT = RunConfig().train.micro_batch_size


@pytest.mark.parametrize(
    ("total", "micro", "accumulation", "wanted"),
    [
        (None, None, None, (DEFAULT, 1)),
        ("auto", 4, None, (4, 1)),
        (16, 4, "auto", (4, 4)),
        (16, "auto", 4, (4, 4)),
        (16, "auto", "auto", (16, 1)),
        ("auto", "auto", "auto", (DEFAULT, 1)),
        ("auto", "auto", 4, (DEFAULT, 4)),
        (16.0, 4, None, (4, 4)),
    ],
)
def test_the_sizes_that_are_given_give_the_others(
    total: Any, micro: Any, accumulation: Any, wanted: tuple[int, int]
) -> None:
    assert sizes_of(imported(total, micro, accumulation)) == wanted


@pytest.mark.parametrize(
    ("total", "micro", "accumulation", "reason"),
    [
        (None, None, 4, "says nothing without train_batch_size or train_micro_batch_size_per_gpu"),
        (256, 4, 8, "was written for 8 GPUs (256 = 4 x 8 x 8)"),
        (64, 4, 8, "leave train_batch_size out and add --set parallel.gpus=2"),
        (30, 4, 8, "is not 4 x 8 = 32"),
        (10, 4, None, "cannot be made of micro-batches of 4; 8 or 12 can"),
        (10, None, 4, "cannot be made in 4 micro-batches; 8 or 12 can"),
        (0, 4, None, "must be at least 1"),
        (None, 1.5, None, "must be a whole number"),
        (None, "4", None, "must be a number, without quotes"),
        (None, True, None, "must be a number"),
        (None, 100_000, None, "from 1 to 65,536"),
        (1e400, None, None, "must be a number"),
    ],
)
def test_sizes_that_break_the_rule_are_refused_in_one_sentence(
    total: Any, micro: Any, accumulation: Any, reason: str
) -> None:
    (sentence,) = imported(total, micro, accumulation).refused
    assert reason in sentence


def test_the_rule_is_deepspeeds_for_all_small_sizes() -> None:
    """Against the rule as DeepSpeed states it: floor division, then the product is checked, on one GPU."""
    for total, micro, accumulation in product((None, 1, 2, 3, 4, 6), repeat=3):
        wanted = deepspeeds(total, micro, accumulation)
        if (total, micro, accumulation) == (None, None, None):
            continue
        made = imported(total, micro, accumulation)
        if wanted is None:
            assert made.refused
        else:
            assert sizes_of(made) == wanted


def deepspeeds(total: int | None, micro: int | None, accumulation: int | None) -> tuple[int, int] | None:
    if total is None and micro is None:
        return None
    if total is None:
        assert micro is not None
        return micro, accumulation or 1
    if micro is None:
        micro = total // (accumulation or 1)
    accumulation = total // micro if accumulation is None and micro else accumulation or 1
    return (micro, accumulation) if micro * accumulation == total and micro else None
