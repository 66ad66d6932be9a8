"""Batches for training and for evaluation.

Plain text is read in windows; tokens with a loss mask (prompts and chats) are read document by document. Evaluation
gets the same rows every time.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from workbench.data.batches import Batch, Row, Sampler, TokenStream, nothing_in_loss, stack
from workbench.data.batches.documents import DocumentSampler
from workbench.data.batches.windows import WindowSampler
from workbench.data.prepare import TokenData

_EVALUATION_SEED = 0


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
