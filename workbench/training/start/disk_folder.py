"""The folder of the disk tier, looked at before a run takes anything: is it there, can it be written, is it a disk?"""

from __future__ import annotations

from pathlib import Path

from workbench.config import RunConfig
from workbench.engine.disk_files import DiskError, DiskTier
from workbench.errors import ConfigurationError
from workbench.system.folders import expanded

MOUNTS = Path("/proc/mounts")
IN_MEMORY = ("tmpfs", "ramfs")
REMOTE = ("nfs", "nfs4", "cifs", "smb3", "9p", "fuse.sshfs", "ceph", "glusterfs", "lustre")


def disk_folder(config: RunConfig) -> Path | None:
    """Where the disk tier of `config` may lie; None where it can have none.

    Raises ConfigurationError where it begins with a home that is not there.
    """
    offload = config.offload
    if not offload.disk_path or not {"disk", "auto"} & {offload.weights, offload.state}:
        return None
    return expanded(offload.disk_path, "offload.disk_path")


def check_disk_folder(folder: Path) -> None:
    """Try `folder` out: a file is written there and removed, and so is what runs that are gone have left behind.

    Raises:
        ConfigurationError: it is not there, is no folder, or cannot be written.
    """
    where = f'offload.disk_path = "{folder}"'
    if not folder.exists():
        raise ConfigurationError(f"{where}: there is no such folder; make it, on a fast local disk")
    if not folder.is_dir():
        raise ConfigurationError(f"{where}: is not a folder; name one on a fast local disk")
    try:
        DiskTier(folder).close()
    except DiskError as error:
        raise ConfigurationError(f"{where}: {error}") from error


def doubts(folder: Path) -> str | None:
    """Why `folder` may be a poor place for the disk tier, in a sentence; None where nothing speaks against it."""
    kind = file_system(folder)
    if kind in IN_MEMORY:
        return (
            f'offload.disk_path = "{folder}" is on {kind}, which is host memory and no disk: what is moved there takes '
            "the memory that it is to save"
        )
    if kind in REMOTE:
        return f'offload.disk_path = "{folder}" is on {kind}, across a network: every step waits for it'
    return None


def file_system(folder: Path) -> str:
    """The type of the file system that holds `folder`; empty where the system does not tell."""
    try:
        lines = MOUNTS.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    there = folder.resolve()
    best: tuple[int, str] = (-1, "")
    for line in lines:
        _, _, rest = line.partition(" ")
        point, _, rest = rest.partition(" ")
        # Blanks and such in a mount point are written in octal.
        mounted = Path(point.encode("latin-1", "replace").decode("unicode_escape", "replace"))
        if there.is_relative_to(mounted) and len(mounted.parts) >= best[0]:
            best = len(mounted.parts), rest.partition(" ")[0]
    return best[1]
