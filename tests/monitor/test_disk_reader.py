"""The disk under a folder: its room, its name and its traffic, as far as its file system has them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from proc_trees import Clock, write

from workbench.monitor import disk
from workbench.monitor.disk import DiskReader
from workbench.monitor.samples import DiskSample


def device_stat(read_sectors: int, written_sectors: int, busy_ms: int) -> str:
    return f"   10 0 {read_sectors} 5 20 0 {written_sectors} 6 0 {busy_ms} 11 0 0 0 0 0 0\n"


def number_of(folder: Path) -> str:
    number = folder.stat().st_dev
    return f"{os.major(number)}:{os.minor(number)}"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """/sys with one block device, the one that `tmp_path` itself lies on."""
    write(tmp_path, {"sys/devices/pci0/nvme0n1/nvme0n1p2/stat": device_stat(1000, 2000, 300)})
    (tmp_path / "sys/dev/block").mkdir(parents=True)
    (tmp_path / "sys/dev/block" / number_of(tmp_path)).symlink_to("../../devices/pci0/nvme0n1/nvme0n1p2")
    return tmp_path


def test_traffic_is_that_of_the_time_between_two_readings(root: Path) -> None:
    clock = Clock()
    reader = DiskReader(root, root, clock)
    first = reader.read()
    assert (first.device, first.read_bytes_per_s, first.busy) == ("nvme0n1p2", None, None)
    clock.now += 2.0
    write(root, {"sys/devices/pci0/nvme0n1/nvme0n1p2/stat": device_stat(1000 + 4096, 2000 + 2048, 1300)})
    sample = reader.read()
    assert sample.read_bytes_per_s == 4096 * 512 / 2
    assert sample.written_bytes_per_s == 2048 * 512 / 2
    assert sample.busy == 0.5


def test_room_is_the_file_systems(root: Path) -> None:
    sample = DiskReader(root, root).read()
    room = os.statvfs(root)
    assert sample.total_bytes == room.f_blocks * room.f_frsize
    assert sample.free_bytes is not None and 0 < sample.free_bytes <= sample.total_bytes


def test_a_folder_that_is_not_there_yet_is_on_the_disk_of_the_one_above_it(root: Path) -> None:
    missing = root / "runs/not/yet"
    sample = DiskReader(missing, root).read()
    assert (sample.folder, sample.device) == (str(missing), "nvme0n1p2")


@pytest.mark.parametrize(
    ("kind", "source", "device"),
    [
        ("tmpfs", "tmpfs", "tmpfs"),
        ("overlay", "overlay", "overlay"),
        ("nfs4", "server:/export/a\\040b", "server:/export/a b"),
        ("fuse", "none", "fuse"),
    ],
)
def test_a_file_system_without_a_device_gives_its_room_and_its_source(
    tmp_path: Path, kind: str, source: str, device: str
) -> None:
    line = f"30 25 {number_of(tmp_path)} / /somewhere rw,relatime shared:1 - {kind} {source} rw,size=1k\n"
    write(tmp_path, {"proc/self/mountinfo": f"22 27 0:999 / /proc rw - proc proc rw\n{line}"})
    clock = Clock()
    reader = DiskReader(tmp_path, tmp_path, clock)
    reader.read()
    clock.now += 1.0
    sample = reader.read()
    assert sample.device == device
    assert sample.total_bytes and sample.free_bytes
    assert (sample.read_bytes_per_s, sample.written_bytes_per_s, sample.busy) == (None, None, None)


def test_a_file_system_over_several_devices_gives_the_traffic_of_the_one_it_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(
        tmp_path,
        {
            "proc/self/mountinfo": f"30 25 {number_of(tmp_path)} / / rw - btrfs /dev/nvme1n1 rw\n",
            "sys/devices/nvme1n1/stat": device_stat(0, 0, 0),
            "dev/nvme1n1": "",
        },
    )
    (tmp_path / "sys/dev/block").mkdir(parents=True)
    (tmp_path / "sys/dev/block/259:7").symlink_to("../../devices/nvme1n1")
    inside = tmp_path / "dev/nvme1n1"
    real = Path.stat

    def stat(path: Path, **options: bool) -> object:
        class Device:
            st_rdev = os.makedev(259, 7)

        return Device() if path == inside else real(path, **options)

    monkeypatch.setattr(Path, "stat", stat)
    clock = Clock()
    reader = DiskReader(tmp_path, tmp_path, clock)
    assert reader.read().device == "nvme1n1"
    clock.now += 1.0
    write(tmp_path, {"sys/devices/nvme1n1/stat": device_stat(2, 0, 0)})
    assert reader.read().read_bytes_per_s == 1024.0


def test_a_folder_that_moves_to_another_disk_is_followed(root: Path) -> None:
    memory = Path("/dev/shm")
    if not memory.is_dir() or number_of(memory) == number_of(root):
        pytest.skip("/dev/shm is no file system of its own here")
    clock = Clock()
    folder = root / "runs"
    reader = DiskReader(folder, root, clock)
    assert reader.read().device == "nvme0n1p2"
    clock.now += 1.0
    folder.symlink_to(memory)
    sample = reader.read()
    assert (sample.device, sample.read_bytes_per_s) == (None, None)


def test_a_device_that_is_taken_out_leaves_its_traffic_unknown(root: Path) -> None:
    clock = Clock()
    reader = DiskReader(root, root, clock)
    reader.read()
    (root / "sys/devices/pci0/nvme0n1/nvme0n1p2/stat").unlink()
    clock.now += 1.0
    assert reader.read().read_bytes_per_s is None


def test_a_file_system_that_does_not_answer_is_all_none(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stale(_: object) -> os.statvfs_result:
        raise OSError(116, "Stale file handle")

    monkeypatch.setattr(disk.os, "statvfs", stale)
    assert DiskReader(root, root).read() == DiskSample(str(root))


def test_this_machines_own_disk_has_room() -> None:
    sample = DiskReader(Path.cwd()).read()
    assert sample.total_bytes and sample.free_bytes is not None
    assert sample.device
