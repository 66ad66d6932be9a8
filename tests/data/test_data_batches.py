"""Windows of tokens and whole documents in rows: each once an epoch, none lost, and the same after resuming."""

import itertools
import random
from collections.abc import Sequence

import numpy as np
import pytest
import torch

from workbench.data.batches import Batch, DamagedTokensError, Sampler, TokenStream, documents
from workbench.data.batches.documents import DocumentSampler, pack
from workbench.data.batches.sampling import WindowSampler, evaluation_batches, open_sampler
from workbench.errors import ConfigurationError

LENGTH = 8
"""Tokens of a window."""


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


def test_an_id_that_the_tokenizer_has_not_is_a_damaged_file() -> None:
    tokens = torch.arange(40)
    tokens[33] = 300
    assert (
        WindowSampler(TokenStream(tokens[:33], vocabulary_size=33), LENGTH, 4, seed=0).next().tokens
        == 4 * LENGTH
    )
    with pytest.raises(
        DamagedTokensError, match=r"id 300 is in their file, and the tokenizer has 257; delete the folder"
    ):
        WindowSampler(TokenStream(tokens, vocabulary_size=257), LENGTH, 5, seed=0).next()


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
    with pytest.raises(ConfigurationError, match="no tokens in the loss"):
        list(evaluation_batches(in_documents([1] * 80), LENGTH, 1, 10**6, separate=True))


# Whole documents

ROW = 16
"""Tokens of a row of documents."""
PADDING = 10**6


