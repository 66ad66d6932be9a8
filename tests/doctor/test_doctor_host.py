"""Packages, cores and threads, memory, limits, folders, the cached profile and the terminal."""

from __future__ import annotations

import errno
import os
import resource
import sys
import tempfile
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from forged_machine import GIB, around, only

from workbench.doctor import Context, Finding, Outcome, host_checks
from workbench.doctor.host_checks import check_cache, check_disk, check_profile, check_runs, takes_direct
from workbench.profiles.named_machines import load_profile
from workbench.profiles.this_machine import cache_profile, machine_fingerprint
from workbench.system.free_space import Mount


def test_python_is_named_with_its_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "prefix", "/home/one/.venv")
    assert "virtual environment /home/one/.venv" in only(host_checks.check_python(around(tmp_path))).finding
    monkeypatch.setattr(sys, "prefix", sys.base_prefix)
    monkeypatch.setenv("CONDA_PREFIX", "/opt/conda")
    assert "conda environment /opt/conda" in only(host_checks.check_python(around(tmp_path))).finding


def test_own_requirements_are_installed_here(tmp_path: Path) -> None:
    found = only(host_checks.check_packages(around(tmp_path)))
    assert found.status == "ok"
    assert {"torch", "transformers", "textual", "pydantic"} <= set(found.finding.replace(",", "").split())


def test_a_package_that_is_missing_or_too_old_is_a_failure_with_its_installation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    versions = {"a": "2.9.1", "b": "2.11.0a0+git1", "c": "2.13.0+cu130"}

    def version(name: str) -> str:
        if name not in versions:
            raise metadata.PackageNotFoundError(name)
        return versions[name]

    lines = [f"{name}>=2.11" for name in "abcd"] + ['ruff; extra == "dev"', "old>=2; python_version < '3'"]
    monkeypatch.setattr(metadata, "requires", lambda name: lines)
    monkeypatch.setattr(metadata, "version", version)
    old, missing, right = host_checks.check_packages(around(tmp_path))
    assert (old.status, missing.status, right.status) == ("failure", "failure", "ok")
    assert "2.9.1" in old.finding and '`python -m pip install "a>=2.11"`' in old.remedy
    assert "d is not installed" in missing.finding
    assert right.finding == "b 2.11.0a0+git1, c 2.13.0+cu130"
    monkeypatch.setattr(metadata, "requires", version)  # of no metadata of its own
    found = only(host_checks.check_packages(around(tmp_path)))
    assert found.status == "warning" and "pip install --editable ." in found.remedy


@pytest.mark.parametrize(
    ("allowed", "quota", "openmp", "taken", "status", "words"),
    [
        (16, None, "", 16, "ok", "16 cores"),
        (16, None, "", 8, "ok", "torch takes 8"),  # half: two threads a core
        (4, None, "", 4, "ok", "4 of 16 cores, affinity allows 4"),
        (16, 4.0, "", 16, "warning", "quota 4"),
        (16, 4.0, "4", 4, "ok", "OMP_NUM_THREADS=4"),
        (16, None, "1", 1, "warning", "idle"),
    ],
)
def test_threads_are_held_to_the_cores_that_may_be_used(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    allowed: int,
    quota: float | None,
    openmp: str,
    taken: int,
    status: str,
    words: str,
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 16)
    monkeypatch.setattr(host_checks, "affinity", lambda: allowed)
    monkeypatch.setattr(host_checks, "cgroup_quota", lambda: quota)
    monkeypatch.setattr(host_checks, "usable_cpus", lambda: int(quota or allowed))
    monkeypatch.setenv("OMP_NUM_THREADS", openmp)
    found = only(host_checks.check_threads(around(tmp_path, {"torch": {"threads": taken}})))
    assert found.status == status and words in found.finding
    assert ("export OMP_NUM_THREADS=" in found.remedy) == (status == "warning")
    without_torch = around(tmp_path, {"torch": Outcome(problem="ImportError")})
    assert only(host_checks.check_threads(without_torch)).status == "ok"


@pytest.mark.parametrize(("free", "status"), [(40 * GIB, "ok"), (GIB, "warning"), (100 << 20, "failure")])
def test_memory_is_judged_by_what_is_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: int, status: str
) -> None:
    monkeypatch.setattr(host_checks, "free_host_bytes", lambda: free)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=64 * GIB, total=64 * GIB))
    monkeypatch.setattr(psutil, "swap_memory", lambda: SimpleNamespace(free=4 * GIB, total=8 * GIB))
    monkeypatch.setattr(host_checks, "limits", lambda *_: [(tmp_path, 16 * GIB)])
    texts = {"enabled": "always madvise [never]", "overcommit_memory": "2\n"}
    monkeypatch.setattr(host_checks, "_read", lambda path: texts.get(Path(path).name, ""))
    found, overcommit = host_checks.check_memory(around(tmp_path))
    assert found.status == status and ("docker run --memory" in found.remedy) == (status != "ok")
    for words in ("of 64.0 GiB", "limit is 16.0 GiB", "4.0 GiB of 8.0 GiB swap", "huge pages off"):
        assert words in found.finding
    assert overcommit.status == "warning" and "sysctl vm.overcommit_memory=0" in overcommit.remedy


