"""The checkpoints of a run, as they lie on disk: found, and held to their markers and manifests, without torch.

What is in them and how it is written is `training/checkpoint.py`'s business. Invariant: what is given from here had its
`DONE` fit its manifest, and its model files their lengths.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FORMAT_VERSION = 1


class DamagedFileError(Exception):
    """A file is not what was written; the message names it and says how it differs."""


@dataclass(frozen=True)
class SavedStep:
    """A checkpoint on disk, its manifest read and found fitting."""

    path: Path
    step: int
    manifest: dict[str, Any]


def checkpoint_name(step: int) -> str:
    return f"step-{step:08}"


def find_checkpoints(root: Path, warn: Callable[[str], None]) -> Iterator[SavedStep]:
    """The checkpoints under `root` that look whole, newest first; `warn` is told why others are passed over."""
    for path in reversed(step_folders(root)):
        try:
            yield _open(path)
        except DamagedFileError as error:
            warn(f"checkpoint {path.name} is passed over: {error}")


def checkpoint_bytes(root: Path) -> int:
    """What the checkpoints under `root` take of the disk."""
    files = (file for folder in step_folders(root) for file in folder.rglob("*"))
    return sum(file.stat().st_size for file in files if file.is_file())


def _open(path: Path) -> SavedStep:
    try:
        done = json.loads((path / "DONE").read_bytes())
        text = (path / "state" / "manifest.json").read_bytes()
        if zlib.crc32(text) != done["manifest_crc32"]:
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
