"""Removes checkpoints in a thread of its own: a file system may take as long to free one as a disk takes to write it.

Invariant: when `add` returns, nobody finds the folder under its name any more; when `wait` returns, its room is free.
"""

from __future__ import annotations

import contextlib
import shutil
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path


def hide(path: Path) -> Path | None:
    """Give the checkpoint `path` a name of none, which is a leftover if the process ends; None where it stays."""
    hidden = path.with_name(f".{path.name}.removed")
    with contextlib.suppress(OSError):
        return path.rename(hidden)
    return None


def remove_now(path: Path) -> None:
    """Remove a checkpoint and wait for it. One that the file system keeps stays."""
    hidden = hide(path)
    if hidden is not None:
        shutil.rmtree(hidden, ignore_errors=True)


class Removal:
    """Removes one checkpoint after the other beside whoever asks; leaving it as a context waits."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "remove-checkpoint")
        self._going: list[Future[None]] = []

    def add(self, path: Path) -> None:
        """As `remove_now`, without waiting for the room."""
        hidden = hide(path)
        if hidden is not None:
            self._going.append(self._thread.submit(shutil.rmtree, hidden, ignore_errors=True))

    def wait(self) -> None:
        """Until all that was added is gone."""
        for job in self._going:
            job.result()
        self._going.clear()

    def __enter__(self) -> Removal:
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.shutdown(wait=True)