@pytest.mark.parametrize(
    ("nodes", "policy", "warned"),
    [
        ("", "default", False),
        ("0", "default", False),
        ("0-1", "default", True),
        ("0-1", "interleave:0-1", False),
    ],
)
def test_on_several_memory_nodes_a_run_is_to_be_interleaved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nodes: str, policy: str, warned: bool
) -> None:
    maps = f"7f0000000000 {policy} anon=1 dirty=1\n7fff00000000 default stack anon=3\n"
    texts = {"has_memory": f"{nodes}\n", "numa_maps": maps}
    monkeypatch.setattr(host_checks, "_read", lambda path: texts.get(Path(path).name, ""))
    found = [each for each in host_checks.check_memory(around(tmp_path)) if "memory nodes" in each.finding]
    assert len(found) == warned
    assert all("`numactl --interleave=all workbench run" in each.remedy for each in found)


@pytest.mark.parametrize(
    ("limits", "pids", "remedy"),
    [
        ({"nofile": (1024, 4096)}, 4096, ""),
        ({"nofile": (256, 4096)}, 4096, "`ulimit -n 4096`"),
        ({"nofile": (256, 2048)}, 4096, "`ulimit -n 2048`"),
        ({"nofile": (256, resource.RLIM_INFINITY)}, 4096, "`ulimit -n 4096`"),
        ({"nofile": (256, 256)}, 4096, "limits.conf"),
        ({"as": (8 * GIB, 8 * GIB)}, 4096, "`ulimit -v unlimited`"),
        ({"fsize": (GIB, GIB)}, 4096, "`ulimit -f unlimited`"),
        ({}, 300, "--pids-limit"),
    ],
)
def test_a_limit_that_is_too_low_is_a_warning(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    limits: dict[str, tuple[int, int]],
    pids: int,
    remedy: str,
) -> None:
    kinds = {getattr(resource, f"RLIMIT_{name.upper()}"): pair for name, pair in limits.items()}
    endless = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
    monkeypatch.setattr(host_checks.resource, "getrlimit", lambda kind: kinds.get(kind, endless))
    (tmp_path / "pids.current").write_text("100\n")
    monkeypatch.setattr(host_checks, "limits", lambda *_: [(tmp_path, pids)])
    found = only(host_checks.check_limits(around(tmp_path)))
    assert found.status == ("warning" if remedy else "ok") and remedy in found.remedy


# Folders


