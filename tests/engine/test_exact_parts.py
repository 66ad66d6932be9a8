"""Partial sums of squares are kept as a few numbers of the very same sum, so that the norm is soon known."""

from __future__ import annotations

import itertools
import math
import random

import pytest
import torch

from workbench.engine.arithmetic import HostArithmetic, StateViews, exact_parts
from workbench.layout import NORM_BLOCK


@pytest.mark.parametrize("seed", range(20))
def test_no_bit_of_the_sum_is_lost(seed: int) -> None:
    chance = random.Random(seed)
    chunks = [
        [chance.random() * 2.0 ** chance.randrange(-1070, 900) for _ in range(chance.randrange(200))]
        for _ in range(10)
    ]
    kept = [exact_parts(chunk) for chunk in chunks]
    assert math.fsum(itertools.chain(*kept)) == math.fsum(itertools.chain(*chunks))


@pytest.mark.parametrize("value", [math.inf, math.nan])
def test_what_is_not_finite_stays_so(value: float) -> None:
    assert not math.isfinite(math.fsum(exact_parts([1.0, value, 2.0])))


def test_a_chunks_norm_leaves_a_few_numbers_for_the_check() -> None:
    size = 64 * NORM_BLOCK
    gradient = torch.randn(size, generator=torch.Generator().manual_seed(0))
    zeros = [torch.zeros(size) for _ in range(3)]
    arithmetic = HostArithmetic(threads=1)
    views = StateViews(
        decay=False,
        learning_rate_scale=1.0,
        state_format="exact",
        offset=0,
        random_stream=0,
        master=zeros[0],
        exp_avg=zeros[1],
        exp_avg_sq=zeros[2],
    )
    table = arithmetic.table([views])
    table.set_gradients([gradient])
    arithmetic.sum_of_squares(table)
    kept = arithmetic.read_partials([table])
    assert len(table.partials) == 64 and len(kept) <= 4
    assert math.fsum(kept) == math.fsum(table.partials.tolist())
    arithmetic.close()
