"""How many checkpoints a run writes, and how many of them stay. Arithmetic over the configuration alone.

Invariant: a step is saved where the training loop saves it: at every `checkpoint.every`th, at every
`checkpoint.keep_every`th, and at the last.
"""

from __future__ import annotations

import math

from workbench.config import RunConfig


def saves(config: RunConfig) -> int:
    """Checkpoints that are written whatever the validation loss does."""
    before_last = config.train.steps - 1
    every, keep_every = config.checkpoint.every, config.checkpoint.keep_every
    times = [before_last // steps for steps in (every, keep_every) if steps]
    both = before_last // math.lcm(every, keep_every) if every and keep_every else 0
    return 1 + sum(times) - both


def checkpoints_kept(config: RunConfig) -> int:
    """The most that stay at a time, beside one that is being written: the newest, those for good, and the best."""
    checkpoint = config.checkpoint
    for_good = config.train.steps // checkpoint.keep_every if checkpoint.keep_every else 0
    older = min(for_good, max(0, saves(config) - checkpoint.keep))
    return checkpoint.keep + older + checkpoint.keep_best