@pytest.fixture
def on_disk(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Sets the disk that every folder is on; a large local one at first."""

    def be(*, kind: str = "ext4", free: int = 100 * GIB, direct: bool = True) -> None:
        monkeypatch.setattr(host_checks, "mount_of", lambda folder: Mount("/dev/x", "/", kind))
        monkeypatch.setattr(host_checks.shutil, "disk_usage", lambda folder: SimpleNamespace(free=free))
        monkeypatch.setattr(host_checks, "takes_direct", lambda folder: direct)

    be()
    return be


def test_good_folders_are_ok_and_are_not_made(
    tmp_path: Path, on_disk: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORKBENCH_CACHE", str(tmp_path / "cache"))
    found = only(check_runs(around(tmp_path)))
    assert found.status == "ok" and "made by the first run" in found.finding
    assert only(check_cache(around(tmp_path))).status == "ok"
    assert not list(check_disk(around(tmp_path))), "no folder was named for the disk tier"
    assert not list(tmp_path.iterdir())
    (tmp_path / "runs").mkdir()
    assert "made by" not in only(check_runs(around(tmp_path))).finding
    disk = only(check_disk(around(tmp_path, disk=tmp_path)))
    assert disk.status == "ok" and disk.finding.endswith("100.0 GiB free, ext4, direct I/O works")


@pytest.mark.parametrize(
    ("check", "status", "remedy"),
    [
        (check_runs, "failure", "--runs"),
        (check_disk, "failure", "disk_path"),
        (check_cache, "warning", "WORKBENCH_CACHE"),
    ],
)
@pytest.mark.parametrize("reason", ["Read-only file system", "Not a directory"])
def test_a_folder_that_cannot_be_written_is_told_with_the_setting_for_another(
    tmp_path: Path,
    on_disk: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
    check: Callable[[Context], Iterator[Finding]],
    status: str,
    remedy: str,
    reason: str,
) -> None:
    if reason == "Not a directory":
        (tmp_path / "file").touch()
    else:

        def refuse(**_: Any) -> None:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))

        monkeypatch.setattr(tempfile, "NamedTemporaryFile", refuse)
    monkeypatch.setenv("WORKBENCH_CACHE", str(tmp_path / "file/cache"))
    found = only(check(around(tmp_path / "file", disk=tmp_path / "file")))
    assert found.status == status and reason in found.finding and remedy in found.remedy


@pytest.mark.parametrize(
    ("check", "disk", "status", "words"),
    [
        (check_runs, {"free": 5 * GIB}, "warning", "little room"),
        (check_runs, {"free": 100 << 20}, "failure", "no room"),
        (check_runs, {"kind": "tmpfs"}, "warning", "host memory"),
        (check_runs, {"kind": "nfs4"}, "warning", "network"),
        (check_runs, {"kind": "overlay"}, "ok", "overlay"),
        (check_disk, {"direct": False}, "warning", "direct I/O"),
        (check_disk, {"kind": "tmpfs"}, "warning", "host memory"),
        (check_disk, {"kind": "nfs4"}, "warning", "network"),
        (check_disk, {"free": GIB}, "warning", "little room"),
    ],
)
def test_a_poor_disk_is_told(
    tmp_path: Path,
    on_disk: Callable[..., None],
    check: Callable[[Context], Iterator[Finding]],
    disk: dict[str, Any],
    status: str,
    words: str,
) -> None:
    on_disk(**disk)
    found = only(check(around(tmp_path, disk=tmp_path)))
    assert found.status == status and words in found.finding
    assert ("DIR" in found.remedy) == (status != "ok")


def test_a_folder_of_the_disk_tier_that_is_not_there_is_to_be_made(
    tmp_path: Path, on_disk: Callable[..., None]
) -> None:
    found = only(check_disk(around(tmp_path, disk=tmp_path / "a b")))
    assert found.status == "failure" and found.remedy == f"`mkdir -p '{tmp_path}/a b'`"


def test_direct_io_is_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert takes_direct(tmp_path) in (True, False)

    def refuse(*_: Any) -> int:
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))

    monkeypatch.setattr(os, "pwritev", refuse)
    assert not takes_direct(tmp_path)
    assert not list(tmp_path.iterdir())


def test_what_was_measured_on_this_machine_has_a_line_each_and_a_busy_machine_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORKBENCH_CACHE", str(tmp_path / "cache"))
    assert "not measured" in only(check_profile(around(tmp_path))).finding
    folder = tmp_path / "fast disk"
    shipped = load_profile(Path("desktop-24gb"))
    assert shipped.disk is not None
    changes = {
        "measured_at": "2026-02-03",
        "fingerprint": machine_fingerprint("cpu"),
        "disk": shipped.disk.model_copy(update={"path": str(folder)}),
    }
    profile = shipped.model_copy(update=changes)
    cached = cache_profile(profile, "cpu")
    assert cached is not None
    idle, disk = check_profile(around(tmp_path))
    assert (idle.status, idle.finding) == ("ok", "cpu, measured 2026-02-03")
    assert disk.status == "ok" and str(folder) in disk.finding
    next((tmp_path / "cache" / "disks").iterdir()).write_text("{")
    cache_profile(profile.model_copy(update={"busy_cores": 3.0, "disk": None}), "cpu")
    found = only(check_profile(around(tmp_path)))
    assert found.status == "warning" and "3.0 cores" in found.finding and "workbench probe" in found.remedy
    cached.write_text(cached.read_text().replace(changes["fingerprint"], "another machine's"))
    assert "not measured" in only(check_profile(around(tmp_path))).finding


COLOURFUL = {"TERM": "xterm-256color", "COLORTERM": "truecolor"}


@pytest.mark.parametrize(
    ("size", "encoding", "environ", "status", "words"),
    [
        ((120, 40), "utf-8", COLOURFUL, "ok", "120x40, UTF-8, TERM=xterm-256color, all colours"),
        ((60, 16), "UTF8", {"TERM": "xterm"}, "ok", "60x16 (80x24 shows more), UTF-8, TERM=xterm, few colours"),
        ((80, 24), "utf_8", {**COLOURFUL, "NO_COLOR": "1"}, "ok", "no colours (NO_COLOR is set)"),
        ((80, 24), "utf-8", {"TERM": "screen-256color"}, "ok", "256 colours"),
        (None, "", {}, "ok", "skipped"),
        ((59, 40), "utf-8", COLOURFUL, "warning", "enlarge the window to 80x24"),
        ((120, 15), "utf-8", COLOURFUL, "warning", "stty cols 80 rows 24"),
        ((120, 40), "utf-8", {"TERM": "dumb"}, "warning", "`export TERM=xterm-256color`"),
        ((120, 40), "utf-8", {}, "warning", "`export TERM=xterm-256color`"),
        ((120, 40), "iso8859-1", COLOURFUL, "warning", "`export LANG=C.UTF-8`"),
    ],
)  # fmt: skip
def test_a_terminal_is_judged_by_size_kind_and_encoding(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    size: tuple[int, int] | None,
    encoding: str,
    environ: dict[str, str],
    status: str,
    words: str,
) -> None:
    for name in ("TERM", "COLORTERM", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(host_checks, "terminal_size", lambda: size)
    monkeypatch.setattr(sys, "stdout", SimpleNamespace(encoding=encoding))
    found = only(host_checks.check_terminal(around(tmp_path)))
    assert found.status == status and words in (found.remedy or found.finding)
