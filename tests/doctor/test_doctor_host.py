"""The host: the extension, cores and threads, memory, and what one process may take."""

from __future__ import annotations

import math
import os
import platform
import resource
import shutil
from pathlib import Path
from typing import Any

import pytest
from forged_machine import GIB, around, only

from workbench.doctor import host_checks
from workbench.doctor.findings import Outcome
from workbench.doctor.host_checks import check_profile
from workbench.doctor.torch_checks import check_extension
from workbench.profiles.machine_profile import load_profile
from workbench.profiles.this_machine import cache_profile, machine_fingerprint

MISSING = {
    "extension": {
        "missing": "the native extension workbench._native is missing (No module); build it with ..."
    }
}
MEMINFO = (
    "MemTotal:       67108864 kB\nSwapTotal: 8388608 kB\nSwapFree: 4194304 kB\nCommitLimit: 20971520 kB\n"
)


def test_an_extension_that_is_right_is_ok_and_names_its_instructions(tmp_path: Path) -> None:
    extension, instructions = check_extension(around(tmp_path))
    assert extension.status == instructions.status == "ok" and instructions.finding == "avx2"


@pytest.mark.parametrize("compiler", ["/usr/bin/cc", None])
def test_a_missing_extension_is_a_warning_with_its_build(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compiler: str | None
) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: compiler)
    found = only(check_extension(around(tmp_path, trial=MISSING)))
    assert found.status == "warning" and "pip install --editable ." in found.remedy
    assert ("apt install gcc" in found.remedy) == (compiler is None)


@pytest.mark.parametrize(
    ("trial", "status", "remedy"),
    [
        ({"update": {"error": 1e-3}}, "failure", "pip install"),
        ({"update": {"error": math.nan}}, "failure", "pip install"),
        ({"update": Outcome(problem="the helper process was ended by SIGILL")}, "failure", "pip install"),
        (
            {"update": Outcome(problem="ValueError: WORKBENCH_ISA must be ...")},
            "failure",
            "`unset WORKBENCH_ISA`",
        ),
        ({"extension": Outcome(problem="AttributeError: wb_update")}, "failure", "pip install"),
        (
            {"extension": Outcome(problem="could not be started", reached=False)},
            "warning",
            "workbench doctor",
        ),
    ],
)
def test_an_extension_that_is_wrong_is_told(
    tmp_path: Path, trial: dict[str, Any], status: str, remedy: str
) -> None:
    found = only(check_extension(around(tmp_path, trial=trial)))
    assert found.status == status and remedy in found.remedy


def test_an_extension_is_not_blamed_where_torch_is_missing(tmp_path: Path) -> None:
    broken = Outcome(problem="ModuleNotFoundError: No module named 'torch'")
    assert only(check_extension(around(tmp_path, trial={"torch": broken, "update": broken}))).status == "ok"


@pytest.mark.parametrize(
    ("chosen", "best", "machine", "remedy"),
    [
        ("scalar", "avx512", "x86_64", "`unset WORKBENCH_ISA`"),
        ("scalar", "scalar", "x86_64", "-cpu host"),
        ("scalar", "scalar", "aarch64", "offload.device_fraction"),
    ],
)
def test_slow_instructions_are_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chosen: str, best: str, machine: str, remedy: str
) -> None:
    monkeypatch.setattr(platform, "machine", lambda: machine)
    _, found = check_extension(around(tmp_path, trial={"update": {"instruction_set": chosen, "best": best}}))
    assert found.status == "warning" and remedy in found.remedy


