"""The machine's cores, memory and disks, as psutil and the cgroups tell of them."""

from __future__ import annotations

import math
import os
from collections import namedtuple
from pathlib import Path
from typing import Any

import psutil
import pytest
from recorded_nvml import Clock

from workbench.monitor import host
from workbench.monitor.host import DiskReader, HostReader
from workbench.monitor.samples import DiskSample, HostSample

KIB, GIB = 1 << 10, 1 << 30
MEMINFO = """MemTotal:       16000000 kB
MemFree:         4000000 kB
MemAvailable:    9000000 kB
Buffers:          500000 kB
Cached:          6000000 kB
Shmem:            700000 kB
SwapTotal:       2000000 kB
SwapFree:        1500000 kB
SReclaimable:     200000 kB
Active:          3000000 kB
Inactive:        2000000 kB
"""


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def core_times(*cores: tuple[int, int, int, int]) -> str:
    """/proc/stat of cores with (user, system, idle, iowait) clock ticks."""
    lines = [f"cpu{i} {u} 0 {s} {idle} {wait} 0 0 0 0 0" for i, (u, s, idle, wait) in enumerate(cores)]
    return "\n".join(["cpu  1 1 1 1 1 1 1 1 0 0", *lines, "btime 5"])


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(psutil, "PROCFS_PATH", str(tmp_path / "proc"))
    still = core_times((0, 0, 0, 0), (0, 0, 0, 0))
    write(tmp_path, {"proc/meminfo": MEMINFO, "proc/stat": still, "proc/self/cgroup": "0::/\n"})
    write(tmp_path, {"proc/vmstat": "pswpin 0\npswpout 0\n"})
    return tmp_path


def busy(root: Path, *moments: str) -> tuple[float, ...]:
    """The cores' shares after these contents of /proc/stat, half a second apart."""
    clock = Clock()
    reader = HostReader(root, clock)
    for moment in moments:
        write(root, {"proc/stat": moment})
        cores = reader.read().cores
        clock.now += 0.5
    return cores


def test_a_core_is_as_busy_as_the_share_of_its_ticks_that_were_work(root: Path) -> None:
    before = core_times((100, 100, 100, 100), (0, 0, 50, 0), (7, 7, 7, 7), (0, 0, 0, 0))
    after = core_times((130, 110, 105, 105), (0, 0, 100, 0), (7, 7, 7, 57), (50, 0, 0, 0))
    assert busy(root, before) == ()
    assert busy(root, before, after) == (0.8, 0.0, 0.0, 1.0)


def test_a_core_that_is_switched_off_keeps_the_others_at_their_numbers(root: Path) -> None:
    write(root, {"sys/devices/system/cpu/online": "0,3\n"})
    moments = core_times((0, 0, 0, 0), (0, 0, 0, 0)), core_times((50, 0, 50, 0), (50, 0, 0, 0))
    assert busy(root, *moments) == (0.5, 0.0, 0.0, 1.0)


def test_shares_stand_where_too_little_time_has_passed_to_tell_others(root: Path) -> None:
    clock = Clock()
    reader = HostReader(root, clock)
    for later_s, ticks in ((0.0, 0), (0.5, 25), (0.01, 26)):
        clock.now += later_s
        write(root, {"proc/stat": core_times((ticks, 0, min(ticks, 25), 0))})
        cores = reader.read().cores
    assert cores == (0.5,)


def test_without_a_cgroup_the_memory_is_the_machines(root: Path) -> None:
    sample = HostReader(root).read()
    assert sample.memory_total_bytes == 16_000_000 * KIB
    assert sample.memory_cached_bytes == (500_000 + 6_000_000 + 200_000 - 700_000) * KIB
    assert sample.memory_used_bytes == (16_000_000 - 4_000_000 - 6_000_000) * KIB
    assert sample.memory_available_bytes == 9_000_000 * KIB
    assert (sample.swap_used_bytes, sample.swap_total_bytes) == (500_000 * KIB, 2_000_000 * KIB)
    assert sample.cpu_limit is None


