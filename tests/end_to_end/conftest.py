"""Real trainers in processes of their own, each ended with its test however that goes."""

from __future__ import annotations

import random
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from trainers import Trainers


@pytest.fixture(scope="module")
def trainers() -> Iterator[Trainers]:
    """A folder with a text, and whatever a module starts in it; all of it is gone afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="workbench-end-to-end-"))
    generator = random.Random(1)
    words = ["def", "return", "yield", "(", ")", ":", "\n", "alpha", "beta", "gamma"]
    (folder / "text.txt").write_text(" ".join(generator.choice(words) for _ in range(8000)))
    started = Trainers(folder)
    try:
        yield started
    finally:
        started.end()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(autouse=True)
def as_in_processes_of_their_own(own_processor: None) -> None:
    """What is computed here beside a run is computed as the run's own process does it."""
