"""A checkpoint that need not stay is gone from its name at once, and from the disk before its room is needed."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path
from typing import Any

import pytest

from workbench.training.checkpoints import save
from workbench.training.checkpoints.save import Removal, remove_now


def checkpoint(root: Path, step: int) -> Path:
    path = root / f"step-{step:08d}"
    (path / "state").mkdir(parents=True)
    (path / "DONE").write_text("{}")
    return path


def test_a_caller_goes_on_while_checkpoints_are_removed_and_waits_when_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on = threading.Event()
    real = shutil.rmtree

    def held(path: Path, **options: Any) -> None:
        assert go_on.wait(60)
        real(path, **options)

    monkeypatch.setattr(save.shutil, "rmtree", held)
    with Removal() as removing:
        for step in (1, 2):
            removing.add(checkpoint(tmp_path, step))
        left = [path.name for path in tmp_path.iterdir()]
        assert sorted(left) == [".step-00000001.removed", ".step-00000002.removed"]
        go_on.set()
        removing.wait()
        assert not list(tmp_path.iterdir())
        removing.add(checkpoint(tmp_path, 3))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("remove", [remove_now, Removal().add])
def test_what_the_file_system_keeps_stays_whole(
    remove: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: Path, target: Path) -> Path:
        raise PermissionError(13, "Permission denied")

    path = checkpoint(tmp_path, 1)
    monkeypatch.setattr(Path, "rename", refuse)
    remove(path)
    assert (path / "DONE").exists()