VERSION_2 = {
    "proc/self/cgroup": "0::/pod/inner\n",
    "sys/fs/cgroup/pod/memory.max": f"{4 * GIB}",
    "sys/fs/cgroup/pod/memory.current": f"{3 * GIB}",
    "sys/fs/cgroup/pod/memory.stat": f"anon 1\nfile {GIB}\nshmem {GIB // 4}\ninactive_file {GIB // 2}\n"
    f"slab_reclaimable {GIB // 8}\n",
    "sys/fs/cgroup/pod/inner/memory.max": "max",
    "sys/fs/cgroup/pod/inner/cpu.max": "250000 100000",
}
VERSION_1 = {
    "proc/self/cgroup": "4:memory:/box\n2:cpu,cpuacct:/box\n",
    "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712",
    "sys/fs/cgroup/memory/memory.usage_in_bytes": "1",
    "sys/fs/cgroup/memory/box/memory.limit_in_bytes": f"{2 * GIB}",
    "sys/fs/cgroup/memory/box/memory.usage_in_bytes": f"{GIB}",
    "sys/fs/cgroup/memory/box/memory.stat": f"cache 5\ntotal_cache {GIB // 2}\ntotal_shmem 0\n"
    f"total_inactive_file {GIB // 4}\n",
    "sys/fs/cgroup/cpu,cpuacct/box/cpu.cfs_quota_us": "150000",
    "sys/fs/cgroup/cpu,cpuacct/box/cpu.cfs_period_us": "100000",
}


