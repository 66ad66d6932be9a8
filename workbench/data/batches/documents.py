"""Whole documents packed into rows, for training on prompts and chats: none is cut that fits in a row.

An epoch shuffles the documents, takes them in blocks worth some hundred rows, packs each block by itself and shuffles
its rows. So the cursor is three numbers (epoch, the first document of the block, rows of the block that are done), and
no more than one block is looked at to resume.

Invariant: (seed, epoch, data) alone decide the rows and their order, never the batch size.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch

from workbench.data.batches import Batch, Row, Stretch, TokenStream, stack
from workbench.data.batches.cursor import check_ground, damaged, generator
from workbench.data.batches.packing import pack
from workbench.errors import ConfigurationError

BLOCK_ROWS = 256
"""The last row of a block is rarely full: of so many that is little."""
_SCAN_TOKENS = 1 << 24
_COUNTED_DOCUMENTS = 500_000
_LOOKED_UP = 1024

_Rows = list[list[Stretch]]


class DocumentSampler:
    """Endless training batches of whole documents, side by side in rows that end in padding.

    A document longer than a row is cut into pieces, each of which stands as a document of its own. A document or piece
    of which nothing is learnt is left out. A batch may reach over the end of an epoch.

    Args:
        stream: the documents.
        sequence_length: tokens in a row.
        batch_size: rows in a batch.
        seed: decides the order.
        separate: whether documents in a row are kept apart.
        padding: the id that fills a row up.

    Raises:
        ConfigurationError: nothing of any document is learnt.
    """

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
        if sequence_length < 2 or batch_size < 1:
            raise ValueError(f"cannot give batches of {batch_size} x {sequence_length}")
        self._stream = stream
        self._sequence_length = sequence_length
        self._batch_size = batch_size
        self._seed = seed
        self._separate = separate
        self._padding = padding
        learnt = _learnt(stream)
        self._learnt: Any | None = None if learnt.all() else np.flatnonzero(learnt)
        self._documents = len(learnt) if self._learnt is None else len(self._learnt)
        self.left_out = len(learnt) - self._documents
        """Documents of which nothing is learnt."""
        if not self._documents:
            raise nothing_to_learn()
        self._rows: _Rows = []
        self._begin(0, 0, 0)

    def next(self) -> Batch:
        """The next batch: of every row something is learnt."""
        return stack([self._next_row() for _ in range(self._batch_size)])

    def state(self) -> dict[str, int]:
        """The cursor, and what it is a cursor into."""
        return {"epoch": self._epoch, "document": self._document, "row": self._row, **self._ground()}

    def load_state(self, state: Mapping[str, int]) -> None:
        """See `Sampler.load_state`."""
        check_ground(state, self._ground(), ("epoch", "document", "row"))
        self._begin(state["epoch"], state["document"], state["row"])

    def sequences_per_epoch(self) -> int:
        """Rows of the first epoch; later epochs have nearly as many.

        Counted by packing it. Of a great many documents only the first `_COUNTED_DOCUMENTS` of its order are packed,
        and the others taken to fill as many rows each.
        """
        counted = rows = 0
        for block, counted in self._blocks(0):
            rows += len(block)
            if counted >= _COUNTED_DOCUMENTS:
                break
        return round(rows * (self._documents / counted))

    def rows_of_epoch(self, epoch: int) -> Iterator[Row]:
        """Its rows in order; the cursor stays."""
        for rows, _ in self._blocks(epoch):
            for stretches in rows:
                yield self._fill(stretches)

    def _next_row(self) -> Row:
        epochs = 0
        while self._row == len(self._rows):
            if self._next_document == self._documents:
                epochs += 1
                if epochs > 1:
                    raise nothing_to_learn()
                self._begin(self._epoch + 1, 0, 0)
            else:
                self._open_block(self._next_document)
        self._row += 1
        return self._fill(self._rows[self._row - 1])

    def _fill(self, stretches: list[Stretch]) -> Row:
        return self._stream.row(
            stretches, self._sequence_length, separate=self._separate, padding=self._padding
        )

    def _ground(self) -> dict[str, int]:
        return {
            "seed": self._seed,
            "sequence_length": self._sequence_length,
            "tokens": len(self._stream),
            "documents": len(self._stream.starts),
        }

    def _begin(self, epoch: int, document: int, row: int) -> None:
        if not 0 <= document <= self._documents:
            raise damaged(f"document {document} of {self._documents}", epoch)
        self._epoch = epoch
        self._order = self._shuffled(epoch)
        self._open_block(document)
        if not 0 <= row <= len(self._rows):
            raise damaged(f"row {row} of {len(self._rows)}", epoch)
        self._row = row

    def _open_block(self, document: int) -> None:
        self._document, self._row = document, 0
        self._rows, self._next_document = self._block(self._order, self._epoch, document)

    def _blocks(self, epoch: int) -> Iterator[tuple[_Rows, int]]:
        """The rows of each block, and how many documents there are up to its end."""
        order, document = self._shuffled(epoch), 0
        while document < self._documents:
            rows, document = self._block(order, epoch, document)
            yield rows, document

    def _shuffled(self, epoch: int) -> Any:
        """The documents of an epoch in order: int64 [documents of which something is learnt]."""
        order = torch.randperm(self._documents, generator=generator(self._seed, epoch)).numpy()
        return order if self._learnt is None else self._learnt[order]

    def _block(self, order: Any, epoch: int, document: int) -> tuple[_Rows, int]:
        """The rows of the block that begins at `document` of `order`, and where the next block begins."""
        length = self._sequence_length
        pieces: list[Stretch] = []
        tokens = 0
        here = document
        for first, stop in self._places(order, document):
            here += 1
            tokens += stop - first
            if stop - first <= length:
                pieces.append((first, stop))
            else:
                cuts = ((at, min(at + length, stop)) for at in range(first, stop, length))
                pieces.extend(cut for cut in cuts if self._stream.learns(*cut))
            if tokens >= BLOCK_ROWS * length:
                break
        packed = pack([stop - first for first, stop in pieces], length)
        draws = generator(self._seed, epoch, "rows", document)
        shuffled = torch.randperm(len(packed), generator=draws).tolist()
        return [[pieces[index] for index in packed[row]] for row in shuffled], here

    def _places(self, order: Any, document: int) -> Iterator[Stretch]:
        """Where the documents of `order` from `document` on lie; looked up some at a time."""
        starts, end = self._stream.starts, len(self._stream)
        for at in range(document, len(order), _LOOKED_UP):
            some = order[at : at + _LOOKED_UP]
            last = some + 1 == len(starts)
            stops = np.where(last, end, starts[np.where(last, 0, some + 1)])
            yield from zip(starts[some].tolist(), stops.tolist(), strict=True)


def _learnt(stream: TokenStream) -> Any:
    """Of which documents something is learnt: bool [documents]. A document's first token is never predicted."""
    starts = stream.starts
    if stream.is_counted is None:
        return np.diff(starts, append=len(stream)) > 1
    learnt = np.empty(len(starts), bool)
    first = 0
    while first < len(starts):
        # Some documents at a time, at least one: the marks are mapped from a file as large as the text.
        stop = max(first + 1, int(np.searchsorted(starts, starts[first] + _SCAN_TOKENS)))
        begin, end = int(starts[first]), stream.stop(stop - 1)
        marks = np.array(stream.is_counted[begin:end])
        places = starts[first:stop] - begin
        marks[places] = 0
        learnt[first:stop] = np.maximum.reduceat(marks, places) > 0
        first = stop
    return learnt


def nothing_to_learn() -> ConfigurationError:
    return ConfigurationError(
        "data.source has nothing to learn from: no prompt has a completion and no chat an answer on one of its sides; "
        'add some, raise data.validation_fraction, or set data.loss_on = "everything"'
    )
