"""Batches: rows of token ids with labels and positions, cut from a token stream.

A row is filled with spans of the stream. Labels are the ids themselves, -100 for tokens outside the loss; the model
shifts them by one, as every causal language model of transformers does.

Invariant: `Batch.loss_tokens` is the number of labels over which the model takes its mean loss.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from workbench.errors import ConfigurationError, WorkbenchError
from workbench.system.folders import cache_folder

IGNORED = -100

Span = tuple[int, int]
"""Tokens of the stream: the first, and the one after the last."""


@dataclass(frozen=True)
class Batch:
    """The rows of one micro-batch."""

    input_ids: Tensor
    """int64 [rows, length]; a row that is not full ends with padding."""
    labels: Tensor
    """int64 [rows, length], not shifted; -100 outside the loss."""
    position_ids: Tensor | None
    """int64 [rows, length], from 0 in each document; None if documents are not kept apart."""
    loss_tokens: int
    """Labels in the loss after the shift by one; never 0 in a batch for training."""
    tokens: int
    """Ids without the padding."""


@dataclass(frozen=True)
class Row:
    """One row of a batch, as arrays of int64 [length]."""

    input_ids: Any
    labels: Any
    position_ids: Any | None
    loss_tokens: int
    tokens: int


class DamagedTokensError(WorkbenchError):
    """A file of prepared tokens holds what no tokenizer has written."""


class TokenStream:
    """The tokens of one side with their document starts and loss mask.

    Args:
        tokens: ids [tokens] of any integer dtype, memory-mapped or not.
        documents: int64 or uint64 [documents], the first token of each, ascending from 0; None for a single document.
        loss_mask: uint8 or bool [tokens], 1 for a token in the loss; None if every token is.
        vocabulary_size: ids are below it; None leaves them unchecked.
    """

    def __init__(
        self,
        tokens: Tensor,
        documents: Tensor | None = None,
        loss_mask: Tensor | None = None,
        vocabulary_size: int | None = None,
    ) -> None:
        self._vocabulary_size = vocabulary_size
        self.ids = tokens.numpy()
        # Bisecting mixed integer types would turn all of them to floating point.
        self.starts = np.zeros(1, np.int64) if documents is None else documents.view(torch.int64).numpy()
        self.loss_mask = None if loss_mask is None else loss_mask.view(torch.uint8).numpy()
        if len(self.starts) == 0 or self.starts[0] != 0:
            raise ValueError("the first document must begin at the first token")
        if self.loss_mask is not None and len(self.loss_mask) != len(self.ids):
            raise ValueError(f"a loss mask of {len(self.loss_mask)} for {len(self.ids)} tokens")

    def __len__(self) -> int:
        return len(self.ids)

    def stop(self, document: int) -> int:
        """Return the token after the last one of a document."""
        return int(self.starts[document + 1]) if document + 1 < len(self.starts) else len(self.ids)

    def has_loss(self, first: int, stop: int) -> bool:
        """Return whether a span that stands alone has a token in the loss; its first one is never predicted."""
        return stop - first > 1 and (self.loss_mask is None or bool(self.loss_mask[first + 1 : stop].any()))

    def row(self, spans: Sequence[Span], length: int, *, separate: bool, padding: int) -> Row:
        """Return `spans` side by side as one row, filled up to `length` with `padding`.

        The first token of a span is not predicted from the span before it. With `separate`, documents inside a span are
        kept apart in the same way.

        Raises:
            DamagedTokensError: an id is none of the vocabulary's; on a GPU the embedding would fail without a word.
        """
        input_ids = np.full(length, padding, np.int64)
        labels = np.full(length, IGNORED, np.int64)
        begins = np.zeros(length, bool)
        at = 0
        for first, stop in spans:
            here = slice(at, at + stop - first)
            input_ids[here] = self.ids[first:stop]
            labels[here] = input_ids[here]
            if self.loss_mask is not None:
                labels[here][self.loss_mask[first:stop] == 0] = IGNORED
            if at:
                labels[at] = IGNORED
            begins[at] = True
            if separate:
                low, high = np.searchsorted(self.starts, (first + 1, stop))
                inside = self.starts[low:high] - first + at
                begins[inside] = True
                labels[inside] = IGNORED
            at = here.stop
        if (
            self._vocabulary_size is not None
            and at
            and (largest := input_ids[:at].max()) >= self._vocabulary_size
        ):
            raise DamagedTokensError(
                f"the prepared tokens are damaged: id {largest:,} is in their file, and the tokenizer has "
                f"{self._vocabulary_size:,}; delete the folder {cache_folder() / 'tokens'}, and they are made again"
            )
        if at < length:
            begins[at] = True
        positions = None
        if separate:
            places = np.arange(length, dtype=np.int64)
            positions = places - np.maximum.accumulate(np.where(begins, places, 0))
        return Row(input_ids, labels, positions, int((labels[1:] != IGNORED).sum()), at)


def stack(rows: Sequence[Row]) -> Batch:
    """Return the rows as one batch."""
    positions = [row.position_ids for row in rows if row.position_ids is not None]
    return Batch(
        torch.from_numpy(np.stack([row.input_ids for row in rows])),
        torch.from_numpy(np.stack([row.labels for row in rows])),
        torch.from_numpy(np.stack(positions)) if positions else None,
        sum(row.loss_tokens for row in rows),
        sum(row.tokens for row in rows),
    )


class Sampler(ABC):
    """Endless training batches, epoch after epoch. `state` decides everything that follows.

    A batch may go on in the next epoch.

    Args:
        stream: the tokens of a side.
        sequence_length: tokens in a row.
        batch_size: rows in a batch.
        seed: decides the order.
        separate: keep the documents of a row apart.
        padding: the id that fills a row.
    """

    CURSOR: tuple[str, ...]
    """The attributes that say where the next batch begins."""

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

    def next(self) -> Batch:
        """Return the next batch; every row has a token in the loss."""
        return stack([self._next_row() for _ in range(self._batch_size)])

    def state(self) -> dict[str, int]:
        """Return the cursor, with the properties of the data that it points into."""
        return {**{name: getattr(self, f"_{name}") for name in self.CURSOR}, **self._data()}

    def load_state(self, state: Mapping[str, int]) -> None:
        """Continue where `state` was taken. The batch size may differ.

        Raises:
            ConfigurationError: the state was taken with other tokens, another sequence length or another seed.
        """
        for name, value in self._data().items():
            if state.get(name, value) != value:
                moved = "restore the files of data.source, and " if name == "tokens" else ""
                raise ConfigurationError(
                    f"the data cursor was saved with {name} = {state[name]}, and now it is {value}; "
                    f"{moved}resume with the data settings that the run was started with"
                )
        missing = [name for name in self.CURSOR if name not in state]
        if missing:
            raise ConfigurationError(
                f"the data cursor was saved with data of another kind (it has no {missing[0]}): plain text is read in "
                "windows, prompts and chats document by document; resume with the data settings that the run was "
                "started with"
            )
        self._begin(*(state[name] for name in self.CURSOR))

    @abstractmethod
    def sequences_per_epoch(self) -> int:
        """Return the rows of the first epoch; later ones have about as many."""

    @abstractmethod
    def _next_row(self) -> Row: ...

    @abstractmethod
    def _begin(self, *cursor: int) -> None:
        """Go to a place. Raises ConfigurationError where the data has no such place."""

    def _data(self) -> dict[str, int]:
        return {"seed": self._seed, "sequence_length": self._sequence_length, "tokens": len(self._stream)}

    def _row_of(self, spans: Sequence[Span]) -> Row:
        return self._stream.row(spans, self._sequence_length, separate=self._separate, padding=self._padding)


def generator(*seed: int | str) -> torch.Generator:
    """Return a random generator for this seed; torch's global generator is neither read nor moved."""
    digest = hashlib.blake2b("/".join(map(str, seed)).encode(), digest_size=8).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest, "little") >> 1)


def damaged_cursor(what: str, epoch: int) -> ConfigurationError:
    return ConfigurationError(f"the data cursor is damaged: {what} in epoch {epoch}")


def nothing_in_loss() -> ConfigurationError:
    return ConfigurationError(
        "data.source has no tokens in the loss: no prompt has a completion and no chat an answer, for training or for "
        "validation; "
        'add some, raise data.validation_fraction, or set data.loss_on = "everything"'
    )
