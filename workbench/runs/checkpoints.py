"""The checkpoints of a run, as they lie on disk: found and checked without torch.

`training/checkpoints/` writes them and reads their state. Invariant: a `SavedStep` had a `DONE` marker that fits its
manifest, and model files of the lengths in it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from workbench.errors import WorkbenchError
from workbench.runs.directory import RunDirectory
from workbench.runs.status import done_before
from workbench.runs.writing import read_json
from workbench.system.files import crc32

FORMAT_VERSION = 1
_READERS = 4
_PIECE_BYTES = 4 << 20


class DamagedFileError(Exception):
    """A file is not what was written; the message names it and says how it differs."""


@dataclass(frozen=True)
class SavedStep:
    """A checkpoint on disk, its manifest read and found fitting."""

    path: Path
    step: int
    manifest: dict[str, Any]


def check_state_lengths(saved: SavedStep) -> None:
    """Hold the lengths of a checkpoint's state files to its manifest.

    Raises DamagedFileError naming the first that is missing or has another.
    """
    for entry in saved.manifest["files"].values():
        path = saved.path / "state" / entry["file"]
        expected = entry["elements"] * _item_bytes(entry["dtype"])
        try:
            there = path.stat().st_size
        except FileNotFoundError:
            raise DamagedFileError(f"{path} is missing") from None
        except OSError as error:
            raise DamagedFileError(f"{path} cannot be read: {error.strerror or error}") from error
        if there != expected:
            raise DamagedFileError(f"{path} has {there:,} bytes instead of {expected:,}")


def _item_bytes(dtype: str) -> int:
    """Return the bytes of an element: the name of a dtype ends in its bits."""
    return int(dtype.lstrip("abcdefghijklmnopqrstuvwxyz")) // 8


def check_model_files(saved: SavedStep, *, weights: bool = True) -> None:
    """Read a checkpoint's model files to their ends, several at once, and hold them to their checksums.

    Without `weights` only the files that describe the model. Raises DamagedFileError naming the file.
    """
    checksums: dict[str, list[list[int]]] = {
        name: spans
        for name, spans in saved.manifest.get("model_checksums", {}).items()
        if weights or not name.endswith(".safetensors")
    }
    with ThreadPoolExecutor(_READERS, "check-model") as pool:
        for damage in pool.map(lambda name: _damage(saved.path / name, checksums[name]), sorted(checksums)):
            if damage is not None:
                raise damage


def checksum(path: Path) -> list[list[int]]:
    """Return the manifest's entry for a file that is read whole: one span of all its bytes, [length, CRC-32]."""
    size = seen = 0
    with path.open("rb", buffering=0) as file:
        while piece := file.read(_PIECE_BYTES):
            size += len(piece)
            seen = crc32(piece, seen)
    return [[size, seen]]


def _damage(path: Path, spans: list[list[int]]) -> DamagedFileError | None:
    try:
        with path.open("rb", buffering=0) as file:
            for size, expected in spans:
                seen = 0
                while size:
                    piece = file.read(min(size, _PIECE_BYTES))
                    if not piece:
                        return DamagedFileError(f"{path} ended early")
                    seen = crc32(piece, seen)
                    size -= len(piece)
                if seen != expected:
                    return DamagedFileError(
                        f"{path} is damaged: its checksum is {seen:08x} instead of {expected:08x}"
                    )
    except OSError as error:
        return DamagedFileError(f"{path} cannot be read: {error.strerror or error}")
    return None


BEST_FILE = "best.json"
"""Beside the checkpoints: names the one with the lowest validation loss."""


@dataclass(frozen=True)
class BestStep:
    """The checkpoint with the lowest validation loss (nats a token) so far."""

    step: int
    validation_loss: float


def read_best(root: Path) -> BestStep | None:
    """Return what `best.json` under `root` names; None where there is none that can be read."""
    value, _ = read_json(root / BEST_FILE)
    step, loss = value.get("step"), value.get("validation_loss")
    if not isinstance(step, int) or not isinstance(loss, (int, float)):
        return None
    return BestStep(step, float(loss))


def checkpoint_name(step: int) -> str:
    return f"step-{step:08}"


def find_checkpoints(root: Path, warn: Callable[[str], None]) -> Iterator[SavedStep]:
    """Yield the checkpoints under `root` that look whole, newest first; `warn` gets why others are passed over."""
    for path in reversed(step_folders(root)):
        try:
            yield open_checkpoint(path)
        except DamagedFileError as error:
            warn(f"checkpoint {path.name} is passed over: {error}")


def checkpoint_bytes(root: Path) -> int:
    """Return the bytes that the checkpoints under `root` take."""
    files = (file for folder in step_folders(root) for file in folder.rglob("*"))
    return sum(file.stat().st_size for file in files if file.is_file())


def open_checkpoint(path: Path) -> SavedStep:
    """Return the checkpoint in the folder `path` once its marker, manifest and model files' lengths were found to fit.

    Raises DamagedFileError saying what does not.
    """
    try:
        done = json.loads((path / "DONE").read_bytes())
        text = (path / "state" / "manifest.json").read_bytes()
        if crc32(text) != done["manifest_crc32"]:
            raise DamagedFileError(
                f"{path / 'state' / 'manifest.json'} is damaged: its checksum does not fit"
            )
        manifest = json.loads(text)
        if manifest["version"] != FORMAT_VERSION:
            raise DamagedFileError(
                f"it has format {manifest['version']}; this Workbench reads {FORMAT_VERSION}"
            )
        for name, size in manifest["model_files"].items():
            there = (path / name).stat().st_size
            if there != size:
                raise DamagedFileError(f"{path / name} has {there:,} bytes instead of {size:,}")
        return SavedStep(path, int(manifest["step"]), manifest)
    except FileNotFoundError as error:
        raise DamagedFileError(f"{error.filename} is missing") from error
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DamagedFileError(f"it cannot be read: {error}") from error


def step_folders(root: Path) -> list[Path]:
    """Return every folder under `root` that is named as a checkpoint, the oldest step first."""
    named = (p for p in root.glob("step-*") if p.is_dir() and p.name.removeprefix("step-").isdigit())
    return sorted(named, key=step_of)


def step_of(path: Path) -> int:
    """Return the step in a folder's name."""
    return int(path.name.removeprefix("step-"))


class Damage(NamedTuple):
    """A checkpoint that a run cannot go on from, and why.

    `saved` is None where it has no manifest that fits, or lacks a file of its model.
    """

    path: Path
    why: DamagedFileError
    saved: SavedStep | None = None

    def line(self) -> str:
        """Return one line, which names files by their place in the checkpoint."""
        return f"{self.path.name}: {str(self.why).replace(f'{self.path}/', '')}"

    def has_whole_model(self) -> bool:
        """Return True where the damage is in none of the model's files."""
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
        saved = next((damage.saved for damage in damaged if damage.has_whole_model()), None)
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
    """Refuse a run whose checkpoints are all damaged, or that has done all its steps and has none left.

    Only what shows without reading the files is checked: the trainer reads them anyway. A run that never saved a
    checkpoint begins again at its first step.

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


def _damaged(folders: Iterable[Path]) -> Iterator[Damage]:
    """Yield the damage of each of `folders` before the first that looks whole."""
    for path in folders:
        saved = None
        try:
            saved = open_checkpoint(path)
            check_state_lengths(saved)
        except DamagedFileError as error:
            yield Damage(path, error, saved)
        else:
            return
