"""How many CPUs a process may use: cgroup files of both versions, as containers and hosts lay them out."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from workbench.system import processor as cpu_count


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


@pytest.mark.parametrize(
    ("files", "quota"),
    [
        ({}, None),
        ({"proc/self/cgroup": "0::/\n"}, None),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "max 100000\n"}, None),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "150000 100000\n"}, 1.5),
        # a slice of systemd, limited above the process's own group
        (
            {
                "proc/self/cgroup": "0::/user.slice/job.scope\n",
                "sys/fs/cgroup/user.slice/cpu.max": "400000 100000\n",
                "sys/fs/cgroup/user.slice/job.scope/cpu.max": "max 100000\n",
            },
            4.0,
        ),
        # a container whose own group is mounted as the top
        (
            {
                "proc/self/cgroup": "0::/docker/0123\n",
                "sys/fs/cgroup/cpu.max": "50000 100000\n",
            },
            0.5,
        ),
        (
            {
                "proc/self/cgroup": "5:memory:/a\n4:cpu,cpuacct:/a/b\n0::/c\n",
                "sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_quota_us": "300000\n",
                "sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_period_us": "100000\n",
                "sys/fs/cgroup/cpu,cpuacct/a/b/cpu.cfs_quota_us": "-1\n",
                "sys/fs/cgroup/cpu,cpuacct/a/b/cpu.cfs_period_us": "100000\n",
            },
            3.0,
        ),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "nonsense\n"}, None),
    ],
)
def test_the_tightest_quota_counts(tmp_path: Path, files: dict[str, str], quota: float | None) -> None:
    assert cpu_count.cgroup_quota(write(tmp_path, files)) == quota


@pytest.mark.parametrize(("quota", "cpus"), [("50000", 1), ("150000", 2), ("200000", 2), ("1600000", 8)])
def test_a_quota_lowers_the_count_and_never_below_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quota: str, cpus: int
) -> None:
    monkeypatch.setattr(cpu_count, "affinity", lambda: 8)
    files = {"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": f"{quota} 100000\n"}
    assert cpu_count.usable_cpus(write(tmp_path, files)) == cpus


def test_without_cgroups_affinity_decides(tmp_path: Path) -> None:
    assert cpu_count.usable_cpus(tmp_path) == cpu_count.affinity() <= (os.cpu_count() or 1)
