"""Keep these tests on one thread and away from the user's cache."""

from __future__ import annotations

import functools
import json
import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from workbench.census.obtain import obtain_census
from workbench.census.take import take_census
from workbench.plan.census import Census
from workbench.training.start import fitting


@pytest.fixture(autouse=True, scope="session")
def _one_thread(one_torch_thread: None) -> None: ...


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORKBENCH_CACHE", str(tmp_path / "cache"))


@pytest.fixture(autouse=True)
def _censuses_without_a_helper_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Taken here, once for each model: starting torch anew takes ten times as long as the census of a tiny model."""

    def obtain(table: Mapping[str, Any], tell: Callable[[str], None]) -> Census:
        return obtain_census(table, tell, take=False) or _census(json.dumps(table))

    monkeypatch.setattr(fitting, "obtain_census", obtain)


@functools.cache
def _census(table: str) -> Census:
    return take_census(json.loads(table))


@pytest.fixture
def text_file(tmp_path: Path) -> Path:
    """20 kB of words."""
    generator = random.Random(1)
    path = tmp_path / "words.txt"
    path.write_text(" ".join(generator.choice(["one", "two", "three", "four"]) for _ in range(4000)))
    return path
