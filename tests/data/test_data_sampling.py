"""Windows of tokens: each once an epoch, the same after resuming, whatever else draws random numbers."""

import itertools
import random

import numpy as np
import pytest
import torch

from workbench.data.batches import TokenStream
from workbench.data.batches.sampling import WindowSampler, evaluation_batches
from workbench.errors import ConfigurationError

LENGTH = 8


def counting(count: int) -> TokenStream:
    """Tokens whose value is their place."""
    return TokenStream(torch.arange(count, dtype=torch.int32).to(torch.uint16))


def in_documents(lengths: list[int]) -> TokenStream:
    """The same in documents."""
    starts = np.cumsum([0, *lengths])[:-1]
    return TokenStream(torch.arange(sum(lengths)), torch.from_numpy(starts).view(torch.uint64))


def starts(sampler: WindowSampler, windows: int) -> list[int]:
    return [int(sampler.next().input_ids[0, 0]) for _ in range(windows)]


def test_a_batch_is_whole_windows_of_consecutive_tokens() -> None:
    batch = WindowSampler(counting(1000), LENGTH, 5, seed=1).next()
    ids = batch.input_ids
    assert ids.shape == (5, LENGTH)
    assert ids.dtype == torch.int64
    assert torch.equal(ids, ids[:, :1] + torch.arange(LENGTH))
    assert torch.equal(batch.labels, ids) and batch.position_ids is None
    assert (batch.loss_tokens, batch.tokens) == (5 * (LENGTH - 1), 5 * LENGTH)


@pytest.mark.parametrize(("dtype", "largest"), [(torch.uint16, 2**16 - 1), (torch.uint32, 2**32 - 1)])
def test_large_ids_are_not_taken_for_negative(dtype: torch.dtype, largest: int) -> None:
    tokens = TokenStream(torch.full((20,), largest).to(dtype))
    assert WindowSampler(tokens, LENGTH, 1, seed=0).next().input_ids.eq(largest).all()


@pytest.mark.parametrize("count", [8, 9, 15, 16, 17, 100, 1003])
def test_each_epoch_sees_every_window_once_and_leaves_out_less_than_one_at_either_end(count: int) -> None:
    sampler = WindowSampler(counting(count), LENGTH, 1, seed=3)
    orders = []
    for epoch in range(6):
        seen = []
        while True:
            seen += starts(sampler, 1)
            ahead = WindowSampler(counting(count), LENGTH, 1, seed=3)
            ahead.load_state(sampler.state())
            ahead.next()
            if ahead.state()["epoch"] > epoch:
                break
        orders.append(seen)
        ordered = sorted(seen)
        assert ordered == list(range(ordered[0], ordered[0] + LENGTH * len(seen), LENGTH))
        assert ordered[0] < LENGTH
        assert count - (ordered[-1] + LENGTH) < LENGTH
        assert sampler.sequences_per_epoch() - len(seen) in (0, 1)
    if count >= 100:
        assert len({tuple(order) for order in orders}) == 6
        assert len({min(order) for order in orders}) > 1
        assert all(order != sorted(order) for order in orders)


def test_a_batch_reaches_over_the_end_of_an_epoch_without_a_loss() -> None:
    one = WindowSampler(counting(100), LENGTH, 1, seed=5)
    many = WindowSampler(counting(100), LENGTH, 7, seed=5)
    batches = torch.cat([many.next().input_ids for _ in range(10)])
    assert batches[:, 0].tolist() == starts(one, 70)
    assert many.state()["epoch"] >= 5


@pytest.mark.parametrize("seed", range(6))
def test_a_cursor_resumes_exactly_where_it_was_taken(seed: int) -> None:
    choose = random.Random(seed)
    tokens = counting(choose.randint(20, 2000))
    batch_size = choose.randint(1, 9)
    sampler = WindowSampler(tokens, LENGTH, batch_size, seed)
    for _ in range(choose.randint(0, 300)):
        sampler.next()
    state = sampler.state()
    expected = [sampler.next().input_ids for _ in range(20)]
    resumed = WindowSampler(tokens, LENGTH, batch_size, seed)
    resumed.load_state(dict(state))
    assert resumed.state() == state
    assert all(torch.equal(resumed.next().input_ids, batch) for batch in expected)
    assert all(type(value) is int for value in state.values())


