"""The disk tier takes no room that is not there, leaves nothing behind, and removes what dead processes left."""

from __future__ import annotations

import errno
import fcntl
import gc
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from disk_records import SIZES, open_descriptors, path_of, refused, written

from workbench.engine import disk_files as disk
from workbench.engine.devices.buffers import page_aligned
from workbench.engine.disk_files import DiskError, DiskTier
from workbench.layout import PAGE_BYTES


@pytest.fixture
def tier(tmp_path: Path) -> Iterator[DiskTier]:
    tier = DiskTier(tmp_path)
    yield tier
    tier.close()


# Room


def test_files_are_allocated_in_full_when_created(tier: DiskTier) -> None:
    file = tier.create("state", [100 * PAGE_BYTES, 1])
    assert path_of(tier).stat().st_blocks * 512 >= file.nbytes == 101 * PAGE_BYTES


def test_a_disk_that_is_full_says_what_is_needed_and_free_and_keeps_nothing(
    tier: DiskTier, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int, start: int, size: int) -> None:
        os.pwrite(descriptor, b"partly", 0)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(1 << 40, 0, 5 << 30))
    with pytest.raises(DiskError, match=r"64\.00 GiB cannot be allocated .*5\.00 GiB are free"):
        tier.create("state", [64 << 30])
    assert [p.name for p in tier.folder.iterdir()] == [disk.LOCK]


# What stays behind

HOLDER = """
import sys, pathlib, torch
from workbench.engine.disk_files import DiskTier
from workbench.engine.devices.buffers import page_aligned
tier = DiskTier(pathlib.Path(sys.argv[1]))
tier.create("state", [100_000]).write(0, page_aligned(100_000))
print(tier.folder, flush=True)
sys.stdin.readline()
if sys.argv[2] == "raise":
    raise KeyError("the run fails")
"""


def holder(folder: Path, end: str) -> tuple[subprocess.Popen[str], Path]:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(folder), end],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


def test_leftovers_of_a_killed_process_are_removed_and_those_of_a_living_one_are_not(tmp_path: Path) -> None:
    killed, left = holder(tmp_path, "sleep")
    living, kept = holder(tmp_path, "raise")
    try:
        before = DiskTier(tmp_path)
        before.close()
        assert left.is_dir() and kept.is_dir() and len(list(kept.iterdir())) == 2
        killed.send_signal(signal.SIGKILL)
        killed.wait()
        assert left.is_dir()
        tier = DiskTier(tmp_path)
        assert not left.exists()
        assert len(list(kept.iterdir())) == 2
        tier.close()
        living.communicate("\n")
        assert living.returncode == 1
        assert not any(tmp_path.iterdir()), "a process that ends with an error removes its files itself"
    finally:
        for process in (killed, living):
            process.kill()
            process.communicate()


def test_only_what_a_tier_made_is_ever_taken_for_a_leftover(tmp_path: Path) -> None:
    mine = tmp_path / f"{disk.PREFIX}notes"
    mine.mkdir()
    (mine / "notes.txt").write_text("keep")
    (tmp_path / f"{disk.PREFIX}a-file").write_text("keep")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / disk.LOCK).touch()
    (tmp_path / f"{disk.PREFIX}link").symlink_to(elsewhere)
    tier = DiskTier(tmp_path)
    tier.close()
    assert (mine / "notes.txt").read_text() == "keep"
    assert (tmp_path / f"{disk.PREFIX}a-file").read_text() == "keep"
    assert (elsewhere / disk.LOCK).exists()


def test_a_folder_whose_maker_died_before_it_had_the_lock_is_removed(tmp_path: Path) -> None:
    (tmp_path / f"{disk.PREFIX}early").mkdir()
    (tmp_path / f"{disk.PREFIX}late").mkdir()
    (tmp_path / f"{disk.PREFIX}late" / disk.LOCK).touch()
    tier = DiskTier(tmp_path)
    assert list(tmp_path.iterdir()) == [tier.folder]
    tier.close()


