"""One house of folders for each test of the application."""

from __future__ import annotations

from pathlib import Path

import pytest
from whole_app import House, house


@pytest.fixture(name="house")
def _house(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> House:
    return house(tmp_path, monkeypatch)
