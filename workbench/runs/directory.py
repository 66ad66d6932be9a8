"""The run directory: where it lies, what its files are called, and which process may train in it.

Only names and paths are known here; each file's content is the business of its own module. Invariant: at most one
process at a time holds a run, however processes end.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import secrets
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from workbench.errors import ConfigurationError, WorkbenchError
from workbench.system.files import remove_unfinished
from workbench.system.folders import expanded

_MARKERS = ("events.jsonl", "status.json", "config.toml")
"""A folder with one of these is a run."""
_LABEL = re.compile(r"[A-Za-z0-9._-]{1,40}")


class Entry:
    """The path of one file or folder of a run."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __get__(self, run: RunDirectory, owner: type[RunDirectory]) -> Path:
        return run.path / self.name


class RunDirectory:
    """One run's directory. Two objects are equal when they name the same path."""

    config = Entry("config.toml")
    """The resolved configuration."""
    plan = Entry("plan.json")
    status = Entry("status.json")
    metrics = Entry("metrics.bin")
    events = Entry("events.jsonl")
    control = Entry("control.jsonl")
    lanes = Entry("lanes.json")
    system = Entry("system.bin")
    log = Entry("train.log")
    lock = Entry("lock")
    samples = Entry("samples")
    checkpoints = Entry("checkpoints")

    def __init__(self, path: Path) -> None:
        self.path = path
        self.acquired_at: float | None = None
        """Unix seconds since when this process holds the run; None while it does not."""
        self._lock_descriptor: int | None = None

    def __repr__(self) -> str:
        return f"RunDirectory({str(self.path)!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RunDirectory) and other.path == self.path

    def __hash__(self) -> int:
        return hash(self.path)

    @property
    def name(self) -> str:
        return self.path.name

    @classmethod
    def create(cls, root: Path, preset_name: str, labels: Sequence[str] = ()) -> RunDirectory:
        """Make `<root>/<time>-<preset>[+<label>…]-<id>/` and point `<root>/latest` to it.

        `labels`: the user's own name for the run, and its tags.

        Raises ConfigurationError where a label has a letter that it may not have, or `root` cannot be created or
        written.
        """
        check_labels(labels)
        preset = "+".join([_preset_part(preset_name), *labels])
        root = root.absolute()
        try:
            root.mkdir(parents=True, exist_ok=True)
            while True:
                path = root / f"{time.strftime('%Y%m%d-%H%M%S')}-{preset}-{secrets.token_hex(3)}"
                try:
                    path.mkdir()
                    break
                except FileExistsError:
                    continue
            run = cls(path)
            run.samples.mkdir()
            run.checkpoints.mkdir()
            run.events.touch()
        except OSError as error:
            raise _unwritable(root, error) from error
        _point_latest(root, path.name)
        return run

    @staticmethod
    def check_root(root: Path) -> None:
        """Raise the ConfigurationError of `create` where that would fail; leave nothing behind."""
        there = root.absolute()
        while not there.exists() and there != there.parent:
            there = there.parent
        try:
            with tempfile.TemporaryDirectory(prefix=".workbench-", dir=there):
                pass
        except OSError as error:
            raise _unwritable(root.absolute(), error) from error

    def is_of_preset(self, preset_name: str) -> bool:
        """Return True where `create` named this run after a preset of this name."""
        return self._middle()[0] == _preset_part(preset_name)

    @property
    def labels(self) -> tuple[str, ...]:
        """The name that the user gave to the run, and its tags; they are a part of its folder's name."""
        return tuple(self._middle()[1:])

    def _middle(self) -> Sequence[str]:
        """Return preset and labels, which stand between time and id."""
        return self.name.split("-", 2)[-1].rpartition("-")[0].split("+")

    @classmethod
    def open(cls, path: Path) -> RunDirectory:
        """Return the run at `path`. Raises ConfigurationError where there is none."""
        path = expanded(path, "run").absolute()
        if not path.is_dir():
            raise ConfigurationError(f"run {path}: there is no such folder")
        if not is_run(path):
            raise ConfigurationError(
                f"run {path}: the folder is not a run; it has none of {', '.join(_MARKERS)}"
            )
        return cls(path)

    @classmethod
    def list(cls, root: Path) -> tuple[RunDirectory, ...]:
        """Return every run in `root`, the oldest first; none where the folder is missing or cannot be read."""
        root = root.expanduser().absolute()
        try:
            names = sorted(entry.name for entry in os.scandir(root) if entry.is_dir(follow_symlinks=False))
        except OSError:
            return ()
        return tuple(cls(root / name) for name in names if is_run(root / name))

    def acquire(self, announced_at: float | None = None) -> None:
        """Lock this run for the life of the process, so that no second trainer writes into it.

        `announced_at`: the moment from which on commands were meant for this process, where the run's status had
        named it before it got here (a detached trainer); else that is now.

        Files that a killed trainer left half written are removed. Raises WorkbenchError that names the process
        which holds it. The kernel releases the lock however the process
        ends. On a file system without locks the run goes unguarded.
        """
        if self._lock_descriptor is not None:
            return
        try:
            descriptor = os.open(self.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except OSError as error:
            raise ConfigurationError(f"{self.lock}: cannot be written: {error.strerror or error}") from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
                holder = os.pread(descriptor, 32, 0).decode(errors="replace").strip()
                os.close(descriptor)
                raise WorkbenchError(
                    f"run {self.name}: process {holder or 'of unknown number'} is training it already; "
                    f"stop that first (workbench stop {self.name})"
                ) from None
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        self._lock_descriptor = descriptor
        for folder in (self.path, self.samples):
            with contextlib.suppress(OSError):
                remove_unfinished(folder)
        self.acquired_at = time.time() if announced_at is None else announced_at

    def release(self) -> None:
        """Release the lock; the end of the process does the same."""
        if self._lock_descriptor is not None:
            os.close(self._lock_descriptor)
            self._lock_descriptor = None
            self.acquired_at = None


def _unwritable(root: Path, error: OSError) -> ConfigurationError:
    reason = (error.strerror or str(error)).lower()
    return ConfigurationError(
        f"run folder {root}: cannot be written: {reason}. "
        "Choose another folder with --runs DIR or WORKBENCH_RUNS."
    )


def _preset_part(preset_name: str) -> str:
    return re.sub(r"[^A-Za-z0-9._]+", "-", preset_name).strip("-.")[:60] or "run"


def check_labels(labels: Sequence[str]) -> None:
    """Raise ConfigurationError where one of a new run's names has a letter that it may not have."""
    for label in labels:
        if not _LABEL.fullmatch(label):
            raise ConfigurationError(
                f"run name or tag {label!r}: must be 1 to 40 letters, digits, points, hyphens and underscores"
            )


def why_empty(root: Path) -> str:
    """Return why a folder of runs lists none, as a clause."""
    if root.is_dir():
        return "there is no run in it yet"
    return (
        "is not a folder"
        if root.exists()
        else "there is no such folder (--runs DIR, or WORKBENCH_RUNS, names another)"
    )


def is_run(path: Path) -> bool:
    """Return True where the folder has a file that only runs have."""
    return any((path / marker).is_file() for marker in _MARKERS)


def _point_latest(root: Path, name: str) -> None:
    """Point the link `latest` to the run. A convenience only: without it the newest run is found by its name."""
    temporary = root / f".latest-{secrets.token_hex(4)}"
    with contextlib.suppress(OSError):
        temporary.symlink_to(name)
        temporary.replace(root / "latest")


def latest_run(root: Path) -> RunDirectory | None:
    """Return the run that the link `latest` names; None where there is no such link."""
    latest = root.expanduser().absolute() / "latest"
    try:
        path = latest.parent / latest.readlink().name
    except OSError:
        return None
    return RunDirectory(path) if is_run(path) else None
