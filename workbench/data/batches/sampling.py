"""Batches for training and for evaluation.

Plain text is read in windows; tokens with a loss mask (prompts and chats) are read document by document. Evaluation
gets the same rows every time.

Invariant: every window comes once an epoch, in an order that follows from (seed, epoch) alone, so that a cursor of two
numbers resumes exactly.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice

import torch

from workbench.data.batches import (
    Batch,
    Row,
    TokenStream,
    check_state,
    damaged_cursor,
    generator,
    nothing_in_loss,
    stack,
)
from workbench.data.batches.documents import DocumentSampler
from workbench.data.prepare import TokenData
from workbench.errors import ConfigurationError

_EVALUATION_SEED = 0


class WindowSampler:
    """Endless training batches of windows.

    Each epoch cuts the tokens into windows of `sequence_length` from a random offset, which leaves out fewer than
    `sequence_length` tokens at either end, and shuffles them. A batch may go on in the next epoch. A window without a
    token in the loss (with `separate`, one of documents of a single token) is left out.
    """

    def __init__(
        self, stream: TokenStream, sequence_length: int, batch_size: int, seed: int, *, separate: bool = False
    ) -> None:
        if len(stream) < sequence_length or sequence_length < 2 or batch_size < 1:
            raise ValueError(f"{len(stream)} tokens cannot give batches of {batch_size} x {sequence_length}")
        self._stream = stream
        self._sequence_length = sequence_length
        self._batch_size = batch_size
        self._seed = seed
        self._separate = separate
        self._begin(0, 0)

    def next(self) -> Batch:
        """Return the next batch; every row is full."""
        rows: list[Row] = []
        empty = 0
        while len(rows) < self._batch_size:
            row = self._next_row()
            if row.loss_tokens:
                rows.append(row)
                empty = 0
            else:
                empty += 1
                if empty > 2 * len(self._starts):
                    raise ConfigurationError(
                        "data.separate_documents = true: the documents of data.source have a token each, and nothing "
                        "can be learnt from one token; set it to false, or join the documents"
                    )
        return stack(rows)

    def state(self) -> dict[str, int]:
        """Return the cursor (epoch, position) and the properties of the data."""
        return {"epoch": self._epoch, "position": self._position, **self._data()}

    def load_state(self, state: Mapping[str, int]) -> None:
        """Continue where `state` was taken. The batch size may differ.

        Raises:
            ConfigurationError: the state was taken with other tokens, another sequence length or another seed.
        """
        check_state(state, self._data(), ("epoch", "position"))
        self._begin(state["epoch"], state["position"])

    def sequences_per_epoch(self) -> int:
        """Return the windows of an epoch; with a large offset there is one less."""
        return len(self._stream) // self._sequence_length

    def _next_row(self) -> Row:
        if self._position == len(self._starts):
            self._begin(self._epoch + 1, 0)
        first = int(self._starts[self._position])
        self._position += 1
        length = self._sequence_length
        return self._stream.row([(first, first + length)], length, separate=self._separate, padding=0)

    def _data(self) -> dict[str, int]:
        return {"seed": self._seed, "sequence_length": self._sequence_length, "tokens": len(self._stream)}

    def _begin(self, epoch: int, position: int) -> None:
        length, tokens = self._sequence_length, len(self._stream)
        draws = generator(self._seed, epoch)
        slack = min(length - 1, tokens - length)
        offset = int(torch.randint(slack + 1, (), generator=draws))
        windows = (tokens - offset) // length
        self._starts = torch.randperm(windows, generator=draws).mul_(length).add_(offset)
        if not 0 <= position <= windows:
            raise damaged_cursor(f"position {position} of {windows}", epoch)
        self._epoch, self._position = epoch, position


Sampler = WindowSampler | DocumentSampler
"""Endless training batches, epoch after epoch. `state` decides everything that follows."""


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
    return TokenStream(data.train, data.train_documents, data.train_loss_mask)


def validation_stream(data: TokenData) -> TokenStream:
    return TokenStream(data.validation, data.validation_documents, data.validation_loss_mask)
