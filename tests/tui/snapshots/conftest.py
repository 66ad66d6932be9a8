"""The fixture `stored`: pictures are compared with the files in this folder."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from stored_pictures import UPDATE, StoredPictures


@pytest.fixture(scope="session")
def stored(tmp_path_factory: pytest.TempPathFactory) -> StoredPictures:
    """The pictures in this folder; new ones are left in the session's temporary folder."""
    found = tmp_path_factory.getbasetemp() / "pictures"
    return StoredPictures(Path(__file__).parent, found, update=os.environ.get(UPDATE, "") not in ("", "0"))
