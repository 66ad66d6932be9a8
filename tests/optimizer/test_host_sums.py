"""The sum of squares: exact layout of its partials, float64 accuracy, and infinities and NaNs that show."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from workbench.optimizer.host import HostOptimizer, Piece, PieceTable

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
