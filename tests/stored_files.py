"""Checkpoint folders, compared byte by byte."""

from __future__ import annotations

import filecmp
from pathlib import Path


def assert_same_tensors(one: Path, other: Path) -> None:
    """Two checkpoints have files of the same names, and their weights and state are equal to the byte."""
    names, others = (
        sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
        for folder in (one, other)
    )
    assert names == others
    tensors = [name for name in names if name.endswith(".safetensors") or name.startswith("state/0")]
    assert len(tensors) > 10
    assert filecmp.cmpfiles(one, other, tensors, shallow=False) == (tensors, [], [])
