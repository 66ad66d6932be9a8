"""Which checkpoints of a run stay: the newest, every Mth, and the one with the lowest validation loss.

Invariant: `best.json` is changed only when the checkpoint that it then names is in place, and that one is removed only
after another has taken its place.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from workbench.runs.checkpoints import BEST_FILE, BestStep, checkpoint_name, read_best, step_folders, step_of
from workbench.runs.writing import write_json
from workbench.training.checkpoints.removal import remove_now


def remove_old(
    root: Path,
    *,
    keep: int,
    keep_every: int = 0,
    best: BestStep | None = None,
    remove: Callable[[Path], None] = remove_now,
) -> None:
    """Remove what need not stay under `root`: not the newest `keep`, those of every `keep_every`th step (0: none), and
    `best`."""
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


def best_before(root: Path, step: int, told: BestStep | None) -> BestStep | None:
    """The best checkpoint under `root` of a run that goes on after `step`; `best.json` names it from then on.

    `told` is what the checkpoint of `step` knew. A checkpoint of a later step was found damaged, or is to be written
    anew; one that is gone is not counted.
    """
    there = {step_of(path) for path in step_folders(root)}
    known = [best for best in (read_best(root), told) if best and best.step <= step and best.step in there]
    if not known:
        (root / BEST_FILE).unlink(missing_ok=True)
        return None
    best = min(known, key=lambda best: (best.validation_loss, best.step))
    name_best(root, best)
    return best