def test_sampling_neither_reads_nor_moves_the_global_generator() -> None:
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = starts(WindowSampler(counting(1000), LENGTH, 1, seed=9), 200)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    assert starts(WindowSampler(counting(1000), LENGTH, 1, seed=9), 200) == first
    assert starts(WindowSampler(counting(1000), LENGTH, 1, seed=10), 200) != first


def test_the_order_is_this_one_on_every_machine() -> None:
    assert starts(WindowSampler(counting(100), LENGTH, 1, seed=1234), 6) == [47, 87, 71, 7, 15, 23]


def test_a_cursor_into_other_data_is_refused() -> None:
    state = WindowSampler(counting(1000), LENGTH, 2, seed=1).state()
    for sampler in (
        WindowSampler(counting(1001), LENGTH, 2, seed=1),
        WindowSampler(counting(1000), LENGTH + 1, 2, seed=1),
        WindowSampler(counting(1000), LENGTH, 2, seed=2),
    ):
        with pytest.raises(ConfigurationError, match="the data cursor was saved with"):
            sampler.load_state(state)
    with pytest.raises(ConfigurationError, match="damaged"):
        WindowSampler(counting(1000), LENGTH, 2, seed=1).load_state({**state, "position": 10**6})
    with pytest.raises(ConfigurationError, match="data of another kind"):
        state.pop("position")
        WindowSampler(counting(1000), LENGTH, 2, seed=1).load_state(state)


def test_too_few_tokens_are_refused() -> None:
    with pytest.raises(ValueError, match="7 tokens"):
        WindowSampler(counting(7), LENGTH, 1, seed=1)
    with pytest.raises(ValueError, match="7 tokens"):
        next(evaluation_batches(counting(7), LENGTH, 1, 100))


@pytest.mark.parametrize(
    ("count", "total", "windows"),
    [(1000, 160, 20), (1000, 167, 20), (1000, 10**9, 125), (1000, 1, 1), (8, 64, 1)],
)
def test_evaluation_is_the_same_windows_spread_evenly(count: int, total: int, windows: int) -> None:
    def once() -> list[torch.Tensor]:
        return [batch.input_ids for batch in evaluation_batches(counting(count), LENGTH, 6, total)]

    batches = once()
    assert all(torch.equal(a, b) for a, b in zip(batches, once(), strict=True))
    assert [len(batch) for batch in batches[:-1]] == [6] * (len(batches) - 1)
    rows = torch.cat(batches)
    assert rows.dtype == torch.int64
    assert torch.equal(rows, rows[:, :1] + torch.arange(LENGTH))
    first = rows[:, 0].tolist()
    assert len(first) == windows
    gaps = [b - a for a, b in itertools.pairwise(first)]
    if gaps:
        assert min(gaps) >= LENGTH
        assert max(gaps) - min(gaps) <= LENGTH
        assert count - first[-1] <= 2 * max(gaps)


def test_documents_kept_apart_begin_at_position_0_and_are_not_predicted_from_the_one_before() -> None:
    lengths = [3, 1, 5, 9, 2, 4, 1, 1, 6]
    stream = in_documents(lengths)
    # Of each token: its place in its document.
    inside = [place for length in lengths for place in range(length)]
    sampler = WindowSampler(stream, LENGTH, 2, seed=4, separate=True)
    for _ in range(20):
        batch = sampler.next()
        assert batch.position_ids is not None
        for ids, labels, positions in zip(batch.input_ids, batch.labels, batch.position_ids, strict=True):
            begin = 0
            for at, token in enumerate(ids.tolist()):
                if inside[token] == 0:
                    begin = at
                assert positions[at] == at - begin
                if at:
                    assert labels[at] == (-100 if inside[token] == 0 else token)
        assert batch.loss_tokens == int((batch.labels[:, 1:] != -100).sum()) > 0


def test_windows_without_a_token_in_the_loss_are_left_out() -> None:
    stream = in_documents([1] * 40 + [20] + [1] * 40)
    sampler = WindowSampler(stream, LENGTH, 1, seed=4, separate=True)
    assert all(sampler.next().loss_tokens for _ in range(20))
    assert all(batch.loss_tokens for batch in evaluation_batches(stream, LENGTH, 1, 10**6, separate=True))
    with pytest.raises(ConfigurationError, match="a token each"):
        WindowSampler(in_documents([1] * 80), LENGTH, 1, seed=4, separate=True).next()
    with pytest.raises(ConfigurationError, match="nothing to learn"):
        list(evaluation_batches(in_documents([1] * 80), LENGTH, 1, 10**6, separate=True))