@pytest.mark.parametrize(
    ("files", "total", "cached", "used", "available", "cpu_limit"),
    [
        (VERSION_2, 4 * GIB, GIB * 7 // 8, 3 * GIB - GIB * 7 // 8, GIB + GIB // 2, 2.5),
        (VERSION_1, 2 * GIB, GIB // 2, GIB // 2, GIB + GIB // 4, 1.5),
    ],
    ids=["version 2", "version 1"],
)
def test_a_cgroup_that_leaves_less_than_the_machine_has_is_shown(
    root: Path,
    files: dict[str, str],
    total: int,
    cached: int,
    used: int,
    available: int,
    cpu_limit: float,
) -> None:
    write(root, files)
    sample = HostReader(root).read()
    assert (sample.memory_total_bytes, sample.memory_cached_bytes) == (total, cached)
    assert (sample.memory_used_bytes, sample.memory_available_bytes) == (used, available)
    assert sample.cpu_limit == cpu_limit


@pytest.mark.parametrize(("limit", "used"), [(15_000_000, 1_000_000), (16_000_000, 15_000_000)])
def test_a_cgroup_that_leaves_more_than_the_machine_has_is_not_shown(
    root: Path, limit: int, used: int
) -> None:
    group = {"memory.max": f"{limit * KIB}", "memory.current": f"{used * KIB}", "memory.stat": "file 0\n"}
    write(root, {f"sys/fs/cgroup/{name}": text for name, text in group.items()})
    sample = HostReader(root).read()
    assert sample.memory_total_bytes == 16_000_000 * KIB
    assert sample.memory_available_bytes == 9_000_000 * KIB


def test_memory_nodes_are_given_where_there_are_several_with_cores(root: Path) -> None:
    nodes = "sys/devices/system/node"
    write(root, {f"{nodes}/node0/cpulist": "0-3\n"})
    assert HostReader(root).read().numa_nodes == ()
    write(root, {f"{nodes}/node10/cpulist": "8-9\n", f"{nodes}/node2/cpulist": "4-5,7\n"})
    write(root, {f"{nodes}/node3/cpulist": "\n", f"{nodes}/possible": "0-10"})
    assert HostReader(root).read().numa_nodes == ((0, 1, 2, 3), (4, 5, 7), (8, 9))


def test_a_machine_without_proc_gives_what_it_can(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psutil, "PROCFS_PATH", str(tmp_path / "none"))
    sample = HostReader(tmp_path).read()
    assert sample == HostSample(allowed_cores=sample.allowed_cores, load=sample.load)


def test_this_machine_has_cores_and_memory() -> None:
    sample = HostReader().read()
    memory = psutil.virtual_memory()
    assert 0 < (sample.memory_used_bytes or 0) < (sample.memory_total_bytes or 0) <= memory.total
    assert set(sample.allowed_cores) == set(psutil.Process().cpu_affinity() or ())
    assert sample.load is not None and all(math.isfinite(load) for load in sample.load)


Mount = namedtuple("Mount", "device mountpoint fstype")
Counters = namedtuple("Counters", "read_bytes write_bytes busy_time")


@pytest.fixture
def disks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, Any]:
    """What psutil says of mounts and devices: one disk, on which `tmp_path` lies."""
    said: dict[str, Any] = {
        "mounts": [Mount("/dev/sda1", "/", "ext4"), Mount("/dev/nvme0n1p2", str(tmp_path), "ext4")],
        "counters": {"nvme0n1p2": Counters(1000, 2000, 300), "sda1": Counters(0, 0, 0)},
    }
    monkeypatch.setattr(psutil, "disk_partitions", lambda all: said["mounts"])
    monkeypatch.setattr(psutil, "disk_io_counters", lambda perdisk, nowrap: said["counters"])
    return said


def test_traffic_is_that_of_the_time_between_two_readings(disks: dict[str, Any], tmp_path: Path) -> None:
    clock = Clock()
    reader = DiskReader(tmp_path, clock)
    first = reader.read()
    assert (first.device, first.read_bytes_per_s, first.busy) == ("nvme0n1p2", None, None)
    clock.now += 2.0
    disks["counters"] = {"nvme0n1p2": Counters(5000, 2600, 1300)}
    sample = reader.read()
    assert (sample.read_bytes_per_s, sample.written_bytes_per_s, sample.busy) == (2000.0, 300.0, 0.5)
    clock.now += 1.0
    disks["counters"] = {}
    assert reader.read().read_bytes_per_s is None


def test_a_folder_that_is_not_there_yet_is_on_the_disk_of_the_one_above_it(
    disks: dict[str, Any], tmp_path: Path
) -> None:
    missing = tmp_path / "runs/not/yet"
    sample = DiskReader(missing).read()
    room = os.statvfs(tmp_path)
    assert (sample.folder, sample.device) == (str(missing), "nvme0n1p2")
    assert sample.total_bytes == room.f_blocks * room.f_frsize
    assert sample.free_bytes is not None and 0 < sample.free_bytes <= sample.total_bytes


@pytest.mark.parametrize(
    ("kind", "source", "device"),
    [
        ("tmpfs", "tmpfs", "tmpfs"),
        ("overlay", "overlay", "overlay"),
        ("nfs4", "server:/export/a b", "server:/export/a b"),
        ("fuse", "none", "fuse"),
        ("btrfs", "/dev/nvme1n1", "nvme1n1"),
    ],
)
def test_a_device_is_named_else_the_source_of_the_file_system(
    disks: dict[str, Any], tmp_path: Path, kind: str, source: str, device: str
) -> None:
    disks["mounts"].append(Mount(source, str(tmp_path), kind))
    clock = Clock()
    reader = DiskReader(tmp_path, clock)
    reader.read()
    clock.now += 1.0
    sample = reader.read()
    assert sample.device == device
    assert sample.total_bytes and sample.free_bytes
    assert (sample.read_bytes_per_s, sample.written_bytes_per_s, sample.busy) == (None, None, None)


def test_a_file_system_that_does_not_answer_is_all_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stale(_: object) -> None:
        raise OSError(116, "Stale file handle")

    monkeypatch.setattr(host.psutil, "disk_usage", stale)
    assert DiskReader(tmp_path).read() == DiskSample(str(tmp_path))
