"""Keep these tests on one thread and away from the user's cache."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch


@pytest.fixture(autouse=True, scope="session")
def _one_torch_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORKBENCH_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def text_file(tmp_path: Path) -> Path:
    """20 kB of words."""
    generator = random.Random(1)
    path = tmp_path / "words.txt"
    path.write_text(" ".join(generator.choice(["one", "two", "three", "four"]) for _ in range(4000)))
    return path
