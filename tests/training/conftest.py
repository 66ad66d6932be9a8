"""Keep these tests on one thread and away from the user's cache."""

from __future__ import annotations

import functools
import json
import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from workbench.profiles.block_costs import take_model_profile
from workbench.profiles.model_profile import ModelProfile
from workbench.profiles.obtain import obtain_model_profile
from workbench.training import fitting


@pytest.fixture(autouse=True, scope="session")
def _one_thread(one_torch_thread: None) -> None: ...


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORKBENCH_CACHE", str(tmp_path / "cache"))


@pytest.fixture(autouse=True)
def _model_profiles_without_a_helper_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Taken here, once for each model: starting torch anew takes ten times as long as the model profile of a
    tiny model.
    """

    def obtain(table: Mapping[str, Any], tell: Callable[[str], None]) -> ModelProfile:
        return obtain_model_profile(table, tell, take=False) or _model_profile(json.dumps(table))

    monkeypatch.setattr(fitting, "obtain_model_profile", obtain)


@functools.cache
def _model_profile(table: str) -> ModelProfile:
    return take_model_profile(json.loads(table))


@pytest.fixture
def text_file(tmp_path: Path) -> Path:
    """20 kB of words."""
    generator = random.Random(1)
    path = tmp_path / "words.txt"
    path.write_text(" ".join(generator.choice(["one", "two", "three", "four"]) for _ in range(4000)))
    return path
