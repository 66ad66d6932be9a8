"""What a machine has free is read within the limits of its cgroups, whatever their version."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from workbench.errors import WorkbenchError
from workbench.system import free_space as machine

GIB = 1 << 30


@pytest.fixture
def cgroup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with 64 GiB available, whose cgroups lie in a folder of ours."""
    monkeypatch.setattr(
        psutil, "virtual_memory", lambda: type("M", (), {"available": 64 * GIB, "total": 64 * GIB})()
    )
    return tmp_path


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


def test_without_a_cgroup_what_is_available_is_free(cgroup: Path) -> None:
    assert machine.free_host_bytes(cgroup) == 64 * GIB


def test_a_limit_of_version_two_counts_without_the_page_cache(cgroup: Path) -> None:
    write(
        cgroup,
        {
            "proc/self/cgroup": "0::/a/b\n",
            "sys/fs/cgroup/a/b/memory.max": f"{8 * GIB}\n",
            "sys/fs/cgroup/a/b/memory.current": f"{6 * GIB}\n",
            "sys/fs/cgroup/a/b/memory.stat": f"anon 1\nactive_file 5\ninactive_file {2 * GIB}\n",
        },
    )
    assert machine.free_host_bytes(cgroup) == 4 * GIB


def test_the_narrowest_limit_on_the_way_up_counts(cgroup: Path) -> None:
    write(
        cgroup,
        {
            "proc/self/cgroup": "0::/a/b\n",
            "sys/fs/cgroup/a/b/memory.max": "max\n",
            "sys/fs/cgroup/a/b/memory.current": "5\n",
            "sys/fs/cgroup/a/memory.max": f"{3 * GIB}\n",
            "sys/fs/cgroup/a/memory.current": f"{GIB}\n",
        },
    )
    assert machine.free_host_bytes(cgroup) == 2 * GIB


def test_a_limit_of_version_one_counts(cgroup: Path) -> None:
    write(
        cgroup,
        {
            "proc/self/cgroup": "12:cpu,cpuacct:/x\n5:memory:/docker/1\n",
            "sys/fs/cgroup/memory/docker/1/memory.limit_in_bytes": f"{2 * GIB}",
            "sys/fs/cgroup/memory/docker/1/memory.usage_in_bytes": f"{GIB}",
            "sys/fs/cgroup/memory/docker/1/memory.stat": f"total_inactive_file {GIB // 2}\n",
        },
    )
    assert machine.free_host_bytes(cgroup) == 3 * GIB // 2


def test_a_cgroup_that_is_seen_from_inside_a_container_counts(cgroup: Path) -> None:
    # A container sees its own cgroup as the root, whatever path /proc tells.
    write(
        cgroup,
        {
            "proc/self/cgroup": "0::/system.slice/docker-1.scope\n",
            "sys/fs/cgroup/memory.max": f"{GIB}\n",
            "sys/fs/cgroup/memory.current": "0\n",
        },
    )
    assert machine.free_host_bytes(cgroup) == GIB


@pytest.mark.parametrize("text", ["", "nonsense", "0::/a\n", "\xff\n", ":::\n"])
def test_cgroup_files_of_nonsense_limit_nothing(cgroup: Path, text: str) -> None:
    write(cgroup, {"proc/self/cgroup": ""})
    (cgroup / "proc/self/cgroup").write_text(text, encoding="latin-1")
    write(
        cgroup,
        {
            "sys/fs/cgroup/a/memory.max": "lots",
            "sys/fs/cgroup/a/memory.current": "-",
            "sys/fs/cgroup/a/memory.stat": "\n",
        },
    )
    assert machine.free_host_bytes(cgroup) == 64 * GIB


def test_a_limit_that_is_used_up_leaves_nothing_and_not_less(cgroup: Path) -> None:
    write(
        cgroup,
        {
            "proc/self/cgroup": "0::/\n",
            "sys/fs/cgroup/memory.max": "10\n",
            "sys/fs/cgroup/memory.current": "50\n",
        },
    )
    assert machine.free_host_bytes(cgroup) == 0


def test_the_room_on_a_disk_is_that_of_the_folder_that_will_be_made(tmp_path: Path) -> None:
    assert machine.free_disk_bytes(tmp_path / "not" / "yet" / "there") > 0


def test_a_folder_that_may_not_be_looked_into_is_judged_by_the_one_above_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    exists = Path.exists

    def forbidden(self: Path) -> bool:
        if "secret" in self.parts[:-1]:
            raise PermissionError(13, "Permission denied")
        return exists(self)

    (tmp_path / "secret").mkdir()
    monkeypatch.setattr(Path, "exists", forbidden)
    assert machine.free_disk_bytes(tmp_path / "secret" / "runs") > 0
    assert machine.same_disk(tmp_path / "secret" / "runs", tmp_path)


def test_the_deepest_mount_decides_and_the_later_of_two(monkeypatch: pytest.MonkeyPatch) -> None:
    mounts = [
        ("/", "ext4"),
        ("/data", "xfs"),
        ("/data/fast disk", "nfs4"),
        ("/data", "btrfs"),
        ("/dat", "tmpfs"),
    ]
    listed = [SimpleNamespace(device="any", mountpoint=point, fstype=kind) for point, kind in mounts]
    monkeypatch.setattr(psutil, "disk_partitions", lambda all: listed)
    expected = {"/home": "ext4", "/data/a": "btrfs", "/data/fast disk/a": "nfs4", "/data": "btrfs"}
    assert {folder: machine.mount_of(Path(folder)).kind for folder in expected} == expected


@pytest.mark.parametrize("content", [None, "", "MemFree: 1 kB\n"])
def test_a_machine_that_hides_its_memory_is_said_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str | None
) -> None:
    if content is not None:
        (tmp_path / "meminfo").write_text(content)
    monkeypatch.setattr(psutil, "PROCFS_PATH", str(tmp_path))
    with pytest.raises(WorkbenchError, match=f"memory it has: {tmp_path}/meminfo cannot be read"):
        machine.free_host_bytes()