@pytest.mark.parametrize("moment", ["before the lock is made", "before the lock is held"])
def test_a_tier_whose_folder_is_swept_away_while_it_is_made_makes_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    swept: list[Path] = []
    real_mkdtemp, real_flock = disk.tempfile.mkdtemp, fcntl.flock

    def sweep(folder: Path) -> None:
        if not swept:
            swept.append(folder)
            disk._remove_leftovers(tmp_path)
            assert not folder.exists()

    def mkdtemp(**named: Any) -> str:
        folder = real_mkdtemp(**named)
        if moment == "before the lock is made":
            sweep(Path(folder))
        return folder

    def flock(descriptor: int, operation: int) -> None:
        if moment == "before the lock is held" and operation == fcntl.LOCK_EX:
            sweep(next(tmp_path.iterdir()))
        real_flock(descriptor, operation)

    monkeypatch.setattr(disk.tempfile, "mkdtemp", mkdtemp)
    monkeypatch.setattr(disk.fcntl, "flock", flock)
    tier = DiskTier(tmp_path)
    assert swept and swept[0] != tier.folder
    written(tier)
    disk._remove_leftovers(tmp_path)
    assert tier.folder.is_dir()
    tier.close()


def test_a_lock_that_was_replaced_since_it_was_opened_lets_nobody_remove_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / f"{disk.PREFIX}taken-over"
    folder.mkdir()
    (folder / disk.LOCK).touch()
    real = fcntl.flock
    held: list[int] = []

    def flock(descriptor: int, operation: int) -> None:
        if not held:
            (folder / disk.LOCK).unlink()
            held.append(os.open(folder / disk.LOCK, os.O_RDWR | os.O_CREAT))
            real(held[0], fcntl.LOCK_EX)
        real(descriptor, operation)

    monkeypatch.setattr(disk.fcntl, "flock", flock)
    disk._remove_leftovers(tmp_path)
    assert held and (folder / disk.LOCK).exists()
    os.close(held[0])
    disk._remove_leftovers(tmp_path)
    assert not folder.exists()


def test_tiers_opened_and_closed_at_once_never_remove_each_others_files(tmp_path: Path) -> None:
    def work(seed: int) -> None:
        for turn in range(10):
            tier = DiskTier(tmp_path)
            file, buffers = written(tier, (10_000,))
            out = page_aligned(10_000)
            file.read(0, out)
            assert torch.equal(out, buffers[0]), (seed, turn)
            tier.close()

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(work, range(6)))
    assert not any(tmp_path.iterdir())


def test_close_leaves_the_folder_empty_twice_over_and_ends_all_use(tier: DiskTier, tmp_path: Path) -> None:
    file, buffers = written(tier)
    tier.create("more", [PAGE_BYTES])
    before = open_descriptors()
    tier.close()
    tier.close()
    assert not any(tmp_path.iterdir())
    assert open_descriptors() == before - 1
    with pytest.raises(DiskError, match="engine was closed"):
        file.read(0, page_aligned(SIZES[0]))
    with pytest.raises(DiskError, match="engine was closed"):
        file.write(0, buffers[0])
    with pytest.raises(DiskError, match="tier is closed"):
        tier.create("late", [10])


def test_files_go_with_the_last_reference_to_them(tmp_path: Path) -> None:
    file, buffers = written(DiskTier(tmp_path))
    gc.collect()
    file.write(0, buffers[0])
    del file
    gc.collect()
    assert not any(tmp_path.iterdir())


def test_a_forked_child_does_not_take_the_files_with_it(tmp_path: Path) -> None:
    tier = DiskTier(tmp_path)
    file, buffers = written(tier)
    child = os.fork()
    if child == 0:
        tier.close()
        os._exit(0)
    os.waitpid(child, 0)
    out = page_aligned(SIZES[3])
    file.read(3, out)
    assert torch.equal(out, buffers[3])
    tier.close()


def test_more_files_than_may_be_open_at_once_are_no_trouble(tmp_path: Path) -> None:
    before = open_descriptors()
    tier = DiskTier(tmp_path)
    for n in range(50):
        tier.create(str(n), [10]).write(0, page_aligned(10))
    assert open_descriptors() == before + 1
    tier.close()


@pytest.mark.parametrize("kind", ["a file", "below a file", "not writable"])
def test_a_folder_that_cannot_be_had_is_an_error_that_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    place = tmp_path / "place"
    if kind == "not writable":
        monkeypatch.setattr(os, "pwritev", refused(errno.EROFS))
    else:
        place.write_text("")
    folder = place / "below" if kind == "below a file" else place
    descriptors = open_descriptors()
    with pytest.raises(DiskError) as caught:
        DiskTier(folder)
    assert str(folder) in str(caught.value)
    assert place.is_file() or not any(place.iterdir())
    assert open_descriptors() == descriptors
