"""Keep these tests on one thread, and see that verifying leaves none behind, whatever went wrong in it."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _no_lane_is_left_behind(no_lane_left: None) -> None: ...


@pytest.fixture(autouse=True, scope="session")
def _one_thread(one_torch_thread: None) -> None: ...
