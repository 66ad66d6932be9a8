"""Keep these tests on one thread, and see that verifying leaves none behind, whatever went wrong in it."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True)
def _no_lane_is_left_behind() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    left = [t.name for t in threading.enumerate() if t not in before and t.name.startswith("lane-")]
    assert not left, f"lanes still alive: {left}"


@pytest.fixture(autouse=True, scope="session")
def _one_torch_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
