"""Prompts and chats packed into rows as whole documents, for training: no document that fits in a row is cut.

An epoch shuffles the documents, takes them in blocks of some hundred rows, packs each block and shuffles its rows. So
the cursor is three numbers (epoch, first document of the block, rows of the block that are done), and resuming packs
one block.

Invariant: the rows and their order follow from (seed, epoch, data) alone, never from the batch size.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch

from workbench.data.batches import (
    Row,
    Sampler,
    Span,
    TokenStream,
    damaged_cursor,
    generator,
    nothing_in_loss,
)

BLOCK_ROWS = 256
"""Rows in a block; only its last row is far from full."""
_SCAN_TOKENS = 1 << 24
_COUNTED_DOCUMENTS = 500_000
_LOOKED_UP = 1024

_Rows = list[list[Span]]


class DocumentSampler(Sampler):
    """Endless training batches of whole documents, side by side in rows that end with padding.

    A document longer than a row is cut into pieces that are treated as documents. Documents and pieces without a token
    in the loss are left out.

    Raises:
        ConfigurationError: no document has a token in the loss.
    """

    CURSOR = ("epoch", "document", "row")

    def __init__(
        self,
        stream: TokenStream,
        sequence_length: int,
        batch_size: int,
        seed: int,
        *,
        separate: bool = False,
        padding: int = 0,
    ) -> None:
        super().__init__(stream, sequence_length, batch_size, seed, separate=separate, padding=padding)
        with_loss = _with_loss(stream)
        self._numbers: Any | None = None if with_loss.all() else np.flatnonzero(with_loss)
        self._documents = int(with_loss.sum())
        self.left_out = len(with_loss) - self._documents
        """Documents without a token in the loss."""
        if not self._documents:
            raise nothing_in_loss()
        self._rows: _Rows = []
        self._begin(0, 0, 0)

    def sequences_per_epoch(self) -> int:
        """Return the rows of the first epoch, counted by packing it; later epochs have nearly as many.

        Of many documents only the first `_COUNTED_DOCUMENTS` in its order are packed, and the rest is extrapolated.
        """
        counted = rows = 0
        for block, counted in self._blocks(0):
            rows += len(block)
            if counted >= _COUNTED_DOCUMENTS:
                break
        return round(rows * (self._documents / counted))

    def rows_of_epoch(self, epoch: int) -> Iterator[Row]:
        """Yield the rows of an epoch in order, without moving the cursor."""
        for rows, _ in self._blocks(epoch):
            for spans in rows:
                yield self._row_of(spans)

    def _next_row(self) -> Row:
        epochs = 0
        while self._row == len(self._rows):
            if self._next_document == self._documents:
                epochs += 1
                if epochs > 1:
                    raise nothing_in_loss()
                self._begin(self._epoch + 1, 0, 0)
            else:
                self._open_block(self._next_document)
        self._row += 1
        return self._row_of(self._rows[self._row - 1])

    def _data(self) -> dict[str, int]:
        return {**super()._data(), "documents": len(self._stream.starts)}

    def _begin(self, *cursor: int) -> None:
        epoch, document, row = cursor
        if not 0 <= document <= self._documents:
            raise damaged_cursor(f"document {document} of {self._documents}", epoch)
        self._epoch = epoch
        self._order = self._shuffled(epoch)
        self._open_block(document)
        if not 0 <= row <= len(self._rows):
            raise damaged_cursor(f"row {row} of {len(self._rows)}", epoch)
        self._row = row

    def _open_block(self, document: int) -> None:
        self._document, self._row = document, 0
        self._rows, self._next_document = self._block(self._order, self._epoch, document)

    def _blocks(self, epoch: int) -> Iterator[tuple[_Rows, int]]:
        """Yield the rows of each block of an epoch, and the number of documents up to its end."""
        order, document = self._shuffled(epoch), 0
        while document < self._documents:
            rows, document = self._block(order, epoch, document)
            yield rows, document

    def _shuffled(self, epoch: int) -> Any:
        """Return the documents of an epoch in order: int64 [documents with a token in the loss]."""
        order = torch.randperm(self._documents, generator=generator(self._seed, epoch)).numpy()
        return order if self._numbers is None else self._numbers[order]

    def _block(self, order: Any, epoch: int, document: int) -> tuple[_Rows, int]:
        """Return the rows of the block that begins at `document` of `order`, and the next block's first document."""
        length = self._sequence_length
        pieces: list[Span] = []
        tokens = 0
        here = document
        for first, stop in self._places(order, document):
            here += 1
            tokens += stop - first
            if stop - first <= length:
                pieces.append((first, stop))
            else:
                cuts = ((at, min(at + length, stop)) for at in range(first, stop, length))
                pieces.extend(cut for cut in cuts if self._stream.has_loss(*cut))
            if tokens >= BLOCK_ROWS * length:
                break
        packed = pack([stop - first for first, stop in pieces], length)
        draws = generator(self._seed, epoch, "rows", document)
        shuffled = torch.randperm(len(packed), generator=draws).tolist()
        return [[pieces[index] for index in packed[row]] for row in shuffled], here

    def _places(self, order: Any, document: int) -> Iterator[Span]:
        """Yield the spans of the documents of `order` from `document` on, looked up some at a time."""
        starts, end = self._stream.starts, len(self._stream)
        for at in range(document, len(order), _LOOKED_UP):
            some = order[at : at + _LOOKED_UP]
            last = some + 1 == len(starts)
            stops = np.where(last, end, starts[np.where(last, 0, some + 1)])
            yield from zip(starts[some].tolist(), stops.tolist(), strict=True)


def _with_loss(stream: TokenStream) -> Any:
    """Return which documents have a token in the loss: bool [documents]. Their first token is never predicted."""
    starts = stream.starts
    if stream.loss_mask is None:
        return np.diff(starts, append=len(stream)) > 1
    with_loss = np.empty(len(starts), bool)
    first = 0
    while first < len(starts):
        # Some documents at a time, at least one: the mask is mapped from a file as large as the text.
        stop = max(first + 1, int(np.searchsorted(starts, starts[first] + _SCAN_TOKENS)))
        begin, end = int(starts[first]), stream.stop(stop - 1)
        mask = np.array(stream.loss_mask[begin:end])
        places = starts[first:stop] - begin
        mask[places] = 0
        with_loss[first:stop] = np.maximum.reduceat(mask, places) > 0
        first = stop
    return with_loss


def pack(lengths: Sequence[int], capacity: int) -> list[list[int]]:
    """Distribute pieces to rows by best fit, the longest first (Johnson, Near-optimal bin packing algorithms, 1973).

    Returns rows of indices into `lengths`, ascending in each row, whose lengths (1 to `capacity` each) add up to
    `capacity` at most. There are at most 11/9 of the fewest rows possible, in practice 1 % more.
    """
    rows: list[list[int]] = []
    room: list[tuple[int, int]] = []  # of rows that are not full, ascending
    for index in sorted(range(len(lengths)), key=lambda index: -lengths[index]):
        length = lengths[index]
        at = bisect_left(room, (length, 0))
        if at < len(room):
            free, row = room.pop(at)
            rows[row].append(index)
        else:
            free, row = capacity, len(rows)
            rows.append([index])
        if free > length:
            insort(room, (free - length, row))
    for row_indices in rows:
        row_indices.sort()
    return rows
