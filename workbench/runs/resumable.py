"""Whether a run has a checkpoint that it can go on from, as far as it shows without reading one: no torch, no sums.

What is in the files is the trainer's to check, which reads them anyway. Invariant: a run is refused here only where its
trainer could not go on with it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from workbench.errors import WorkbenchError
from workbench.runs.checkpoints import (
    DamagedFileError,
    SavedStep,
    check_state_lengths,
    open_checkpoint,
    step_folders,
)
from workbench.runs.directory import RunDirectory
from workbench.runs.done import done_before


class Damage(NamedTuple):
    """A checkpoint that a run cannot go on from, and why. `saved`: what was read of it; None where it has no manifest
    that fits, or lacks a file of its model."""

    path: Path
    why: DamagedFileError
    saved: SavedStep | None = None

    def line(self) -> str:
        """One line, which names files by their place in the checkpoint."""
        return f"{self.path.name}: {str(self.why).replace(f'{self.path}/', '')}"

    def model_stands(self) -> bool:
        """Whether what is wrong is in none of the model's files."""
        if self.saved is None:
            return False
        return not any(f"{self.path / name} " in str(self.why) for name in self.saved.manifest["model_files"])


class NotResumableError(WorkbenchError):
    """None of a run's checkpoints is whole: a line for each, the newest first, and what can be done."""

    def __init__(self, run: RunDirectory, damaged: Sequence[Damage]) -> None:
        none = (
            "its only checkpoint is not"
            if len(damaged) == 1
            else f"none of its {len(damaged)} checkpoints is"
        )
        ways = ["put whole copies of these files in their places, and resume it again"]
        saved = next((damage.saved for damage in damaged if damage.model_stands()), None)
        if saved is not None:
            ways.append(
                f"`workbench export {run.path} DIR --step {saved.step}` writes the model of that step"
            )
        ways.append(f"`workbench run {run.config}` begins anew, as another run")
        super().__init__(
            "\n".join(
                (
                    f"run {run.name} cannot be resumed: {none} whole, and all are left as they are",
                    *(f"  {damage.line()}" for damage in damaged),
                    ";\nor ".join(ways),
                )
            )
        )


def check_resumable(run: RunDirectory) -> None:
    """Refuse a run whose checkpoints are all damaged, or that is done and has none left. One that never saved any
    begins again at its first step.

    Raises:
        WorkbenchError: with what is wrong, and what can be done.
    """
    folders = step_folders(run.checkpoints)
    if any(run.checkpoints.glob(".step-*.replaced")):
        return  # left by a save that was cut off: the trainer puts it back
    if not folders and done_before(run) is not None:
        raise WorkbenchError(
            f"run {run.name} has done all its steps, and no checkpoint to go on from is left in {run.checkpoints}; "
            f"`workbench run {run.config}` begins anew, as another run"
        )
    damaged = list(_damaged(reversed(folders)))
    if damaged and len(damaged) == len(folders):
        raise NotResumableError(run, damaged)


def _damaged(folders: Iterator[Path]) -> Iterator[Damage]:
    """Those of `folders` before the first that looks whole."""
    for path in folders:
        saved = None
        try:
            saved = open_checkpoint(path)
            check_state_lengths(saved)
        except DamagedFileError as error:
            yield Damage(path, error, saved)
        else:
            return
