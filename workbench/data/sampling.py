"""Windows of tokens for training and for evaluation.

Training sees every window once an epoch in an order that (seed, epoch) alone decide: torch's global generator
is neither read nor moved, so that a cursor of two numbers resumes exactly. Evaluation sees the same windows
every time.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import torch
from torch import Tensor

from workbench.errors import ConfigurationError


class WindowSampler:
    """Endless training batches from a one-dimensional tensor of token ids.

    An epoch cuts the tokens into windows of `sequence_length` from an offset of its own, which leaves out
    fewer than `sequence_length` tokens at either end, and shuffles them. A batch may reach over the end of an
    epoch.
    """

    def __init__(self, tokens: Tensor, sequence_length: int, batch_size: int, seed: int) -> None:
        if len(tokens) < sequence_length or sequence_length < 1 or batch_size < 1:
            raise ValueError(f"{len(tokens)} tokens cannot give batches of {batch_size} x {sequence_length}")
        self._tokens = tokens
        self._sequence_length = sequence_length
        self._batch_size = batch_size
        self._seed = seed
        self._begin(0, 0)

    def next(self) -> Tensor:
        """The next batch: int64 [batch_size, sequence_length]."""
        batch = torch.empty(self._batch_size, self._sequence_length, dtype=torch.int64)
        for row in batch:
            if self._position == len(self._starts):
                self._begin(self._epoch + 1, 0)
            start = int(self._starts[self._position])
            row.copy_(self._tokens[start : start + self._sequence_length])
            self._position += 1
        return batch

    def state(self) -> dict[str, int]:
        """The cursor, and what it is a cursor into."""
        return {"epoch": self._epoch, "position": self._position, **self._ground()}

    def load_state(self, state: dict[str, int]) -> None:
        """Go on where `state` was taken. The batch size may differ.

        Raises ConfigurationError where the tokens, the sequence length or the seed differ: the cursor would
        point elsewhere.
        """
        for name, value in self._ground().items():
            if state.get(name, value) != value:
                raise ConfigurationError(
                    f"the data cursor was saved with {name} = {state[name]}, and now it is {value}; "
                    "resume with the data settings that the run was started with"
                )
        self._begin(state["epoch"], state["position"])

    def _ground(self) -> dict[str, int]:
        return {"seed": self._seed, "sequence_length": self._sequence_length, "tokens": len(self._tokens)}

    def _begin(self, epoch: int, position: int) -> None:
        length = self._sequence_length
        digest = hashlib.blake2b(f"{self._seed}/{epoch}".encode(), digest_size=8).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(digest, "little") >> 1)
        slack = min(length - 1, len(self._tokens) - length)
        offset = int(torch.randint(slack + 1, (), generator=generator))
        windows = (len(self._tokens) - offset) // length
        self._starts = torch.randperm(windows, generator=generator).mul_(length).add_(offset)
        if not 0 <= position <= windows:
            raise ConfigurationError(
                f"the data cursor is damaged: position {position} of {windows} in epoch {epoch}"
            )
        self._epoch, self._position = epoch, position


def evaluation_batches(
    tokens: Tensor, sequence_length: int, batch_size: int, total_tokens: int
) -> Iterator[Tensor]:
    """The same windows every time, spread evenly over `tokens`: int64 [batch_size or fewer, sequence_length].

    Together they have at most `total_tokens` tokens, but there is at least one window; windows do not
    overlap.
    """
    there = len(tokens) // sequence_length
    if there < 1:
        raise ValueError(f"{len(tokens)} tokens give no window of {sequence_length}")
    count = min(there, max(1, total_tokens // sequence_length))
    starts = [index * there // count * sequence_length for index in range(count)]
    for first in range(0, count, batch_size):
        chosen = starts[first : first + batch_size]
        batch = torch.empty(len(chosen), sequence_length, dtype=torch.int64)
        for row, start in zip(batch, chosen, strict=True):
            row.copy_(tokens[start : start + sequence_length])
        yield batch
