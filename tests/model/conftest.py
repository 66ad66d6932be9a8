"""Keep these tests on one thread and their output quiet."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True, scope="session")
def _one_quiet_thread(one_torch_thread: None, no_progress_bars: None) -> None: ...
