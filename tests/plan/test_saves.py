"""How many checkpoints a run writes and keeps, counted and held to the steps at which the training loop saves."""

from __future__ import annotations

import random

import pytest

from workbench.config import RunConfig, parse_config
from workbench.plan.workload import checkpoints_kept, saves

MODEL = '[model]\narchitecture = "gpt2"\n'


def config(steps: int, every: int, keep: int, keep_every: int, best: bool = False) -> RunConfig:
    values = {"every": every, "keep": keep, "keep_every": keep_every, "keep_best": str(best).lower()}
    return parse_config(
        MODEL, "p", [f"train.steps={steps}", *(f"checkpoint.{key}={value}" for key, value in values.items())]
    )


def played(run: RunConfig) -> tuple[int, int]:
    """Saves, and the most checkpoints beside one that is being written, by going through all steps."""
    checkpoint, written, kept, most = run.checkpoint, 0, [], 0
    for step in range(1, run.train.steps + 1):
        due = [n for n in (checkpoint.every, checkpoint.keep_every) if n and step % n == 0]
        if due or step == run.train.steps:
            written += 1
            most = max(most, len(kept))
            kept.append(step)
            for_good = [s for s in kept if checkpoint.keep_every and s % checkpoint.keep_every == 0]
            kept = sorted({*for_good, *kept[-checkpoint.keep :]})
    return written, most


@pytest.mark.parametrize("seed", range(20))
def test_saves_are_counted_as_they_are_made_and_there_is_room_for_all_that_stay(seed: int) -> None:
    generator = random.Random(seed)
    steps, every, keep = generator.randint(1, 60), generator.randint(0, 9), generator.randint(1, 4)
    keep_every = generator.choice([0, 2, 5, 7])
    run = config(steps, every, keep, keep_every)
    written, most = played(run)
    assert saves(run) == written
    assert checkpoints_kept(run) >= most
    # Those for good are counted apart from the newest, and the last with them.
    assert checkpoints_kept(run) <= most + keep + 1
    assert checkpoints_kept(config(steps, every, keep, keep_every, best=True)) == checkpoints_kept(run) + 1
    assert checkpoints_kept(config(1000, 200, 2, 0)) == 2
