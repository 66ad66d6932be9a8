"""The checkpoints of a run, as they lie on disk: found and checked without torch.

`training/checkpoints/` writes them and reads their state. Invariant: a `SavedStep` had a `DONE` marker that fits its
manifest, and model files of the lengths in it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

from workbench.errors import WorkbenchError
from workbench.runs.directory import RunDirectory
from workbench.runs.records import read_json
from workbench.runs.status import read_status
from workbench.system.files import crc32
from workbench.system.foreign import as_kind, parse_json

FORMAT_VERSION = 1
BEST_FILE = "best.json"
"""Beside the checkpoints: names the one with the lowest validation loss."""
MARGIN_BYTES = 16 << 20
"""Free space that a save leaves beside its checkpoint."""
_READERS = 4
_PIECE_BYTES = 4 << 20

Spans = list[tuple[int, int]]
"""[(length, CRC-32)] of a file's consecutive pieces."""


class DamagedFileError(Exception):
    """A file is not what was written; the message names it and says how it differs."""


@dataclass(frozen=True)
class BestStep:
    """The checkpoint with the lowest validation loss (nats a token) so far."""

    step: int
    validation_loss: float


@dataclass(frozen=True)
class StateFile:
    """One 1-D tensor of the engine's state: a raw little-endian file in `state/`."""

    file: str
    dtype: str
    """As torch calls it; the name ends in the bits of an element."""
    elements: int
    crc32: int

    @property
    def bytes(self) -> int:
        return self.elements * int(self.dtype.lstrip("abcdefghijklmnopqrstuvwxyz")) // 8


@dataclass(frozen=True)
class SavedRegion:
    """A range of a unit's elements with one dtype and state format."""

    dtype: str
    state_format: Literal["exact", "half", "compact"]
    start: int
    suffix: str
    """The end of the names of its tensors."""


@dataclass(frozen=True)
class SavedParameter:
    name: str
    region: int
    offset: int
    """In elements from the start of its unit."""
    elements: int


@dataclass(frozen=True)
class SavedUnit:
    name: str
    """The beginning of the names of its tensors."""
    regions: list[SavedRegion]
    parameters: list[SavedParameter]


@dataclass(frozen=True)
class Progress:
    """The state of the training loop; the defaults are those of a loop that has not begun."""

    step: int = 0
    skipped: int = 0
    """Steps of these that were left out, because their gradients were not finite."""
    tokens_total: int = 0
    data: dict[str, Any] = field(default_factory=dict)
    """The data cursor."""
    data_fingerprint: str = ""
    random: dict[str, Any] = field(default_factory=dict)
    """The state of every random number generator."""
    best: BestStep | None = None
    settings: dict[str, Any] = field(default_factory=dict)
    """The settings that decide the state's layout and its updates, by dotted name."""
    lowest_validation_loss: float | None = None
    """Nats a token; None before the first evaluation."""
    evaluations_without_gain: int = 0
    """Evaluations since the lowest validation loss."""


@dataclass(frozen=True)
class Manifest:
    """`state/manifest.json`: what a checkpoint holds, and what a run needs to go on from it."""

    step: int
    files: dict[str, StateFile]
    """By the names that `OffloadEngine.state` gives."""
    layout: list[SavedUnit]
    weights_dtype: str
    model_files: dict[str, int]
    """Bytes of each file beside `state/`."""
    model_checksums: dict[str, Spans]
    engine: dict[str, Any]
    """The engine's counters."""
    progress: Progress
    version: int = FORMAT_VERSION

    def to_json(self) -> bytes:
        return json.dumps(asdict(self)).encode()

    @classmethod
    def from_json(cls, text: bytes) -> Manifest:
        """Raise ValueError where `text` is no manifest, DamagedFileError where it is another version's."""
        value = parse_json(text)
        if value["version"] != FORMAT_VERSION:
            raise DamagedFileError(
                f"it has format {value['version']!r:.20}; this Workbench reads {FORMAT_VERSION}"
            )
        manifest = as_kind(cls, value)
        for name in (*manifest.model_files, *(entry.file for entry in manifest.files.values())):
            if Path(name).is_absolute() or ".." in Path(name).parts or "\0" in name:
                raise ValueError(f"manifest.json names {name!r:.200}, which is outside of the checkpoint")
        return manifest


@dataclass(frozen=True)
class SavedStep:
    """A checkpoint on disk whose marker and manifest fit."""

    path: Path
    manifest: Manifest

    @property
    def step(self) -> int:
        return self.manifest.step


def check_state_lengths(saved: SavedStep) -> None:
    """Compare the lengths of a checkpoint's state files with its manifest.

    Raises DamagedFileError naming the first that is missing or has another.
    """
    for entry in saved.manifest.files.values():
        _check_length(saved.path / "state" / entry.file, entry.bytes)


def check_state_files(saved: SavedStep) -> None:
    """Read a checkpoint's state files to their ends and compare lengths and checksums; raise as `check_model_files`."""
    check_state_lengths(saved)
    entries = saved.manifest.files.values()
    _check_contents({saved.path / "state" / entry.file: [(entry.bytes, entry.crc32)] for entry in entries})


