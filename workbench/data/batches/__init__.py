"""What goes through the model at once: rows of token ids, which of them are learnt, and where documents begin.

A row is filled with stretches of the token stream. Labels are the ids themselves, -100 where nothing is learnt, and
the model shifts them by one, as every causal language model of transformers does.

Invariant: `counted` is the number of labels that the model's mean loss is taken over.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

NOT_COUNTED = -100

Stretch = tuple[int, int]
"""Tokens of the stream, from the first to before the second."""


@dataclass(frozen=True)
class Batch:
    """Rows of one micro-batch."""

    input_ids: Tensor
    """int64 [rows, length]; a row that is not full ends in padding."""
    labels: Tensor
    """int64 [rows, length], unshifted; -100 is not learnt."""
    position_ids: Tensor | None
    """int64 [rows, length], from 0 again where a document begins; None where documents are not kept apart."""
    counted: int
    """Labels that count after the shift by one; never 0 in a batch for training."""
    tokens: int
    """Ids that are no padding."""


@dataclass(frozen=True)
class Row:
    """One row of a batch, as arrays of int64 [length]."""

    input_ids: Any
    labels: Any
    position_ids: Any | None
    counted: int
    tokens: int


class TokenStream:
    """Token ids one after the other, where their documents begin, and which of them are learnt.

    Args:
        tokens: ids [tokens] of any integer dtype, memory-mapped or not.
        documents: int64 or uint64 [documents], the first token of each, ascending, the first of them 0; None for a
            single document.
        counted: uint8 or bool [tokens], whether it is learnt; None where every token is.
    """

    def __init__(
        self, tokens: Tensor, documents: Tensor | None = None, counted: Tensor | None = None
    ) -> None:
        self.ids = tokens.numpy()
        # Bisecting mixed integer types would turn all of them to floating point.
        self.starts = np.zeros(1, np.int64) if documents is None else documents.view(torch.int64).numpy()
        self.is_counted = None if counted is None else counted.view(torch.uint8).numpy()
        if len(self.starts) == 0 or self.starts[0] != 0:
            raise ValueError("the first document must begin at the first token")
        if self.is_counted is not None and len(self.is_counted) != len(self.ids):
            raise ValueError(f"{len(self.is_counted)} marks of what is learnt for {len(self.ids)} tokens")

    def __len__(self) -> int:
        return len(self.ids)

    def stop(self, document: int) -> int:
        """Where a document ends: the first token that is not its own."""
        return int(self.starts[document + 1]) if document + 1 < len(self.starts) else len(self.ids)

    def learns(self, first: int, stop: int) -> bool:
        """Whether anything of this stretch is learnt where nothing is known before it."""
        return stop - first > 1 and (self.is_counted is None or bool(self.is_counted[first + 1 : stop].any()))

    def row(self, stretches: Sequence[Stretch], length: int, *, separate: bool, padding: int) -> Row:
        """Stretches side by side, then `padding` up to `length`. With `separate`, documents are kept apart.

        The first token of a stretch is not predicted from the stretch before it, and with `separate` that of no
        document from the document before it.
        """
        input_ids = np.full(length, padding, np.int64)
        labels = np.full(length, NOT_COUNTED, np.int64)
        begins = np.zeros(length, bool)
        at = 0
        for first, stop in stretches:
            here = slice(at, at + stop - first)
            input_ids[here] = self.ids[first:stop]
            labels[here] = input_ids[here]
            if self.is_counted is not None:
                labels[here][self.is_counted[first:stop] == 0] = NOT_COUNTED
            if at:
                labels[at] = NOT_COUNTED
            begins[at] = True
            if separate:
                low, high = np.searchsorted(self.starts, (first + 1, stop))
                inside = self.starts[low:high] - first + at
                begins[inside] = True
                labels[inside] = NOT_COUNTED
            at = here.stop
        if at < length:
            begins[at] = True
        positions = None
        if separate:
            places = np.arange(length, dtype=np.int64)
            positions = places - np.maximum.accumulate(np.where(begins, places, 0))
        return Row(input_ids, labels, positions, int((labels[1:] != NOT_COUNTED).sum()), at)


def stack(rows: Sequence[Row]) -> Batch:
    """The rows as one batch."""
    positions = [row.position_ids for row in rows if row.position_ids is not None]
    return Batch(
        torch.from_numpy(np.stack([row.input_ids for row in rows])),
        torch.from_numpy(np.stack([row.labels for row in rows])),
        torch.from_numpy(np.stack(positions)) if positions else None,
        sum(row.counted for row in rows),
        sum(row.tokens for row in rows),
    )
