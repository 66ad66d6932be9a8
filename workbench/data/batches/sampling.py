"""Batches for training and for evaluation, from tokens of either kind.

Plain text is read in windows; what says of each token whether it is learnt (prompts and chats) is read document by
document. Evaluation sees the same rows every time.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from workbench.data.batches import Batch, Row, TokenStream, stack
from workbench.data.batches.cursor import Sampler
from workbench.data.batches.documents import DocumentSampler, nothing_to_learn
from workbench.data.batches.windows import WindowSampler
from workbench.data.prepare import TokenData

_EVALUATION_SEED = 0


def open_sampler(
    stream: TokenStream, sequence_length: int, batch_size: int, seed: int, *, separate: bool, padding: int
) -> Sampler:
    """The sampler that fits the kind of `stream`. `separate` keeps documents apart, `padding` fills rows up.

    Raises:
        ConfigurationError: there is nothing to learn from.
        ValueError: the stream is shorter than a window.
    """
    if stream.is_counted is None:
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
    """The same rows every time, spread evenly over `stream`, in batches of `batch_size` or fewer.

    Together they have at most `total_tokens` tokens, but there is at least one row, and none twice. Rows of which
    nothing is learnt are left out.

    Raises:
        ConfigurationError: then none is left.
        ValueError: the stream is shorter than a window.
    """
    count = max(1, total_tokens // sequence_length)
    if stream.is_counted is None:
        there = _windows(stream, sequence_length, count, separate)
    else:
        sampler = DocumentSampler(
            stream, sequence_length, 1, _EVALUATION_SEED, separate=separate, padding=padding
        )
        there = islice(sampler.rows_of_epoch(0), count)
    rows = (row for row in there if row.counted)
    any_left = False
    while chosen := list(islice(rows, batch_size)):
        any_left = True
        yield stack(chosen)
    if not any_left:
        raise nothing_to_learn()


def _windows(stream: TokenStream, length: int, count: int, separate: bool) -> Iterator[Row]:
    there = len(stream) // length
    if there < 1:
        raise ValueError(f"{len(stream)} tokens give no window of {length}")
    count = min(there, count)
    for index in range(count):
        first = index * there // count * length
        yield stream.row([(first, first + length)], length, separate=separate, padding=0)


def training_stream(data: TokenData) -> TokenStream:
    return TokenStream(data.train, data.train_documents, data.train_counted)


def validation_stream(data: TokenData) -> TokenStream:
    return TokenStream(data.validation, data.validation_documents, data.validation_counted)