def check_model_files(saved: SavedStep, *, weights: bool = True) -> None:
    """Read a checkpoint's model files to their ends and compare their checksums.

    Without `weights` only the files that describe the model. Raises DamagedFileError naming the file.
    """
    _check_contents(
        {
            saved.path / name: spans
            for name, spans in saved.manifest.model_checksums.items()
            if weights or not name.endswith(".safetensors")
        }
    )


def checksum(path: Path) -> Spans:
    """Return the manifest's entry for a file: one span of all its bytes."""
    size = seen = 0
    with path.open("rb", buffering=0) as file:
        while piece := file.read(_PIECE_BYTES):
            size += len(piece)
            seen = crc32(piece, seen)
    return [(size, seen)]


def _check_length(path: Path, expected: int) -> None:
    try:
        size = path.stat().st_size
    except FileNotFoundError:
        raise DamagedFileError(f"{path} is missing") from None
    except OSError as error:
        raise DamagedFileError(f"{path} cannot be read: {error.strerror or error}") from error
    if size != expected:
        raise DamagedFileError(f"{path} has {size:,} bytes instead of {expected:,}")


def _check_contents(files: dict[Path, Spans]) -> None:
    """Compare files with their checksums, several at once. Raises DamagedFileError for the first in order."""
    with ThreadPoolExecutor(_READERS, "check-files") as pool:
        list(pool.map(_check_content, sorted(files), (files[path] for path in sorted(files))))


def _check_content(path: Path, spans: Spans) -> None:
    try:
        with path.open("rb", buffering=0) as file:
            for size, expected in spans:
                seen = 0
                while size:
                    piece = file.read(min(size, _PIECE_BYTES))
                    if not piece:
                        raise DamagedFileError(f"{path} ended early")
                    seen = crc32(piece, seen)
                    size -= len(piece)
                if seen != expected:
                    raise DamagedFileError(
                        f"{path} is damaged: its checksum is {seen:08x} instead of {expected:08x}"
                    )
    except OSError as error:
        raise DamagedFileError(f"{path} cannot be read: {error.strerror or error}") from error


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
    """Yield the checkpoints under `root` that look whole, newest first; `warn` gets why others are skipped."""
    for path in reversed(step_folders(root)):
        try:
            yield open_checkpoint(path)
        except DamagedFileError as error:
            warn(f"checkpoint {path.name} is skipped: {error}")


def newest_checkpoint(root: Path) -> SavedStep | None:
    """Return the newest checkpoint under `root` that looks whole; None where there is none."""
    return next(find_checkpoints(root, lambda _: None), None)


def checkpoint_bytes(root: Path) -> int:
    """Return the bytes that the checkpoints under `root` take."""
    files = (file for folder in step_folders(root) for file in folder.rglob("*"))
    return sum(file.stat().st_size for file in files if file.is_file())


def open_checkpoint(path: Path) -> SavedStep:
    """Return the checkpoint in the folder `path` once its marker, manifest and model files' lengths were found to fit.

    Raises DamagedFileError saying what does not.
    """
    try:
        done = parse_json((path / "DONE").read_bytes())
        text = (path / "state" / "manifest.json").read_bytes()
        if crc32(text) != done["manifest_crc32"]:
            raise DamagedFileError(
                f"{path / 'state' / 'manifest.json'} is damaged: its checksum does not match"
            )
        manifest = Manifest.from_json(text)
        for name, size in manifest.model_files.items():
            _check_length(path / name, size)
        return SavedStep(path, manifest)
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
    """A checkpoint that a run cannot go on from, and why. `saved` is None where it has no manifest that fits."""

    path: Path
    why: DamagedFileError
    saved: SavedStep | None = None

    def line(self) -> str:
        """Return one line, which names files by their place in the checkpoint."""
        return f"{self.path.name}: {str(self.why).replace(f'{self.path}/', '')}"


class NotResumableError(WorkbenchError):
    """No checkpoint of a run is whole: a line for each, the newest first, and what can be done."""

    def __init__(self, run: RunDirectory, damaged: Sequence[Damage]) -> None:
        ways = ["restore these files from a backup, and resume again"]
        saved = next((damage.saved for damage in damaged if damage.saved is not None), None)
        if saved is not None:
            ways.append(
                f"`workbench export {run.path} DIR --step {saved.step}` writes the model of that step, if its files "
                f"are undamaged"
            )
        ways.append(f"`workbench run {run.config}` starts a new run")
        first = f"run {run.name} cannot be resumed: all its {len(damaged)} checkpoints are damaged"
        lines = [f"{first}; nothing was changed", *(f"  {damage.line()}" for damage in damaged)]
        super().__init__("\n".join([*lines, ";\nor ".join(ways)]))


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
    if not folders and read_status(run).phase == "finished":
        raise WorkbenchError(
            f"run {run.name} has done all its steps, and no checkpoint to continue from is left in {run.checkpoints}; "
            f"`workbench run {run.config}` starts a new run"
        )
    damaged = []
    for path in reversed(folders):
        saved = None
        try:
            saved = open_checkpoint(path)
            check_state_lengths(saved)
        except DamagedFileError as error:
            damaged.append(Damage(path, error, saved))
        else:
            return
    if damaged:
        raise NotResumableError(run, damaged)
