"""Whole documents in rows: none is lost, none is cut that fits, and a cursor of three numbers resumes exactly."""

import random
from collections.abc import Sequence

import numpy as np
import pytest
import torch

from workbench.data.batches import Batch, TokenStream, documents
from workbench.data.batches.documents import DocumentSampler, pack
from workbench.data.batches.sampling import evaluation_batches, open_sampler
from workbench.errors import ConfigurationError

LENGTH = 16
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
    return DocumentSampler(stream, LENGTH, batch_size, seed, padding=PADDING, **options)


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
        if length <= LENGTH:
            at = ids.index(start)
            assert ids[at : at + length] == list(range(start, start + length))
    in_loss = {t for b in batches for t in b.labels[0].tolist() if t != -100}
    firsts = {
        start + piece for start, n in zip(starts, lengths, strict=True) for piece in range(0, n, LENGTH)
    }
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
        for at in range(1, LENGTH):
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


@pytest.mark.parametrize("seed", range(4))
def test_a_cursor_resumes_exactly_where_it_was_taken_whatever_the_batch_size(seed: int) -> None:
    choose = random.Random(seed)
    stream = answered(some_lengths(seed, count=choose.randint(1, 300)))
    taken = sampler_of(stream, choose.randint(1, 9), seed)
    for _ in range(choose.randint(0, 60)):
        taken.next()
    state = taken.state()
    assert all(type(value) is int for value in state.values())
    rows = torch.cat([taken.next().input_ids for _ in range(20)])
    resumed = sampler_of(stream, 1, seed)
    resumed.load_state(dict(state))
    assert resumed.state() == state
    assert all(torch.equal(resumed.next().input_ids[0], row) for row in rows)


def test_rows_fill_up_and_each_epoch_and_seed_has_an_order_of_its_own() -> None:
    stream = answered(some_lengths(5, count=1000, longest=10))
    sampler = sampler_of(stream)
    orders = [[b.input_ids[0, 0].item() for b in epoch_of(sampler)] for _ in range(2)]
    assert orders[0] != orders[1]
    other = sampler_of(stream, seed=4)
    assert orders[0] != [b.input_ids[0, 0].item() for b in epoch_of(other)]
    rows = sampler.sequences_per_epoch()
    assert sum(some_lengths(5, count=1000, longest=10)) / (rows * LENGTH) > 0.9


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
        with pytest.raises(ConfigurationError, match="nothing to learn"):
            sampler_of(answered(lengths, nothing))
    # In the loss is only the token that the cut takes the context from.
    at_cut = [place == LENGTH for place in range(2 * LENGTH)]
    with pytest.raises(ConfigurationError, match="nothing to learn"):
        sampler_of(answered([2 * LENGTH], at_cut)).next()


def test_a_cursor_into_other_data_is_refused() -> None:
    stream = answered(some_lengths(1))
    state = sampler_of(stream).state()
    for other in (sampler_of(answered(some_lengths(2))), sampler_of(stream, seed=9)):
        with pytest.raises(ConfigurationError, match="the data cursor was saved with"):
            other.load_state(state)
    for change in ({"document": 10**6}, {"row": 99}):
        with pytest.raises(ConfigurationError, match="damaged"):
            sampler_of(stream).load_state({**state, **change})
    with pytest.raises(ConfigurationError, match="data of another kind"):
        sampler_of(stream).load_state({"epoch": 0, "position": 3})


def test_the_kind_of_data_chooses_the_sampler_and_evaluation_is_the_same_rows_every_time() -> None:
    stream = answered(some_lengths(3))
    sampler = open_sampler(stream, LENGTH, 2, 1, separate=False, padding=PADDING)
    assert isinstance(sampler, DocumentSampler)
    for total, rows in ((10 * LENGTH, 10), (1, 1)):
        once, again = (
            torch.cat([b.input_ids for b in evaluation_batches(stream, LENGTH, 4, total, padding=PADDING)])
            for _ in range(2)
        )
        assert len(once) == rows and torch.equal(once, again)
    everything = list(evaluation_batches(stream, LENGTH, 4, 10**9, padding=PADDING))
    ids = torch.cat([b.input_ids.flatten() for b in everything])
    ids = ids[ids != PADDING]
    assert len(ids) == len(ids.unique()) and all(batch.loss_tokens for batch in everything)
