"""The folder of the disk tier, checked before a run takes anything: is it there, can it be written, is it a disk?"""

from __future__ import annotations

from pathlib import Path

from workbench.config import RunConfig
from workbench.engine.disk_files import DiskError, DiskTier
from workbench.errors import ConfigurationError
from workbench.system.folders import expanded
from workbench.system.free_space import mount_of

REMOTE = ("nfs", "nfs4", "cifs", "smb3", "9p", "fuse.sshfs", "ceph", "glusterfs", "lustre")


def disk_folder(config: RunConfig) -> Path | None:
    """Return the folder where the disk tier of `config` may lie; None where it can have none.

    Raises ConfigurationError where it begins with a home that is not there.
    """
    offload = config.offload
    if not offload.disk_path or not {"disk", "auto"} & {offload.weights, offload.state}:
        return None
    return expanded(offload.disk_path, "offload.disk_path")


def check_disk_folder(folder: Path) -> None:
    """Write a file into `folder` and remove it, and with it what runs that are gone have left behind.

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


def disk_warning(folder: Path) -> str:
    """Return, in a sentence, why `folder` may be a poor place for the disk tier; empty where it is not."""
    mount = mount_of(folder)
    if mount.in_memory:
        return (
            f'offload.disk_path = "{folder}" is on {mount.kind}, which is host memory and no disk: what is moved there '
            "takes the memory that it is to save"
        )
    if mount.kind in REMOTE:
        return f'offload.disk_path = "{folder}" is on {mount.kind}, across a network: every step waits for it'
    return ""
