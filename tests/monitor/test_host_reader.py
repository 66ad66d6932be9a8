"""The host as /proc, /sys and the cgroups tell of it."""

from __future__ import annotations

import math
from pathlib import Path

import psutil
import pytest
from proc_trees import KIB, MEMINFO, Clock, core_times, write

from workbench.monitor.host import HostReader, parse_cores
from workbench.monitor.samples import HostSample

GIB = 1 << 30


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write(
        tmp_path,
        {
            "proc/meminfo": MEMINFO,
            "proc/loadavg": "1.50 2.25 3.00 2/93 27163",
            "proc/self/status": "Name:\tpython\nCpus_allowed:\tb\nCpus_allowed_list:\t0-1,3\n",
            "proc/self/cgroup": "0::/\n",
            "proc/stat": core_times((0, 0, 0, 0), (0, 0, 0, 0), (0, 0, 0, 0), (0, 0, 0, 0)),
        },
    )
    return tmp_path


def test_a_core_is_as_busy_as_the_share_of_its_ticks_that_were_work(root: Path) -> None:
    clock = Clock()
    reader = HostReader(root, clock)
    write(root, {"proc/stat": core_times((100, 100, 100, 100), (0, 0, 50, 0), (7, 7, 7, 7), (0, 0, 0, 0))})
    assert reader.read().cores == ()
    clock.now += 0.5
    write(root, {"proc/stat": core_times((130, 110, 105, 105), (0, 0, 100, 0), (7, 7, 7, 57), (50, 0, 0, 0))})
    assert reader.read().cores == (0.8, 0.0, 0.0, 1.0)


def test_shares_stand_where_too_little_time_has_passed_to_tell_others(root: Path) -> None:
    clock = Clock()
    reader = HostReader(root, clock)
    reader.read()
    clock.now += 0.5
    write(root, {"proc/stat": core_times((25, 0, 25, 0))})
    assert reader.read().cores == (0.5,)
    clock.now += 0.01
    write(root, {"proc/stat": core_times((26, 0, 25, 0))})
    assert reader.read().cores == (0.5,)


def test_a_core_that_is_switched_off_keeps_the_others_at_their_numbers(root: Path) -> None:
    clock = Clock()
    reader = HostReader(root, clock)
    off = "cpu0 {0} 0 0 {0} 0 0 0 0 0 0\ncpu3 {0} 0 0 0 0 0 0 0 0 0\n"
    write(root, {"proc/stat": off.format(0)})
    reader.read()
    clock.now += 0.5
    write(root, {"proc/stat": off.format(50)})
    assert reader.read().cores == (0.5, 0.0, 0.0, 1.0)


def test_idleness_that_the_kernel_takes_back_is_no_negative_share(root: Path) -> None:
    clock = Clock()
    reader = HostReader(root, clock)
    write(root, {"proc/stat": core_times((10, 0, 90, 40))})
    reader.read()
    clock.now += 0.5
    write(root, {"proc/stat": core_times((60, 0, 90, 39))})
    assert reader.read().cores == (1.0,)


def test_without_a_cgroup_the_memory_is_the_machines(root: Path) -> None:
    sample = HostReader(root).read()
    assert sample.memory_total_bytes == 16_000_000 * KIB
    assert sample.memory_cached_bytes == (500_000 + 6_000_000 + 200_000 - 700_000) * KIB
    assert sample.memory_used_bytes == (16_000_000 - 4_000_000 - 6_000_000) * KIB
    assert sample.memory_available_bytes == 9_000_000 * KIB
    assert (sample.swap_used_bytes, sample.swap_total_bytes) == (500_000 * KIB, 2_000_000 * KIB)
    assert sample.load == (1.5, 2.25, 3.0)
    assert sample.allowed_cores == (0, 1, 3)
    assert sample.cpu_limit is None


