"""The tracker counts a small known graph to the byte, and curves hold what was counted."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

from workbench.profiles.block_costs import SEQUENCES, fit, peak, record_forward, record_training
from workbench.profiles.meta_model import Call
from workbench.profiles.storage_tracker import Recording, StorageTracker


def live_after_each(recording: Recording) -> list[int]:
    live, found = 0, []
    for event in recording.events:
        live += recording.sizes[abs(event) - 1] * (1 if event > 0 else -1)
        found.append(live)
    return found


def test_births_and_ends_of_storages_are_followed_to_the_byte() -> None:
    weight = torch.ones(8, 8)
    tracker = StorageTracker()
    with tracker:
        first = weight + 1  # 256 bytes
        part = first[:2].t()  # a view
        second = first.double()  # 512
    del first
    assert live_after_each(tracker.recording) == [256, 768]
    del part  # only now is nobody left to hold the first
    del second
    assert live_after_each(tracker.recording) == [256, 768, 512, 0]


def test_elements_and_products_are_counted_apart() -> None:
    left, right = torch.ones(4, 8), torch.ones(8, 16)
    tracker = StorageTracker()
    with tracker:
        product = left @ right
        tracker.mark()
        product.mul_(2)
        torch.empty(100).copy_(torch.empty(100))
        torch.add(product, torch.ones(16).expand(4, 16)).view(-1)
    products, elements = tracker.recording.phases
    assert (products.flops, products.element_bytes, products.operations) == (2 * 4 * 8 * 16, 0, 1)
    in_place, copied, ones, added = 2 * 256, 2 * 400, 64, 256 + 64 + 256
    assert elements.element_bytes == in_place + copied + ones + added
    assert (elements.flops, elements.operations) == (0, 4)


@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_grouped_products_count_each_row_once(device: str, dtype: torch.dtype) -> None:
    rows = torch.ones(8, 16, dtype=dtype, device=device, requires_grad=True)
    matrices = torch.ones(3, 16, 32, dtype=dtype, device=device, requires_grad=True)
    offsets = torch.tensor([2, 5, 8], dtype=torch.int32, device=device)
    tracker = StorageTracker()
    with tracker:
        result = functional.grouped_mm(rows, matrices, offs=offsets)
        tracker.mark()
        result.backward(torch.ones_like(result))
    assert (result.dtype, result.shape) == (dtype, (8, 32))
    assert rows.grad is not None and matrices.grad is not None and matrices.grad.shape == matrices.shape
    forward, backward = tracker.recording.phases
    assert forward.flops == 2 * 8 * 16 * 32 and backward.flops == 2 * forward.flops


class Block(nn.Module):
    """x + tanh(x W), for which all can be counted by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(16, 16))

    def forward(self, hidden_states: torch.Tensor) -> tuple[torch.Tensor, None]:
        return hidden_states + torch.tanh(hidden_states @ self.weight), None


def test_a_block_is_counted_as_by_hand() -> None:
    one = 10 * 16 * 4  # bytes of one tensor of 10 tokens
    call = Call((torch.ones(1, 10, 16),), {})
    alone, graph = record_forward(Block(), call), record_training(Block(), call)
    assert max(live_after_each(alone)) == 3 * one  # input, and two of product, tanh and sum at a time
    (mark,) = graph.marks
    live = live_after_each(graph)
    assert live[mark - 1] == 2 * one  # input and tanh
    assert max(live[:mark]) == 3 * one
    # input, tanh, the gradient that comes in and that of the product; the weight's own does not count
    assert max(live[mark:]) == 4 * one


@pytest.mark.parametrize("amount", [(5, 3, 0), (5, 0, 7), (0, 9, 0), (0, 0, 11), (0, 0, 0)])
def test_a_fit_holds_amounts_of_every_form(amount: tuple[int, int, int]) -> None:
    token, pair, fixed = amount
    values = [fixed + SEQUENCES * t * (token + pair * t) for t in (12, 24)]
    curve = fit(*values, tokens=12)
    assert (curve.per_token, curve.per_token_pair, curve.fixed) == amount


@pytest.mark.parametrize("values", [(100, 40), (0, 90), (1, 1000)])
def test_an_amount_of_no_known_form_is_never_below_what_was_seen_at_the_larger_size(
    values: tuple[int, int],
) -> None:
    amount = fit(*values, tokens=8)
    assert min(amount.per_token, amount.per_token_pair, amount.fixed) >= 0
    assert amount.at(SEQUENCES, 16) >= values[1] - 1e-3


def test_a_peak_is_the_highest_of_all_moments_at_every_size() -> None:
    """Two moments: one in proportion to the tokens, one to their square, each alone."""
    runs = [
        Recording(sizes=[1000 * SEQUENCES * tokens, SEQUENCES * tokens * tokens], events=[1, -1, 2, -2])
        for tokens in (4, 8)
    ]
    curve = peak(runs, 0, 4)
    assert curve.at(3, 10) == 1000 * 3 * 10
    assert curve.at(3, 5000) == 3 * 5000 * 5000
