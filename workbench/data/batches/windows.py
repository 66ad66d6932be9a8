"""Windows of a token stream for training: plain text, cut wherever a sequence is full.

Training sees every window once an epoch in an order that (seed, epoch) alone decide, so that a cursor of two numbers
resumes exactly.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from workbench.data.batches import Batch, Row, TokenStream, stack
from workbench.data.batches.cursor import check_ground, damaged, generator
from workbench.errors import ConfigurationError


class WindowSampler:
    """Endless training batches of windows.

    An epoch cuts the tokens into windows of `sequence_length` from an offset of its own, which leaves out fewer than
    `sequence_length` tokens at either end, and shuffles them. A batch may reach over the end of an epoch. A window of
    which nothing is learnt (with `separate`, one of documents of a single token) is passed over.
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
        """The next batch, every row full."""
        rows: list[Row] = []
        barren = 0
        while len(rows) < self._batch_size:
            row = self._next_row()
            if row.counted:
                rows.append(row)
                barren = 0
            else:
                barren += 1
                if barren > 2 * len(self._starts):
                    raise ConfigurationError(
                        "data.separate_documents = true: the documents of data.source have a token each, and nothing "
                        "can be learnt from one token; set it to false, or join the documents"
                    )
        return stack(rows)

    def state(self) -> dict[str, int]:
        """The cursor, and what it is a cursor into."""
        return {"epoch": self._epoch, "position": self._position, **self._ground()}

    def load_state(self, state: Mapping[str, int]) -> None:
        """See `Sampler.load_state`."""
        check_ground(state, self._ground(), ("epoch", "position"))
        self._begin(state["epoch"], state["position"])

    def sequences_per_epoch(self) -> int:
        """Windows of an epoch; one with an unlucky offset has one less."""
        return len(self._stream) // self._sequence_length

    def _next_row(self) -> Row:
        if self._position == len(self._starts):
            self._begin(self._epoch + 1, 0)
        first = int(self._starts[self._position])
        self._position += 1
        length = self._sequence_length
        return self._stream.row([(first, first + length)], length, separate=self._separate, padding=0)

    def _ground(self) -> dict[str, int]:
        return {"seed": self._seed, "sequence_length": self._sequence_length, "tokens": len(self._stream)}

    def _begin(self, epoch: int, position: int) -> None:
        length, tokens = self._sequence_length, len(self._stream)
        draws = generator(self._seed, epoch)
        slack = min(length - 1, tokens - length)
        offset = int(torch.randint(slack + 1, (), generator=draws))
        windows = (tokens - offset) // length
        self._starts = torch.randperm(windows, generator=draws).mul_(length).add_(offset)
        if not 0 <= position <= windows:
            raise damaged(f"position {position} of {windows}", epoch)
        self._epoch, self._position = epoch, position