def test_a_cgroup_of_version_2_that_leaves_less_is_told_instead(root: Path) -> None:
    write(
        root,
        {
            "proc/self/cgroup": "0::/pod/inner\n",
            "sys/fs/cgroup/pod/memory.max": f"{4 * GIB}",
            "sys/fs/cgroup/pod/memory.current": f"{3 * GIB}",
            "sys/fs/cgroup/pod/memory.stat": f"anon 1\nfile {GIB}\nshmem {GIB // 4}\ninactive_file {GIB // 2}\n"
            f"slab_reclaimable {GIB // 8}\n",
            "sys/fs/cgroup/pod/inner/memory.max": "max",
            "sys/fs/cgroup/pod/inner/cpu.max": "250000 100000",
        },
    )
    sample = HostReader(root).read()
    assert sample.memory_total_bytes == 4 * GIB
    assert sample.memory_cached_bytes == GIB - GIB // 4 + GIB // 8
    assert sample.memory_used_bytes == 3 * GIB - (GIB - GIB // 4 + GIB // 8)
    assert sample.memory_available_bytes == GIB + GIB // 2
    assert sample.cpu_limit == 2.5


def test_a_cgroup_of_version_1_that_leaves_less_is_told_instead(root: Path) -> None:
    write(
        root,
        {
            "proc/self/cgroup": "4:memory:/box\n2:cpu,cpuacct:/box\n",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712",
            "sys/fs/cgroup/memory/memory.usage_in_bytes": "1",
            "sys/fs/cgroup/memory/box/memory.limit_in_bytes": f"{2 * GIB}",
            "sys/fs/cgroup/memory/box/memory.usage_in_bytes": f"{GIB}",
            "sys/fs/cgroup/memory/box/memory.stat": f"cache 5\ntotal_cache {GIB // 2}\ntotal_shmem 0\n"
            f"total_inactive_file {GIB // 4}\n",
            "sys/fs/cgroup/cpu,cpuacct/box/cpu.cfs_quota_us": "150000",
            "sys/fs/cgroup/cpu,cpuacct/box/cpu.cfs_period_us": "100000",
        },
    )
    sample = HostReader(root).read()
    assert sample.memory_total_bytes == 2 * GIB
    assert sample.memory_used_bytes == GIB // 2
    assert sample.memory_available_bytes == GIB + GIB // 4
    assert sample.cpu_limit == 1.5


@pytest.mark.parametrize(("limit", "used"), [(15_000_000, 1_000_000), (16_000_000, 15_000_000)])
def test_a_cgroup_that_leaves_more_than_the_machine_has_is_not_told(
    root: Path, limit: int, used: int
) -> None:
    group = {"memory.max": f"{limit * KIB}", "memory.current": f"{used * KIB}", "memory.stat": "file 0\n"}
    write(root, {f"sys/fs/cgroup/{name}": text for name, text in group.items()})
    sample = HostReader(root).read()
    assert sample.memory_total_bytes == 16_000_000 * KIB
    assert sample.memory_available_bytes == 9_000_000 * KIB


def test_the_use_of_a_group_is_read_anew_and_its_limit_now_and_then(root: Path) -> None:
    clock = Clock()
    limit, used = "sys/fs/cgroup/memory.max", "sys/fs/cgroup/memory.current"
    write(root, {limit: f"{4 * GIB}", used: f"{GIB}"})
    reader = HostReader(root, clock)
    assert reader.read().memory_used_bytes == GIB
    write(root, {limit: f"{5 * GIB}", used: f"{2 * GIB}"})
    clock.now += 0.5
    sample = reader.read()
    assert (sample.memory_total_bytes, sample.memory_used_bytes) == (4 * GIB, 2 * GIB)
    clock.now += 60
    assert reader.read().memory_total_bytes == 5 * GIB


def test_memory_nodes_are_told_where_there_are_several_with_cores(root: Path) -> None:
    nodes = "sys/devices/system/node"
    write(root, {f"{nodes}/node0/cpulist": "0-3\n"})
    assert HostReader(root).read().numa_nodes == ()
    write(root, {f"{nodes}/node10/cpulist": "8-9\n", f"{nodes}/node2/cpulist": "4-5,7\n"})
    write(root, {f"{nodes}/node3/cpulist": "\n", f"{nodes}/possible": "0-10"})
    assert HostReader(root).read().numa_nodes == ((0, 1, 2, 3), (4, 5, 7), (8, 9))
    write(root, {f"{nodes}/node{node}/cpulist": f"{node}\n" for node in (12, 7, 1, 11, 4, 9, 0, 3, 10, 2)})
    assert HostReader(root).read().numa_nodes == tuple((node,) for node in (0, 1, 2, 3, 4, 7, 9, 10, 11, 12))


def test_a_machine_that_tells_nothing_is_all_none(tmp_path: Path) -> None:
    assert HostReader(tmp_path).read() == HostSample()


@pytest.mark.parametrize(
    ("text", "cores"), [("", ()), ("0", (0,)), ("0-2,8\n", (0, 1, 2, 8)), ("3,1", (3, 1)), ("none", ())]
)
def test_lists_of_cores_are_read_as_the_kernel_writes_them(text: str, cores: tuple[int, ...]) -> None:
    assert parse_cores(text) == cores


def test_this_machine_is_the_one_that_psutil_sees() -> None:
    sample = HostReader().read()
    memory = psutil.virtual_memory()
    assert sample.memory_total_bytes is not None and sample.memory_used_bytes is not None
    assert sample.memory_total_bytes <= memory.total
    assert 0 < sample.memory_used_bytes < memory.total
    assert set(sample.allowed_cores) == set(psutil.Process().cpu_affinity())
    assert sample.load is not None and all(math.isfinite(load) for load in sample.load)