@pytest.mark.parametrize(
    ("allowed", "quota", "openmp", "taken", "status", "words"),
    [
        (16, None, "", 16, "ok", "16 cores"),
        (16, None, "", 8, "ok", "torch takes 8"),  # half: two threads a core
        (4, None, "", 4, "ok", "4 of 16 cores, affinity allows 4"),
        (16, "400000", "", 16, "warning", "quota 4"),
        (16, "400000", "4", 4, "ok", "OMP_NUM_THREADS=4"),
        (16, None, "1", 1, "warning", "idle"),
        (16, None, "9", 12, "warning", "disagree"),
        (16, None, "16,2", 16, "ok", "OMP_NUM_THREADS=16,2"),
        (16, None, "many", 16, "warning", "not a number"),
    ],
)
def test_threads_are_held_to_the_cores_that_may_be_used(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    allowed: int,
    quota: str | None,
    openmp: str,
    taken: int,
    status: str,
    words: str,
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 16)
    monkeypatch.setattr(host_checks, "affinity", lambda: allowed)
    monkeypatch.setattr("workbench.system.processor.affinity", lambda: allowed)
    files = {"proc/self/cgroup": "0::/\n"}
    if quota is not None:
        files["sys/fs/cgroup/cpu.max"] = f"{quota} 100000\n"
    environ = {"OMP_NUM_THREADS": openmp} if openmp else {}
    machine = around(tmp_path, files=files, environ=environ, trial={"torch": {"threads": taken}})
    found = only(host_checks.check_threads(machine))
    assert found.status == status and words in found.finding
    assert ("export OMP_NUM_THREADS=" in found.remedy) == (status == "warning")


def test_cores_are_told_without_torch_and_without_cgroups(tmp_path: Path) -> None:
    machine = around(tmp_path, trial={"torch": Outcome(problem="ImportError")})
    assert only(host_checks.check_threads(machine)).status == "ok"


@pytest.mark.parametrize(("free", "status"), [(40 * GIB, "ok"), (GIB, "warning"), (100 << 20, "failure")])
def test_memory_is_judged_by_what_is_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: int, status: str
) -> None:
    monkeypatch.setattr(host_checks, "free_host_bytes", lambda: free)
    found = only(host_checks.check_memory(around(tmp_path, files={"proc/meminfo": MEMINFO})))
    assert found.status == status and "of 64.0 GiB, 4.0 GiB of 8.0 GiB swap free" in found.finding
    assert ("docker run --memory" in found.remedy) == (status != "ok")


@pytest.mark.parametrize(
    "files",
    [
        {"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/memory.max": f"{16 * GIB}\n"},
        {"proc/self/cgroup": "0::/docker/1\n", "sys/fs/cgroup/memory.max": f"{16 * GIB}\n"},
        {
            "proc/self/cgroup": "4:memory:/a\n0::/\n",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
            "sys/fs/cgroup/memory/a/memory.limit_in_bytes": f"{16 * GIB}\n",
        },
    ],
)
def test_a_memory_limit_of_either_cgroup_version_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, str]
) -> None:
    monkeypatch.setattr(host_checks, "free_host_bytes", lambda: 12 * GIB)
    found = only(host_checks.check_memory(around(tmp_path, files={"proc/meminfo": MEMINFO, **files})))
    assert "the cgroup's limit is 16.0 GiB" in found.finding


def test_memory_is_told_without_proc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_checks, "free_host_bytes", lambda: 12 * GIB)
    assert only(host_checks.check_memory(around(tmp_path))).finding == "12.0 GiB free"


def test_settings_of_the_kernel_that_hinder_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_checks, "free_host_bytes", lambda: 30 * GIB)
    files = {
        "proc/meminfo": MEMINFO + "Committed_AS: 10485760 kB\n",
        "proc/sys/vm/overcommit_memory": "2\n",
        "sys/kernel/mm/transparent_hugepage/enabled": "always madvise [never]\n",
    }
    size, overcommit = host_checks.check_memory(around(tmp_path, files=files))
    assert size.status == "ok" and "transparent huge pages off" in size.finding
    assert overcommit.status == "warning" and "10.0 GiB more" in overcommit.finding
    assert "sysctl vm.overcommit_memory=0" in overcommit.remedy


def with_limits(monkeypatch: pytest.MonkeyPatch, **limits: tuple[int, int]) -> None:
    kinds = {getattr(resource, f"RLIMIT_{name.upper()}"): pair for name, pair in limits.items()}
    endless = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
    monkeypatch.setattr(host_checks.resource, "getrlimit", lambda kind: kinds.get(kind, endless))


