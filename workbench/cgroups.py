"""The limits that the cgroups of this process set, of version 2 and 1, on the host and in a container."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path


def limits(root: Path, controller: str, names: tuple[str, ...]) -> Iterator[tuple[Path, int]]:
    """(folder, limit) of each cgroup from this process's own up to the top of the mount.

    `names`: what the file with the limit of `controller` is called ("memory.max", "memory.limit_in_bytes"). In a
    container the path that `proc/self/cgroup` names often does not exist; the container's own group is then the top.
    """
    for folder in folders(root, controller):
        for name in names:
            limit = number(folder / name)
            if limit is not None:
                yield folder, limit


def number(path: Path) -> int | None:
    """The number in a file; None where there is none, or the word max."""
    try:
        return int(path.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None


def folders(root: Path, controller: str) -> list[Path]:
    """This process's groups of `controller` ("cpu", "memory", "pids"), each with its parents up to the mount's top.

    `root` is where `proc` and `sys` lie (tests bring their own).
    """
    try:
        lines = (root / "proc/self/cgroup").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
    mounts = root / "sys/fs/cgroup"
    found: dict[Path, None] = {}
    for line in lines:
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if not controllers:
            tops = [mounts, mounts / "unified"]
        elif controller in controllers.split(","):
            tops = [mounts / controllers, mounts / controller]
        else:
            continue
        parts = [part for part in path.split("/") if part not in ("", "..")]
        for top in tops:
            found |= dict.fromkeys(top.joinpath(*parts[:depth]) for depth in range(len(parts), -1, -1))
    return list(found)