def answered(lengths: Sequence[int], mask: Sequence[bool] | None = None) -> TokenStream:
    """Documents of tokens whose value is their place; the second half of each is in the loss, or what `mask` says."""
    starts = np.cumsum([0, *lengths])[:-1]
    marks = [place >= length // 2 for length in lengths for place in range(length)]
    return TokenStream(
        torch.arange(sum(lengths), dtype=torch.int32).to(torch.uint32),
        torch.from_numpy(starts).view(torch.uint64),
        torch.tensor(marks if mask is None else mask, dtype=torch.uint8),
    )


def some_lengths(seed: int, count: int = 200, longest: int = 40) -> list[int]:
    choose = random.Random(seed)
    return [choose.randint(2, longest) for _ in range(count)]


def sampler_of(stream: TokenStream, batch_size: int = 1, seed: int = 3, **options: bool) -> DocumentSampler:
    return DocumentSampler(stream, ROW, batch_size, seed, padding=PADDING, **options)


def epoch_of(sampler: DocumentSampler) -> list[Batch]:
    """The batches of a row each up to the end of the epoch."""
    batches, epoch = [], sampler.state()["epoch"]
    while True:
        batch = sampler.next()
        if sampler.state()["epoch"] > epoch:
            return batches
        batches.append(batch)


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(documents, "BLOCK_ROWS", 12)
    monkeypatch.setattr(documents, "_SCAN_TOKENS", 300)


@pytest.mark.parametrize("seed", range(3))
def test_packing_puts_every_piece_in_one_row_that_holds_it(seed: int) -> None:
    choose = random.Random(seed)
    lengths = [choose.randint(1, 100) for _ in range(300)]
    rows = pack(lengths, 100)
    assert sorted(index for row in rows for index in row) == list(range(300))
    assert all(sum(lengths[index] for index in row) <= 100 for row in rows)
    assert len(rows) <= 11 / 9 * sum(lengths) / 100 + 1
    assert rows == pack(lengths, 100)


@pytest.mark.parametrize("separate", [False, True])
def test_an_epoch_has_every_document_once_and_cuts_only_what_is_too_long(separate: bool) -> None:
    lengths = some_lengths(1)
    stream = answered(lengths)
    sampler = sampler_of(stream, separate=separate)
    batches = epoch_of(sampler)
    assert len(batches) == sampler.sequences_per_epoch()
    begins = [int(b.position_ids.eq(0).sum()) for b in batches if b.position_ids is not None]
    ids = [token for batch in batches for token in batch.input_ids[0].tolist() if token != PADDING]
    # Of a document that is cut, a piece without a token in the loss is left out; of the others all is there.
    starts = stream.starts.tolist()
    for start, length in zip(starts, lengths, strict=True):
        if length <= ROW:
            at = ids.index(start)
            assert ids[at : at + length] == list(range(start, start + length))
    in_loss = {t for b in batches for t in b.labels[0].tolist() if t != -100}
    firsts = {start + piece for start, n in zip(starts, lengths, strict=True) for piece in range(0, n, ROW)}
    assert stream.loss_mask is not None
    expected = {int(place) for place in np.flatnonzero(stream.loss_mask)} - firsts
    assert (
        expected <= in_loss <= expected | firsts
    )  # the first of a row has a label that the shift leaves out
    assert len(ids) == len(set(ids))
    assert sum(batch.tokens for batch in batches) == len(ids)
    assert bool(begins) == separate


def test_labels_are_the_tokens_in_the_loss_and_padding_has_none() -> None:
    sampler = sampler_of(answered(some_lengths(2, longest=12)))
    stream = sampler._stream
    for batch in epoch_of(sampler):
        ids, labels = batch.input_ids[0], batch.labels[0]
        for at in range(1, ROW):
            token = int(ids[at])
            if token == PADDING:
                assert labels[at] == -100 and batch.tokens <= at
            else:
                begins = token in stream.starts
                assert labels[at] == (token if stream.loss_mask[token] and not begins else -100)
        assert batch.loss_tokens == int((labels[1:] != -100).sum()) > 0
        assert batch.position_ids is None


def test_positions_begin_again_at_each_document_and_at_the_padding() -> None:
    batch = sampler_of(answered([5, 4, 3]), separate=True).next()
    assert batch.position_ids is not None
    expected = [place for length in (5, 4, 3) for place in range(length)]
    ids = batch.input_ids[0].tolist()
    assert batch.position_ids[0].tolist() == [*(expected[token] for token in ids[:12]), *range(4)]


def test_rows_fill_up_and_each_epoch_and_seed_has_an_order_of_its_own() -> None:
    stream = answered(some_lengths(5, count=1000, longest=10))
    sampler = sampler_of(stream)
    orders = [[b.input_ids[0, 0].item() for b in epoch_of(sampler)] for _ in range(2)]
    assert orders[0] != orders[1]
    other = sampler_of(stream, seed=4)
    assert orders[0] != [b.input_ids[0, 0].item() for b in epoch_of(other)]
    rows = sampler.sequences_per_epoch()
    assert sum(some_lengths(5, count=1000, longest=10)) / (rows * ROW) > 0.9


def test_the_rows_are_these_on_every_machine() -> None:
    sampler = sampler_of(answered(some_lengths(1, count=30)), seed=1234)
    first = [int(sampler.next().input_ids[0, 0]) for _ in range(8)]
    assert first == [160, 192, 332, 358, 202, 26, 303, 374]


def test_documents_without_an_answer_are_left_out_and_all_of_them_are_refused() -> None:
    lengths = [6] * 60
    mask = [document % 3 == 0 and place > 2 for document in range(60) for place in range(6)]
    batches = epoch_of(sampler_of(answered(lengths, mask)))
    seen = {token // 6 for batch in batches for token in batch.input_ids[0].tolist() if token != PADDING}
    assert seen == set(range(0, 60, 3))
    only_first = [place == 0 for _ in range(60) for place in range(6)]
    for nothing in ([False] * 360, only_first):
        with pytest.raises(ConfigurationError, match="no tokens in the loss"):
            sampler_of(answered(lengths, nothing))
    # In the loss is only the token that the cut takes the context from.
    at_cut = [place == ROW for place in range(2 * ROW)]
    with pytest.raises(ConfigurationError, match="no tokens in the loss"):
        sampler_of(answered([2 * ROW], at_cut)).next()


def test_the_kind_of_data_chooses_the_sampler_and_evaluation_is_the_same_rows_every_time() -> None:
    stream = answered(some_lengths(3))
    sampler = open_sampler(stream, ROW, 2, 1, separate=False, padding=PADDING)
    assert isinstance(sampler, DocumentSampler)
    for total, rows in ((10 * ROW, 10), (1, 1)):
        once, again = (
            torch.cat([b.input_ids for b in evaluation_batches(stream, ROW, 4, total, padding=PADDING)])
            for _ in range(2)
        )
        assert len(once) == rows and torch.equal(once, again)
    everything = list(evaluation_batches(stream, ROW, 4, 10**9, padding=PADDING))
    ids = torch.cat([b.input_ids.flatten() for b in everything])
    ids = ids[ids != PADDING]
    assert len(ids) == len(ids.unique()) and all(batch.loss_tokens for batch in everything)


# Cursors


@pytest.mark.parametrize("kind", ["windows", "documents"])
@pytest.mark.parametrize("seed", range(5))
def test_a_cursor_resumes_exactly_where_it_was_taken_whatever_the_batch_size(kind: str, seed: int) -> None:
    choose = random.Random(seed)
    tokens = counting(choose.randint(20, 2000))
    stream = answered(some_lengths(seed, count=choose.randint(1, 300)))

    def sampler(batch_size: int) -> Sampler:
        if kind == "windows":
            return WindowSampler(tokens, LENGTH, batch_size, seed)
        return sampler_of(stream, batch_size, seed)

    taken = sampler(choose.randint(1, 9))
    for _ in range(choose.randint(0, 60)):
        taken.next()
    state = taken.state()
    assert all(type(value) is int for value in state.values())
    rows = torch.cat([taken.next().input_ids for _ in range(20)])
    resumed = sampler(1)
    resumed.load_state(dict(state))
    assert resumed.state() == state
    assert all(torch.equal(resumed.next().input_ids[0], row) for row in rows)


def test_a_cursor_into_other_data_and_a_damaged_one_are_refused() -> None:
    windows, stream = WindowSampler(counting(1000), LENGTH, 2, seed=1), answered(some_lengths(1))
    documents = sampler_of(stream)
    for taken, others, damages in (
        (
            windows,
            (
                WindowSampler(counting(1001), LENGTH, 2, seed=1),
                WindowSampler(counting(1000), LENGTH + 1, 2, seed=1),
                WindowSampler(counting(1000), LENGTH, 2, seed=2),
            ),
            ({"position": 10**6},),
        ),
        (
            documents,
            (sampler_of(answered(some_lengths(2))), sampler_of(stream, seed=9)),
            ({"document": 10**6}, {"row": 99}),
        ),
    ):
        for other in others:
            with pytest.raises(ConfigurationError, match="the data cursor was saved with"):
                other.load_state(taken.state())
        for damage in damages:
            with pytest.raises(ConfigurationError, match="damaged"):
                taken.load_state({**taken.state(), **damage})
    for sampler, state in ((windows, {"epoch": 0, "row": 3}), (documents, {"epoch": 0, "position": 3})):
        with pytest.raises(ConfigurationError, match="data of another kind"):
            sampler.load_state(state)
