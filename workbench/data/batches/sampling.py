"""Batches for training and for evaluation.

Plain text is read in windows; tokens with a loss mask (prompts and chats) are read document by document. Evaluation
gets the same rows every time.

Invariant: every window comes once an epoch, in an order that follows from (seed, epoch) alone, so that a cursor of two
numbers resumes exactly.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

import torch

from workbench.data.batches import (
    Batch,
    Row,
    Sampler,
    TokenStream,
    damaged_cursor,
    generator,
    nothing_in_loss,
    stack,
)
from workbench.data.batches.documents import DocumentSampler
from workbench.data.prepare import TokenData
from workbench.errors import ConfigurationError

_EVALUATION_SEED = 0


class WindowSampler(Sampler):
    """Endless training batches of windows; every row is full.

    Each epoch cuts the tokens into windows of `sequence_length` from a random offset, which leaves out fewer than
    `sequence_length` tokens at either end, and shuffles them. A window without a token in the loss (with `separate`,
    one of documents of a single token) is left out.
    """

    CURSOR = ("epoch", "position")

    def __init__(
        self, stream: TokenStream, sequence_length: int, batch_size: int, seed: int, *, separate: bool = False
    ) -> None:
        super().__init__(stream, sequence_length, batch_size, seed, separate=separate)
        if len(stream) < sequence_length:
            raise ValueError(f"{len(stream)} tokens give no window of {sequence_length}")
        self._begin(0, 0)

    def sequences_per_epoch(self) -> int:
        """Return the windows of an epoch; with a large offset there is one less."""
        return len(self._stream) // self._sequence_length

    def _next_row(self) -> Row:
        for _ in range(2 * len(self._starts) + 1):
            if self._position == len(self._starts):
                self._begin(self._epoch + 1, 0)
            first = int(self._starts[self._position])
            self._position += 1
            row = self._row_of([(first, first + self._sequence_length)])
            if row.loss_tokens:
                return row
        raise ConfigurationError(
            "data.separate_documents = true: the documents of data.source have a token each, and nothing can be learnt "
            "from one token; set it to false, or join the documents"
        )

    def _begin(self, *cursor: int) -> None:
        epoch, position = cursor
        length, tokens = self._sequence_length, len(self._stream)
        draws = generator(self._seed, epoch)
        slack = min(length - 1, tokens - length)
        offset = int(torch.randint(slack + 1, (), generator=draws))
        windows = (tokens - offset) // length
        self._starts = torch.randperm(windows, generator=draws).mul_(length).add_(offset)
        if not 0 <= position <= windows:
            raise damaged_cursor(f"position {position} of {windows}", epoch)
        self._epoch, self._position = epoch, position


def open_sampler(
    stream: TokenStream, sequence_length: int, batch_size: int, seed: int, *, separate: bool, padding: int
) -> Sampler:
    """Return the sampler for the kind of `stream`. `separate` keeps documents apart; `padding` fills rows.

    Raises:
        ConfigurationError: no token is in the loss.
        ValueError: the stream is shorter than a window.
    """
    if stream.loss_mask is None:
        return WindowSampler(stream, sequence_length, batch_size, seed, separate=separate)
    return DocumentSampler(stream, sequence_length, batch_size, seed, separate=separate, padding=padding)


def evaluation_batches(
    stream: TokenStream,
    sequence_length: int,
    batch_size: int,
    total_tokens: int,
    *,
    separate: bool = False,
    padding: int = 0,
) -> Iterator[Batch]:
    """Yield the same rows every time, spread evenly over `stream`, in batches of up to `batch_size`.

    They have at most `total_tokens` tokens, but there is at least one row, and none twice. Rows without a token in the
    loss are left out.

    Raises:
        ConfigurationError: no row is left.
        ValueError: the stream is shorter than a window.
    """
    count = max(1, total_tokens // sequence_length)
    if stream.loss_mask is None:
        found = _windows(stream, sequence_length, count, separate)
    else:
        sampler = DocumentSampler(
            stream, sequence_length, 1, _EVALUATION_SEED, separate=separate, padding=padding
        )
        found = islice(sampler.rows_of_epoch(0), count)
    rows = (row for row in found if row.loss_tokens)
    any_left = False
    while chosen := list(islice(rows, batch_size)):
        any_left = True
        yield stack(chosen)
    if not any_left:
        raise nothing_in_loss()


def _windows(stream: TokenStream, length: int, count: int, separate: bool) -> Iterator[Row]:
    windows = len(stream) // length
    if windows < 1:
        raise ValueError(f"{len(stream)} tokens give no window of {length}")
    count = min(windows, count)
    for index in range(count):
        first = index * windows // count * length
        yield stream.row([(first, first + length)], length, separate=separate, padding=0)


def training_stream(data: TokenData) -> TokenStream:
    return TokenStream(data.train, data.train_documents, data.train_loss_mask, data.tokenizer.vocabulary_size)


def validation_stream(data: TokenData) -> TokenStream:
    return TokenStream(
        data.validation, data.validation_documents, data.validation_loss_mask, data.tokenizer.vocabulary_size
    )
