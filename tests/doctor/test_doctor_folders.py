"""The folders of runs, of the disk tier and of the cache, on disks that are as they should be and that are not."""

from __future__ import annotations

import errno
import fcntl
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from forged_machine import GIB, around, only

from workbench.doctor import folders
from workbench.doctor.findings import Context, Finding
from workbench.doctor.folders import check_cache, check_disk, check_runs, file_system, takes_direct


@pytest.fixture(autouse=True)
def _a_large_local_disk_and_nothing_left_behind(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[None]:
    on_disk(monkeypatch)
    yield
    assert not [left for left in tmp_path.rglob("*") if folders.PREFIX in left.name]


def on_disk(
    monkeypatch: pytest.MonkeyPatch, *, kind: str = "ext4", free: int = 100 * GIB, direct: bool = True
) -> None:
    monkeypatch.setattr(folders, "file_system", lambda folder: kind)
    monkeypatch.setattr(folders.shutil, "disk_usage", lambda folder: SimpleNamespace(free=free))
    monkeypatch.setattr(folders, "takes_direct", lambda folder: direct)


def read_only(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(**_: Any) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(tempfile, "NamedTemporaryFile", refuse)


def test_good_folders_are_ok_and_are_not_made(tmp_path: Path) -> None:
    found = only(check_runs(around(tmp_path)))
    assert found.status == "ok" and "made by the first run" in found.finding
    assert only(check_cache(around(tmp_path))).status == "ok"
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "runs").mkdir()
    assert "made by" not in only(check_runs(around(tmp_path))).finding
    assert only(check_disk(around(tmp_path, disk=tmp_path))).finding.endswith(
        "100.0 GiB free, ext4, direct I/O works"
    )


def test_without_a_folder_for_it_the_disk_tier_has_no_line(tmp_path: Path) -> None:
    assert not list(check_disk(around(tmp_path)))


@pytest.mark.parametrize(
    ("check", "status", "remedy"),
    [
        (check_runs, "failure", "--runs"),
        (check_disk, "failure", "disk_path"),
        (check_cache, "warning", "WORKBENCH_CACHE"),
    ],
)
def test_a_folder_that_cannot_be_written_is_told_with_the_setting_for_another(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    check: Callable[[Context], Iterator[Finding]],
    status: str,
    remedy: str,
) -> None:
    read_only(monkeypatch)
    found = only(check(around(tmp_path, disk=tmp_path)))
    assert found.status == status and "Read-only file system" in found.finding and remedy in found.remedy


def test_a_file_where_a_folder_should_be_is_a_failure(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for inside in (tmp_path / "file", tmp_path / "file" / "runs"):
        found = only(check_runs(around(tmp_path, runs=inside)))
        assert found.status == "failure" and found.finding == f"{tmp_path / 'file'} is not a folder"
    assert only(check_disk(around(tmp_path, disk=tmp_path / "file"))).status == "failure"


@pytest.mark.parametrize("inside", ["link", "link/runs", "circle"])
def test_a_link_that_leads_nowhere_is_no_place_to_make_a_folder_in(tmp_path: Path, inside: str) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "gone")
    (tmp_path / "circle").symlink_to(tmp_path / "circle")
    machine = around(tmp_path, runs=tmp_path / inside, cache=tmp_path / inside, disk=tmp_path / inside)
    for check, status in ((check_runs, "failure"), (check_disk, "failure"), (check_cache, "warning")):
        found = only(check(machine))
        assert found.status == status
        assert f"{tmp_path / inside.split('/')[0]} is a link that leads nowhere" in found.finding
        assert "mkdir" not in found.remedy


def test_where_the_system_does_not_tell_of_mounts_there_is_no_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(all: bool) -> None:
        raise OSError(errno.ENOENT, "/proc/self/mounts")

    monkeypatch.setattr(psutil, "disk_partitions", refuse)
    assert file_system(Path("/")) == ""


def test_a_disk_folder_that_is_not_there_is_to_be_made(tmp_path: Path) -> None:
    found = only(check_disk(around(tmp_path, disk=tmp_path / "a b")))
    assert found.status == "failure" and found.remedy == f"`mkdir -p '{tmp_path}/a b'`"


@pytest.mark.parametrize(
    ("disk", "status", "words"),
    [
        ({"free": 5 * GIB}, "warning", "little room"),
        ({"free": 100 << 20}, "failure", "no room"),
        ({"kind": "tmpfs"}, "warning", "host memory"),
        ({"kind": "nfs4"}, "warning", "network"),
        ({"kind": "overlay"}, "ok", "overlay"),
        ({"kind": ""}, "ok", "100.0 GiB free"),
    ],
)
def test_the_disk_of_the_runs_is_judged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, disk: dict[str, Any], status: str, words: str
) -> None:
    on_disk(monkeypatch, **disk)
    found = only(check_runs(around(tmp_path)))
    assert found.status == status and words in found.finding
    assert ("WORKBENCH_RUNS=DIR" in found.remedy) == (status != "ok")


@pytest.mark.parametrize(
    ("disk", "words"),
    [
        ({"direct": False}, "no direct I/O"),
        ({"kind": "tmpfs"}, "no disk"),
        ({"kind": "nfs4"}, "network"),
        ({"free": GIB}, "little room"),
    ],
)
def test_a_poor_place_for_the_disk_tier_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, disk: dict[str, Any], words: str
) -> None:
    on_disk(monkeypatch, **disk)
    found = only(check_disk(around(tmp_path, disk=tmp_path)))
    assert found.status == "warning" and words in found.finding and "offload.disk_path" in found.remedy


def test_direct_io_works_where_a_page_can_be_written_past_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[int] = []

    def write(descriptor: int, buffers: list[Any], offset: int) -> int:
        written.append(fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_DIRECT)
        return sum(map(len, buffers))

    try:
        os.close(os.open(tmp_path / "direct", os.O_RDWR | os.O_CREAT | os.O_DIRECT))
    except OSError:
        pytest.skip("this file system takes no direct I/O")
    monkeypatch.setattr(os, "pwritev", write)
    assert takes_direct(tmp_path) is True and written == [os.O_DIRECT]


@pytest.mark.parametrize("refusing", ["open", "pwritev"])
def test_direct_io_does_not_work_where_the_system_refuses_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refusing: str
) -> None:
    real = getattr(os, refusing)

    def refuse(*arguments: Any) -> Any:
        if refusing == "pwritev" or arguments[1] & os.O_DIRECT:
            raise OSError(errno.EINVAL, "Invalid argument")
        return real(*arguments)

    monkeypatch.setattr(os, refusing, refuse)
    assert takes_direct(tmp_path) is False


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
    for folder, kind in (
        ("/home", "ext4"),
        ("/data/a", "btrfs"),
        ("/data/fast disk/a", "nfs4"),
        ("/data", "btrfs"),
    ):
        assert file_system(Path(folder)) == kind
