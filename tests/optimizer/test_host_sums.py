"""The sum of squares alone and on an update's way: its partials, float64 accuracy, and what is not finite."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from workbench.layout import MOMENTS, StateFormat
from workbench.optimizer.host import AdamW, HostOptimizer, Piece, PieceTable

PARTIAL = 65536


def table_of(gradients: list[Tensor | None], counts: list[int] | None = None) -> PieceTable:
    counts = counts or [0 if gradient is None else gradient.numel() for gradient in gradients]
    table = PieceTable([Piece(torch.zeros(n), torch.zeros(n), master=torch.zeros(n)) for n in counts])
    for index, gradient in enumerate(gradients):
        table.set_gradient(index, gradient)
    return table


def sums(gradients: list[Tensor | None], threads: int = 2, counts: list[int] | None = None) -> Tensor:
    table = table_of(gradients, counts)
    table.partials.fill_(-1)  # so that one that is not written shows
    with HostOptimizer(threads=threads) as optimizer:
        optimizer.sum_of_squares(table)
    return table.partials


def test_partials_are_laid_out_by_piece_one_for_each_65536_elements() -> None:
    counts = [0, 1, PARTIAL, 0, PARTIAL + 1, 3 * PARTIAL - 1, 0]
    gradients: list[Tensor | None] = [torch.full((n,), float(i)) for i, n in enumerate(counts)]
    table = table_of(gradients)
    with HostOptimizer(threads=2) as optimizer:
        optimizer.sum_of_squares(table)
    squares = [1, 4 * PARTIAL, 16 * PARTIAL, 16, 25 * PARTIAL, 25 * PARTIAL, 25 * (PARTIAL - 1)]
    assert table.partials.tolist() == squares
    assert [table.piece_partials(i).numel() for i in range(7)] == [0, 1, 1, 0, 2, 3, 0]
    assert table.piece_partials(4).tolist() == squares[2:4]
    assert table.piece_partials(4).data_ptr() == table.partials[2:].data_ptr()


def test_pieces_without_a_gradient_give_zero() -> None:
    partials = sums([None, torch.ones(5), None], counts=[PARTIAL + 1, 5, 3])
    assert partials.tolist() == [0, 0, 5, 0]
    assert sums([]).tolist() == []


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_partials_agree_with_float64(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(1)
    gradients = [torch.randn(n, generator=generator).to(dtype) for n in (*range(1, 200), 300_007)]
    partials = sums([*gradients])
    expected = torch.cat(
        [gradient.double().square().split(PARTIAL)[0].sum()[None] for gradient in gradients[:-1]]
    )
    last = torch.stack([part.sum() for part in gradients[-1].double().square().split(PARTIAL)])
    torch.testing.assert_close(partials, torch.cat([expected, last]), rtol=1e-14, atol=0)


@pytest.mark.parametrize("bad", [float("inf"), float("-inf"), float("nan")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_one_value_that_is_not_finite_shows_wherever_it_is_and_only_there(
    bad: float, dtype: torch.dtype
) -> None:
    length = 2 * PARTIAL + 45
    gradient = torch.ones(length, dtype=dtype)
    table = table_of([gradient])
    with HostOptimizer(threads=2) as optimizer:
        for position in (*range(70), PARTIAL - 1, PARTIAL, 2 * PARTIAL - 1, *range(2 * PARTIAL, length)):
            gradient[position] = bad
            optimizer.sum_of_squares(table)
            gradient[position] = 1
            finite = table.partials.isfinite()
            assert [index for index in range(3) if not finite[index]] == [position // PARTIAL]


def test_the_largest_and_smallest_values_neither_overflow_nor_vanish() -> None:
    largest = torch.finfo(torch.float32).max
    partials = sums([torch.full((PARTIAL,), largest), torch.full((PARTIAL,), 1e-45)])
    assert bool(partials.isfinite().all())
    assert partials[0].item() == pytest.approx(largest * largest * PARTIAL, rel=1e-12)
    assert partials[1].item() == pytest.approx(2.0**-298 * PARTIAL, rel=1e-12)


# Sums and an update in one pass

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
