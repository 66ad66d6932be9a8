"""Which checkpoints of a run stay (the newest, every Mth, the one of lowest validation loss); removal of the rest.

Invariants: `best.json` is changed only when the checkpoint that it then names is in place, and that one is removed only
after another has taken its place. A checkpoint that is being removed has no checkpoint's name any more.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from workbench.runs.checkpoints import BEST_FILE, BestStep, checkpoint_name, read_best, step_folders, step_of
from workbench.runs.writing import write_json


def remove_now(path: Path) -> None:
    """Remove a checkpoint and wait for it. One that the file system keeps stays."""
    hidden = _hide(path)
    if hidden is not None:
        shutil.rmtree(hidden, ignore_errors=True)


class Removal:
    """Removes checkpoints in a thread: a file system may take as long to free one as a disk takes to write it.

    As a context manager it waits at the end.
    """

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "remove-checkpoint")
        self._jobs: list[Future[None]] = []

    def add(self, path: Path) -> None:
        """Remove a checkpoint without waiting: it has lost its name when this returns, its room is free later."""
        hidden = _hide(path)
        if hidden is not None:
            self._jobs.append(self._thread.submit(shutil.rmtree, hidden, ignore_errors=True))

    def wait(self) -> None:
        """Wait until the room of all that was added is free."""
        for job in self._jobs:
            job.result()
        self._jobs.clear()

    def __enter__(self) -> Removal:
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.shutdown(wait=True)


def remove_old(
    root: Path,
    *,
    keep: int,
    keep_every: int = 0,
    best: BestStep | None = None,
    remove: Callable[[Path], None] = remove_now,
) -> None:
    """Remove the checkpoints under `root` that need not stay.

    The newest `keep` stay, those of every `keep_every`th step (0: none), and `best`.
    """
    for path in step_folders(root)[:-keep]:
        step = step_of(path)
        if (keep_every and step % keep_every == 0) or (best is not None and step == best.step):
            continue
        remove(path)


def name_best(root: Path, best: BestStep) -> None:
    """Let `best.json` name the checkpoint of `best`, which is in place.

    Raises:
        WorkbenchError: the disk refuses; the file names the one before.
    """
    write_json(
        root / BEST_FILE,
        {
            "checkpoint": checkpoint_name(best.step),
            "step": best.step,
            "validation_loss": best.validation_loss,
        },
    )


def best_before(root: Path, step: int, saved: BestStep | None) -> BestStep | None:
    """Return the best checkpoint under `root` of a run that goes on after `step`; `best.json` names it from then on.

    `saved` is the best one by the checkpoint of `step`. A checkpoint of a later step was found damaged, or is to be
    written anew; one that is gone is not counted.
    """
    there = {step_of(path) for path in step_folders(root)}
    known = [best for best in (read_best(root), saved) if best and best.step <= step and best.step in there]
    if not known:
        (root / BEST_FILE).unlink(missing_ok=True)
        return None
    best = min(known, key=lambda best: (best.validation_loss, best.step))
    name_best(root, best)
    return best


def _hide(path: Path) -> Path | None:
    """Rename a checkpoint so that a crash leaves no half one; return the new name, None where it stays."""
    hidden = path.with_name(f".{path.name}.removed")
    with contextlib.suppress(OSError):
        return path.rename(hidden)
    return None
