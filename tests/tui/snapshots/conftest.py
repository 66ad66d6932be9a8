"""The fixture `stored`: pictures are compared with the files in this folder."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

_TUI = Path(__file__).parents[1]
for _folder in (_TUI, _TUI / "panels", _TUI / "snapshots"):
    if str(_folder) not in sys.path:
        sys.path.insert(0, str(_folder))

from stored_pictures import UPDATE, StoredPictures  # noqa: E402 - it lies in this folder


@pytest.fixture(scope="session")
def stored(tmp_path_factory: pytest.TempPathFactory) -> StoredPictures:
    """The pictures in this folder; new ones are left in the session's temporary folder."""
    found = tmp_path_factory.getbasetemp() / "pictures"
    return StoredPictures(Path(__file__).parent, found, update=os.environ.get(UPDATE, "") not in ("", "0"))
