"""The checkpoints of a run, as they lie on disk: found, and held to their markers and manifests, without torch.

What is in them and how it is written is the business of `training/checkpoints/checkpoint.py`. Invariant: what is given
from here had its `DONE` fit its manifest, and its model files their lengths.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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
    """What an element takes: the name of a dtype ends in its bits."""
    return int(dtype.lstrip("abcdefghijklmnopqrstuvwxyz")) // 8


def check_model_files(saved: SavedStep, *, weights: bool = True) -> None:
    """Read a checkpoint's model files to their ends, several at once, and hold them to their checksums.

    Without `weights` only what describes the model. A checkpoint that was saved before checksums were is not looked at.
    Raises DamagedFileError naming the file.
    """
    told: dict[str, list[list[int]]] = {
        name: spans
        for name, spans in saved.manifest.get("model_checksums", {}).items()
        if weights or not name.endswith(".safetensors")
    }
    with ThreadPoolExecutor(_READERS, "check-model") as pool:
        for damage in pool.map(lambda name: _damage(saved.path / name, told[name]), sorted(told)):
            if damage is not None:
                raise damage


def checksum(path: Path) -> list[list[int]]:
    """What a manifest says of a file that is read whole: one span of all its bytes, with its CRC-32."""
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
    """What `best.json` under `root` names; None where there is none that can be read."""
    value, _ = read_json(root / BEST_FILE)
    step, loss = value.get("step"), value.get("validation_loss")
    if not isinstance(step, int) or not isinstance(loss, (int, float)):
        return None
    return BestStep(step, float(loss))


def checkpoint_name(step: int) -> str:
    return f"step-{step:08}"


def find_checkpoints(root: Path, warn: Callable[[str], None]) -> Iterator[SavedStep]:
    """The checkpoints under `root` that look whole, newest first; `warn` is told why others are passed over."""
    for path in reversed(step_folders(root)):
        try:
            yield open_checkpoint(path)
        except DamagedFileError as error:
            warn(f"checkpoint {path.name} is passed over: {error}")


def checkpoint_bytes(root: Path) -> int:
    """What the checkpoints under `root` take of the disk."""
    files = (file for folder in step_folders(root) for file in folder.rglob("*"))
    return sum(file.stat().st_size for file in files if file.is_file())


def open_checkpoint(path: Path) -> SavedStep:
    """The checkpoint in the folder `path`, its marker, its manifest and the lengths of its model files found fitting.

    Raises DamagedFileError saying what is not.
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
    """Every folder under `root` that is named as a checkpoint, the oldest step first."""
    named = (p for p in root.glob("step-*") if p.is_dir() and p.name.removeprefix("step-").isdigit())
    return sorted(named, key=step_of)


def step_of(path: Path) -> int:
    """The step that a folder's name tells."""
    return int(path.name.removeprefix("step-"))
