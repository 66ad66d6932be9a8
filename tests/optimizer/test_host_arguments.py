"""What the host optimizer refuses, each time naming the argument."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from workbench.optimizer.host import AdamW, HostOptimizer, Piece, PieceTable


@pytest.fixture(scope="module")
def optimizer() -> Iterator[HostOptimizer]:
    with HostOptimizer(threads=1) as made:
        yield made


def piece(**changed: Any) -> Piece:
    tensors: dict[str, Any] = {
        "exp_avg": torch.zeros(8),
        "exp_avg_sq": torch.zeros(8),
        "high": torch.zeros(8, dtype=torch.bfloat16),
        "low": torch.zeros(8, dtype=torch.int16),
    }
    return Piece(**{**tensors, **changed})


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"lr": -1.0}, "lr"),
        ({"lr": float("nan")}, "lr"),
        ({"eps": float("inf")}, "eps"),
        ({"weight_decay": -0.1}, "weight_decay"),
        ({"betas": (1.0, 0.9)}, r"betas\[0\]"),
        ({"betas": (0.9, -0.1)}, r"betas\[1\]"),
        ({"betas": (0.9,)}, "betas"),
    ],
)
def test_settings_name_the_field_that_is_out_of_range(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        AdamW(**values)


@pytest.mark.parametrize("name", ["exp_avg", "exp_avg_sq", "high", "low"])
@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda tensor: tensor.to(torch.float64), "must be torch"),
        (lambda tensor: torch.zeros(16, dtype=tensor.dtype)[::2], "must be contiguous"),
        (lambda tensor: tensor.to("meta"), "must be on the CPU"),
        (lambda tensor: tensor.reshape(2, 4), "must have one dimension"),
        (lambda tensor: tensor.tolist(), "must be a tensor"),
    ],
)
def test_a_piece_names_the_tensor_that_does_not_fit(
    name: str, spoil: Callable[[torch.Tensor], Any], message: str
) -> None:
    with pytest.raises((ValueError, TypeError), match=f"^{name} {message}"):
        piece(**{name: spoil(getattr(piece(), name))})


@pytest.mark.parametrize("name", ["exp_avg_sq", "high", "low"])
def test_a_piece_names_the_tensor_of_another_length(name: str) -> None:
    with pytest.raises(ValueError, match=f"^{name} must have 8 elements, not 9"):
        piece(**{name: torch.zeros(9, dtype=getattr(piece(), name).dtype)})


def test_a_piece_has_a_master_or_both_halves() -> None:
    with pytest.raises(ValueError, match="master, or high and low together"):
        piece(low=None)
    with pytest.raises(ValueError, match="master excludes high and low"):
        piece(master=torch.zeros(8))
    with pytest.raises(ValueError, match="emit goes with master"):
        piece(emit=torch.zeros(8, dtype=torch.bfloat16))


def test_memory_that_begins_between_two_elements_is_refused() -> None:
    shifted = torch.zeros(37, dtype=torch.uint8)[1:33]
    with pytest.raises(ValueError, match=r"exp_avg must begin at a multiple of its element size, 4 bytes"):
        piece(exp_avg=torch.frombuffer(memoryview(shifted.numpy()), dtype=torch.float32))


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (torch.zeros(7), "gradient must have 8 elements, not 7"),
        (torch.zeros(8).double(), "gradient must be float32, bfloat16 or float16"),
        (torch.zeros(16)[::2], "gradient must be contiguous"),
        (torch.zeros(8, device="meta"), "gradient must be on the CPU"),
    ],
)
def test_a_gradient_is_checked_whether_it_is_given_alone_or_with_others(bad: Tensor, message: str) -> None:
    table = PieceTable([piece(), piece()])
    with pytest.raises(ValueError, match=message):
        table.set_gradient(1, bad)
    with pytest.raises(ValueError, match=message):
        table.set_gradients([None, bad])
    with pytest.raises(ValueError):
        table.set_gradients([None])
    with pytest.raises(IndexError, match="index must be from 0 to 1, not 2"):
        table.set_gradient(2, None)


def test_a_step_is_checked_and_must_be_set_before_an_update(optimizer: HostOptimizer) -> None:
    table = PieceTable([piece(), piece()])
    with pytest.raises(ValueError, match="step must not be negative, not -1"):
        table.set_step(0, -1)
    table.set_step(0, 1)
    for index in range(2):
        table.set_gradient(index, torch.ones(8))
    with pytest.raises(ValueError, match="piece 1 has a gradient and step 0"):
        optimizer.update(table, AdamW())
    assert table._pieces[0].exp_avg.tolist() == [0] * 8  # nothing was written
    table.set_gradient(1, None)
    optimizer.update(table, AdamW())


@pytest.mark.parametrize("scale", [float("nan"), float("inf"), 1e39])
def test_the_scale_must_be_finite(optimizer: HostOptimizer, scale: float) -> None:
    with pytest.raises(ValueError, match="gradient_scale"):
        optimizer.update(PieceTable([]), AdamW(), gradient_scale=scale)


@pytest.mark.parametrize("threads", [0, -1, 1.5, "all", 10**6])
def test_threads_are_checked(threads: Any) -> None:
    with pytest.raises(ValueError, match="threads"):
        HostOptimizer(threads=threads)


FLOATS, HIGH, LOW = torch.zeros(4), torch.zeros(4, dtype=torch.bfloat16), torch.zeros(4, dtype=torch.int16)


@pytest.mark.parametrize(
    ("call", "tensors", "message"),
    [
        ("accumulate", (HIGH, FLOATS), "destination must be torch.float32"),
        ("accumulate", (FLOATS, LOW), "source must be float32, bfloat16 or float16"),
        ("accumulate", (FLOATS, HIGH[:3]), "source must have 4 elements, not 3"),
        ("split", (FLOATS, LOW, LOW), "high must be torch.bfloat16"),
        ("split", (FLOATS, HIGH, LOW[:3]), "low must have 4 elements, not 3"),
        ("join", (HIGH, LOW, HIGH), "out must be torch.float32"),
        ("copy", (FLOATS, HIGH), "source has 8 bytes, destination 16"),
        ("copy", (FLOATS, torch.zeros(8)[::2]), "source must be contiguous"),
    ],
)
def test_conversions_name_the_argument(
    optimizer: HostOptimizer, call: str, tensors: tuple[Tensor, ...], message: str
) -> None:
    with pytest.raises(ValueError, match=f"^{message}"):
        getattr(optimizer, call)(*tensors)


def table_of(count: int) -> PieceTable:
    return PieceTable([Piece(*(torch.zeros(8) for _ in range(3))) for _ in range(count)])


def test_gradients_given_together_work_as_given_singly_and_can_be_released() -> None:
    together, singly = table_of(3), table_of(3)
    given = [torch.ones(8, dtype=torch.bfloat16), None, torch.full((2, 4), 2.0)]
    together.set_gradients(given)
    for index, gradient in enumerate(given):
        singly.set_gradient(index, gradient)
    together.steps.fill_(1)
    for index in range(3):
        singly.set_step(index, 1)
    assert singly.steps.tolist() == [1, 1, 1]
    with HostOptimizer(threads=1) as optimizer:
        results = []
        for table in (together, singly, together):  # the last without gradients
            optimizer.update(table, AdamW())
            table.release_gradients()
            results.append([piece.exp_avg.tolist() for piece in table._pieces])
    assert results[0] == results[1] == results[2]
    assert results[0][0][0] > 0 and results[0][1][0] == 0 and results[0][2][0] > 0
