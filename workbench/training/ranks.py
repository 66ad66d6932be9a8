"""The ranks of torch.distributed, as torchrun starts them: a run knows of none yet."""

from __future__ import annotations

import os

from workbench.errors import ConfigurationError


def check_one_rank() -> None:
    """Raise ConfigurationError where this process is one of several: each would train a copy of its own."""
    ranks = os.environ.get("WORLD_SIZE", "1")
    if "RANK" in os.environ and ranks != "1":
        raise ConfigurationError(
            f"this is one of {ranks} processes that torchrun has started: runs do not train across ranks yet, and each "
            "would train a copy of its own; start one without torchrun (docs/distributed.md)"
        )
