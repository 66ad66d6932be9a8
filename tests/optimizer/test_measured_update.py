"""An update that measures on its way has the sums and the state of two calls, and leaves what is not finite alone."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from workbench.layout import MOMENTS, StateFormat
from workbench.optimizer.host import AdamW, HostOptimizer, Piece, PieceTable

PARTIAL = 65536
COUNTS = (1, 255, PARTIAL, 0, PARTIAL + 1, 3 * PARTIAL + 777, 40_000)
WITHOUT_GRADIENT = 4
SETTINGS = AdamW(lr=1e-2, weight_decay=0.1)


def state_of(count: int, state_format: StateFormat, seed: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    state = {
        m.kind: torch.zeros(m.count(count), dtype=getattr(torch, m.dtype)) for m in MOMENTS[state_format]
    }
    state["high"] = torch.randn(count, generator=generator).bfloat16()
    state["low"] = torch.zeros(count, dtype=torch.int16)
    return state


def trained(
    state_format: StateFormat, threads: int, *, at_once: bool, spoil: int | None = None
) -> list[Tensor]:
    """State and partials after three steps; element `spoil` of the largest gradient is NaN in the third."""
    states = [state_of(count, state_format, number) for number, count in enumerate(COUNTS)]
    pieces = [
        Piece(**state, state_format=state_format, random_stream=number) for number, state in enumerate(states)
    ]
    table = PieceTable(pieces)
    table.partials.fill_(-1)  # so that one that is not written shows
    generator = torch.Generator().manual_seed(9)
    with HostOptimizer(threads) as host:
        for step in range(1, 4):
            gradients = [torch.randn(count, generator=generator).bfloat16() for count in COUNTS]
            if spoil is not None and step == 3:
                gradients[5][spoil] = math.nan
            table.set_gradients([None if i == WITHOUT_GRADIENT else g for i, g in enumerate(gradients)])
            table.set_steps([step] * len(COUNTS))
            if at_once:
                host.measure_and_update(table, SETTINGS, 0.5)
            else:
                host.sum_of_squares(table)
                host.update(table, SETTINGS, 0.5)
    return [table.partials, *(tensor for state in states for tensor in state.values())]


@pytest.mark.parametrize("state_format", list(MOMENTS))
@pytest.mark.parametrize("threads", [1, 2, 5])
def test_its_bits_are_those_of_two_calls(state_format: StateFormat, threads: int) -> None:
    expected = trained(state_format, 1, at_once=False)
    found = trained(state_format, threads, at_once=True)
    assert all(
        torch.equal(a.view(torch.uint8), b.view(torch.uint8)) for a, b in zip(expected, found, strict=True)
    )


@pytest.mark.parametrize("state_format", list(MOMENTS))
def test_elements_under_a_sum_that_is_not_finite_stay_and_all_others_are_updated(
    state_format: StateFormat,
) -> None:
    spoilt = PARTIAL + 17  # in the second block of the largest piece
    expected = trained(state_format, 2, at_once=True)
    found = trained(state_format, 2, at_once=True, spoil=spoilt)
    assert found[0].isfinite().logical_not().nonzero().tolist() == [[6]], (
        "1 + 1 + 1 + 0 + 2 partials come before its own"
    )
    kinds = list(state_of(1, state_format, 0))
    high = 1 + 5 * len(kinds) + kinds.index("high")
    differing = (expected[high].float() != found[high].float()).nonzero().view(-1)
    assert differing.min() >= PARTIAL and differing.max() < 2 * PARTIAL
    assert differing.numel() > PARTIAL // 2
    before = [tensor for i, tensor in enumerate(found) if i and (i - 1) // len(kinds) != 5]
    other = [tensor for i, tensor in enumerate(expected) if i and (i - 1) // len(kinds) != 5]
    assert all(
        torch.equal(a.view(torch.uint8), b.view(torch.uint8)) for a, b in zip(before, other, strict=True)
    )


def test_a_step_that_was_not_set_is_refused_and_nothing_is_written() -> None:
    piece = Piece(exp_avg=torch.zeros(8), exp_avg_sq=torch.zeros(8), master=torch.ones(8))
    table = PieceTable([piece])
    table.set_gradient(0, torch.ones(8))
    with HostOptimizer(1) as host, pytest.raises(ValueError, match="step 0"):
        host.measure_and_update(table, SETTINGS)
    assert piece.master is not None and piece.master.tolist() == [1.0] * 8
