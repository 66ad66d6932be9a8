"""The tracker counts a small known graph to the byte, and curves hold what was counted."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional
from workbench.profiles.model.amounts import Recording, alive_after, fit, four_sizes, operations, peak
from workbench.profiles.model.block_costs import record_forward, record_training
from workbench.profiles.model.stand_ins import FusedDropout

from workbench.profiles.cut_model import Call
from workbench.profiles.storage_tracker import StorageTracker


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


def test_a_graphs_saved_tensors_live_until_its_backward() -> None:
    leaf = torch.ones(8, 8, requires_grad=True)
    tracker = StorageTracker()
    tracker.count(leaf)
    with tracker:
        result = leaf.exp().sin()  # sin keeps its input, exp its result: the same
    assert live_after_each(tracker.recording) == [256, 512, 768]
    gradient = torch.ones(8, 8)
    with tracker:
        result.backward(gradient)
    del result
    assert live_after_each(tracker.recording)[-1] == 512  # the leaf and its gradient


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


def test_float64_stands_for_16_bits_and_fp32_stays_what_it_is() -> None:
    narrow, wide = torch.ones(64, dtype=torch.float64), torch.ones(64)
    tracker = StorageTracker(narrow=True)
    with tracker:
        kept = [narrow + 1, narrow.float(), narrow * wide]
    assert tracker.recording.sizes == [128, 256, 256]
    assert kept[2].dtype == torch.float32  # as bf16 and fp32 give


@pytest.mark.parametrize("narrow", [False, True])
def test_grouped_products_count_each_row_once(narrow: bool) -> None:
    dtype = torch.float64 if narrow else torch.float32
    rows, matrices = torch.ones(8, 16, dtype=dtype), torch.ones(3, 16, 32, dtype=dtype)
    tracker = StorageTracker(narrow=narrow)
    with tracker:
        result = functional.grouped_mm(rows, matrices, offs=torch.tensor([2, 5, 8], dtype=torch.int32))
    assert result.dtype == dtype
    assert tracker.recording.phases[0].flops == 2 * 8 * 16 * 32


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


def test_a_parameters_gradient_is_dropped_and_does_not_count() -> None:
    block = Block()
    graph = record_training(block, Call((torch.ones(1, 2, 16),), {}))
    assert block.weight.grad is None
    assert 0 in graph.sizes
    assert max(live_after_each(graph)) < 16 * 16 * 4


def test_curves_hold_amounts_of_every_form() -> None:
    for amount in ((7, 0, 0, 5, 3), (0, 0, 2, 1, 0), (11, 4, 0, 0, 9), (0, 0, 0, 0, 0)):
        fixed, shared, pair, token, tokens2 = amount
        values = [fixed + t * (shared + pair * t) + s * t * (token + tokens2 * t) for s, t in four_sizes(12)]
        assert fit(values, 12) == amount


def test_an_amount_of_no_known_form_is_never_foretold_too_small_where_it_was_seen() -> None:
    values = [100.0, 40.0, 90.0, 20.0]
    amount = fit(values, 8)
    for value, size in zip(values, four_sizes(8), strict=True):
        assert amount.at(*size) >= value


def test_a_peak_is_the_highest_of_all_moments_at_every_size() -> None:
    """Two moments: one in proportion to the tokens, one to their square, each alone."""
    runs = []
    for sequences, tokens in four_sizes(4):
        recording = Recording(
            sizes=[1000 * sequences * tokens, sequences * tokens * tokens],
            events=[1, -1, 2, -2],
            marks=[],
        )
        recording.phases[0].operations = 2
        runs.append(recording)
    curve = peak(runs, 0, 4)
    assert curve.at(3, 10) == 1000 * 3 * 10
    assert curve.at(3, 5000) == 3 * 5000 * 5000
    assert alive_after(runs, 0, 4).at(3, 10) == 0
    assert operations(runs, 0) == 2


def test_fused_dropout_keeps_a_byte_an_element() -> None:
    values = torch.ones(64, requires_grad=True)
    tracker, mode = StorageTracker(), FusedDropout()
    with mode, tracker:
        result = functional.dropout(values, 0.5)
    assert mode.met
    assert sorted(tracker.recording.sizes) == [64, 256]
    assert result.grad_fn is not None


@pytest.mark.parametrize(("share", "training"), [(0.0, True), (0.5, False)])
def test_where_nothing_is_dropped_nothing_changes(share: float, training: bool) -> None:
    mode = FusedDropout()
    with mode:
        result = functional.dropout(torch.ones(8), share, training)
    assert not mode.met
    assert result.tolist() == [1.0] * 8
