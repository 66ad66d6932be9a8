"""What samplers share: the interface, seeded generators, and the check that a cursor points into the same data."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Protocol

import torch

from workbench.data.batches import Batch
from workbench.errors import ConfigurationError


class Sampler(Protocol):
    """Endless training batches, an epoch after the other; what comes next is all in `state`."""

    def next(self) -> Batch:
        """The next batch; something of it is learnt."""

    def state(self) -> dict[str, int]:
        """The cursor, and what it is a cursor into."""

    def load_state(self, state: Mapping[str, int]) -> None:
        """Go on where `state` was taken. The batch size may differ.

        Raises ConfigurationError where the cursor would point elsewhere: other tokens, sequence length or seed.
        """

    def sequences_per_epoch(self) -> int:
        """Rows of the first epoch; later ones have about as many."""


def generator(*seed: int | str) -> torch.Generator:
    """A generator of its own for whatever `seed` names; torch's global one is neither read nor moved."""
    digest = hashlib.blake2b("/".join(map(str, seed)).encode(), digest_size=8).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest, "little") >> 1)


def check_ground(state: Mapping[str, int], ground: Mapping[str, int], cursor: tuple[str, ...]) -> None:
    """Raise ConfigurationError unless `state` has the `cursor`'s numbers and was taken on this `ground`."""
    for name, value in ground.items():
        if state.get(name, value) != value:
            moved = "put the files of data.source back as they were, and " if name == "tokens" else ""
            raise ConfigurationError(
                f"the data cursor was saved with {name} = {state[name]}, and now it is {value}; "
                f"{moved}resume with the data settings that the run was started with"
            )
    missing = [name for name in cursor if name not in state]
    if missing:
        raise ConfigurationError(
            f"the data cursor was saved with data of another kind (it has no {missing[0]}): plain text is read in "
            "windows, prompts and chats document by document; resume with the data settings that the run was "
            "started with"
        )


def damaged(what: str, epoch: int) -> ConfigurationError:
    return ConfigurationError(f"the data cursor is damaged: {what} in epoch {epoch}")