def test_limits_that_suffice_are_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with_limits(monkeypatch, nofile=(1024, 4096), memlock=(8 << 20, 8 << 20))
    found = only(host_checks.check_limits(around(tmp_path)))
    assert found.status == "ok" and "1,024 (at most 4,096), memlock 8.0 MiB (does not bound" in found.finding
    with_limits(monkeypatch)
    assert (
        only(host_checks.check_limits(around(tmp_path))).finding == "open files unlimited (at most unlimited)"
    )


@pytest.mark.parametrize(
    ("limits", "remedy"),
    [
        ({"nofile": (256, 4096)}, "`ulimit -n 4096`"),
        ({"nofile": (256, 2048)}, "`ulimit -n 2048`"),
        ({"nofile": (256, resource.RLIM_INFINITY)}, "`ulimit -n 4096`"),
        ({"nofile": (256, 256)}, "limits.conf"),
        ({"as": (8 * GIB, 8 * GIB)}, "`ulimit -v unlimited`"),
        ({"fsize": (GIB, GIB)}, "`ulimit -f unlimited`"),
    ],
)
def test_a_limit_that_is_too_low_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limits: dict[str, tuple[int, int]], remedy: str
) -> None:
    with_limits(monkeypatch, **limits)
    found = only(host_checks.check_limits(around(tmp_path)))
    assert found.status == "warning" and remedy in found.remedy


@pytest.mark.parametrize("folder", ["sys/fs/cgroup/a", "sys/fs/cgroup/pids/a"])
@pytest.mark.parametrize(("limit", "status"), [("300", "warning"), ("4096", "ok"), ("max", "ok")])
def test_a_cgroup_that_leaves_few_threads_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str, limit: str, status: str
) -> None:
    with_limits(monkeypatch)
    own = "3:pids:/a\n" if "pids" in folder else "0::/a\n"
    files = {"proc/self/cgroup": own, f"{folder}/pids.max": limit, f"{folder}/pids.current": "100\n"}
    found = only(host_checks.check_limits(around(tmp_path, files=files)))
    assert found.status == status
    assert ("--pids-limit" in found.remedy) == (status == "warning")


def test_a_profile_of_a_busy_machine_is_a_warning_with_its_remedy_and_another_machine_s_does_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "not measured" in only(check_profile(around(tmp_path))).finding
    monkeypatch.setenv("WORKBENCH_CACHE", str(tmp_path / "cache"))
    changes = {"measured_at": "2026-02-03", "fingerprint": machine_fingerprint("cpu"), "disk": None}
    profile = load_profile(Path("desktop-24gb")).model_copy(update=changes)
    kept = cache_profile(profile, "cpu")
    assert kept is not None
    idle = only(check_profile(around(tmp_path)))
    assert (idle.status, idle.finding) == ("ok", "cpu, measured 2026-02-03")
    cache_profile(profile.model_copy(update={"busy_cores": 3.0}), "cpu")
    found = only(check_profile(around(tmp_path)))
    assert found.status == "warning" and "3.0 cores" in found.finding and "workbench probe" in found.remedy
    kept.write_text(kept.read_text().replace(changes["fingerprint"], "another"))
    assert "not measured" in only(check_profile(around(tmp_path))).finding


def test_each_disk_that_was_measured_has_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORKBENCH_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "fast disk"
    profile = load_profile(Path("desktop-24gb"))
    assert profile.disk is not None
    here = {"measured_at": "2026-02-03", "fingerprint": machine_fingerprint("cpu")}
    disk = profile.disk.model_copy(update={"path": str(folder)})
    cache_profile(profile.model_copy(update={**here, "disk": disk}), "cpu")
    machine, found = check_profile(around(tmp_path))
    assert machine.status == found.status == "ok" and str(folder) in found.finding
    [kept] = (tmp_path / "cache" / "disks").iterdir()
    for damage in (kept.read_text().replace(here["fingerprint"], "another"), "[]", '{"disk": 3}', "{"):
        kept.write_text(damage)
        assert only(check_profile(around(tmp_path))) == machine
