"""Keep these tests on one thread and away from the user's cache; one model profile a family serves all that
look at it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path

import pytest
from model_tables import FAMILIES

from workbench.profiles.block_costs import take_model_profile
from workbench.profiles.model_profile import ModelProfile


@pytest.fixture(autouse=True, scope="session")
def _one_thread(one_torch_thread: None) -> None: ...


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORKBENCH_CACHE", str(tmp_path / "cache"))


@pytest.fixture(scope="session")
def model_profile_of() -> Callable[[str], ModelProfile]:
    """The model profile of one of `FAMILIES`, taken once."""
    return functools.cache(lambda family: take_model_profile(FAMILIES[family]))
