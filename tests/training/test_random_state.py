"""The state of every generator goes through JSON and back."""

from __future__ import annotations

import json
import random

import numpy
import torch

from workbench.training.checkpoints.random_state import (
    capture_random_state,
    restore_random_state,
    seed_everything,
)


def draw() -> list[float]:
    return [random.random(), random.gauss(0, 1), float(torch.rand(())), float(numpy.random.rand())]


def test_every_generator_goes_on_where_it_was() -> None:
    seed_everything(5)
    draw()
    state = json.loads(json.dumps(capture_random_state()))
    expected = [draw() for _ in range(3)]
    seed_everything(6)
    restore_random_state(state)
    assert [draw() for _ in range(3)] == expected
