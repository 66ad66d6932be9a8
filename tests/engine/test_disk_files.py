"""The disk tier gives back what was written or says what is wrong, and leaves nothing behind, whoever dies."""

from __future__ import annotations

import errno
import fcntl
import gc
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from workbench.engine import disk_files as disk
from workbench.engine.devices.buffers import page_aligned
from workbench.engine.disk_files import DiskError, DiskTier, RecordFile
from workbench.layout import PAGE_BYTES, padded

SIZES = (1, PAGE_BYTES, PAGE_BYTES + 1, 3 * PAGE_BYTES, 10_000, 0)
Transfer = Callable[[int, list[Any], int], int]


def filled(nbytes: int, seed: int) -> Tensor:
    """A buffer for a record of `nbytes`; the padding is noise too."""
    buffer = page_aligned(nbytes)
    buffer.copy_(
        torch.randint(256, buffer.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.uint8)
    )
    return buffer


def written(tier: DiskTier, sizes: tuple[int, ...] = SIZES) -> tuple[RecordFile, list[Tensor]]:
    file = tier.create("state", sizes)
    buffers = [filled(size, seed) for seed, size in enumerate(sizes)]
    for record, buffer in enumerate(buffers):
        file.write(record, buffer)
    return file, buffers


def path_of(tier: DiskTier) -> Path:
    """The tier's only file of records."""
    (path,) = (p for p in tier.folder.iterdir() if p.name != disk.LOCK)
    return path


def refused(reason: int) -> Transfer:
    def transfer(descriptor: int, buffers: list[Any], offset: int) -> int:
        raise OSError(reason, os.strerror(reason))

    return transfer


def open_descriptors() -> int:
    """How many descriptors this process has."""
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


@pytest.fixture
def buffered_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file system that refuses O_DIRECT."""
    real = os.open

    def refuse(path: Any, flags: int, *rest: Any, **named: Any) -> int:
        if flags & os.O_DIRECT:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        return real(path, flags, *rest, **named)

    monkeypatch.setattr(os, "open", refuse)


@pytest.fixture(params=["as the disk allows", "buffered"])
def tier(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[DiskTier]:
    if request.param == "buffered":
        request.getfixturevalue("buffered_only")
    tier = DiskTier(tmp_path)
    assert not (tier.direct and request.param == "buffered")
    yield tier
    tier.close()


# What is written comes back


def test_records_come_back_as_they_were_written(tier: DiskTier) -> None:
    file, buffers = written(tier)
    for record in reversed(range(len(SIZES))):
        out = filled(SIZES[record], seed=99)
        file.read(record, out)
        assert torch.equal(out[: SIZES[record]], buffers[record][: SIZES[record]])


def test_records_take_whole_pages_and_are_counted_so(tier: DiskTier) -> None:
    file, _ = written(tier)
    assert file.nbytes == sum(padded(size) for size in SIZES) == path_of(tier).stat().st_size
    assert tier.bytes_written == file.nbytes
    assert tier.bytes_read == 0
    file.read(2, page_aligned(SIZES[2]))
    assert tier.bytes_read == 2 * PAGE_BYTES
    assert file.record_bytes == SIZES
    assert tier.create("nothing", []).nbytes == 0


def test_buffers_may_be_of_any_dtype_and_longer_than_the_record(tier: DiskTier) -> None:
    file = tier.create("state", [6000])
    values = page_aligned(4 * PAGE_BYTES).view(torch.float32)
    values.normal_(generator=torch.Generator().manual_seed(1))
    file.write(0, values)
    out = page_aligned(4 * PAGE_BYTES).view(torch.bfloat16)
    file.read(0, out)
    assert torch.equal(out.view(torch.float32)[:1500], values[:1500])
    assert not out.view(torch.uint8)[padded(6000) :].any()


def test_unwritten_records_read_as_zeros_without_touching_the_disk(
    tier: DiskTier, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tier.create("state", SIZES)
    monkeypatch.setattr(os, "preadv", refused(errno.EIO))
    for record, size in enumerate(SIZES):
        out = filled(size, seed=3)
        file.read(record, out)
        assert not out.any()
    assert tier.bytes_read == 0


def test_many_threads_on_random_records_each_find_what_was_last_written(tier: DiskTier) -> None:
    chance = random.Random(7)
    sizes = [chance.randrange(1, 6 * PAGE_BYTES) for _ in range(40)]
    files = [tier.create(f"state/{n}", sizes) for n in range(2)]
    locks = {(n, record): threading.Lock() for n in range(2) for record in range(len(sizes))}
    latest: dict[tuple[int, int], Tensor] = {}

    def work(seed: int) -> int:
        own = random.Random(seed)
        compared = 0
        for turn in range(60):
            n, record = own.randrange(2), own.randrange(len(sizes))
            size = sizes[record]
            with locks[n, record]:
                if own.random() < 0.5:
                    buffer = filled(size, seed=1000 * seed + turn)
                    files[n].write(record, buffer)
                    latest[n, record] = buffer
                else:
                    out = filled(size, seed=1)
                    files[n].read(record, out)
                    expected = latest.get((n, record), torch.zeros_like(out))
                    assert torch.equal(out[:size], expected[:size])
                    compared += (n, record) in latest
        return compared

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(work, range(8))) > 50
    assert tier.bytes_written % PAGE_BYTES == 0


def test_written_per_day_is_the_rate_since_the_first_write_began(
    tier: DiskTier, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter([1000.0, 1000.0 + 5.0, 1000.0 + 864.0])
    monkeypatch.setattr(disk.time, "monotonic", lambda: next(clock))
    file = tier.create("state", [PAGE_BYTES])
    assert tier.written_per_day() == 0.0
    file.write(0, page_aligned(PAGE_BYTES))
    file.write(0, page_aligned(PAGE_BYTES))
    assert tier.written_per_day() == pytest.approx(2 * PAGE_BYTES * 100)


# What the disk does wrong


def test_transfers_are_of_limited_size_and_short_ones_are_continued_at_a_page_where_they_are_direct(
    tier: DiskTier, monkeypatch: pytest.MonkeyPatch
) -> None:
    offsets: list[int] = []

    def short(real: Transfer) -> Transfer:
        def transfer(descriptor: int, buffers: list[Any], offset: int) -> int:
            offsets.append(offset)
            assert len(buffers[0]) <= disk.LARGEST_CALL_BYTES
            return min(real(descriptor, buffers, offset), PAGE_BYTES + 100)

        return transfer

    monkeypatch.setattr(disk, "LARGEST_CALL_BYTES", 2 * PAGE_BYTES)
    monkeypatch.setattr(os, "pwritev", short(os.pwritev))
    monkeypatch.setattr(os, "preadv", short(os.preadv))
    file, (buffer,) = written(tier, (5 * PAGE_BYTES,))
    out = page_aligned(5 * PAGE_BYTES)
    file.read(0, out)
    assert torch.equal(out, buffer)
    forward = PAGE_BYTES if tier.direct else PAGE_BYTES + 100
    assert offsets == list(range(0, 5 * PAGE_BYTES, forward)) * 2


def test_a_refused_write_names_file_record_and_reason(
    tier: DiskTier, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, buffers = written(tier)
    real = os.pwritev
    monkeypatch.setattr(os, "pwritev", refused(errno.ENOSPC))
    with pytest.raises(DiskError) as caught:
        file.write(3, buffers[3])
    for words in (str(path_of(tier)), "record 3", os.strerror(errno.ENOSPC)):
        assert words in str(caught.value)
    assert isinstance(caught.value.__cause__, OSError)
    monkeypatch.setattr(os, "pwritev", real)
    # What it holds now nobody knows; the next write makes it good.
    with pytest.raises(DiskError, match=r"record 3 .*last write failed"):
        file.read(3, page_aligned(SIZES[3]))
    file.write(3, buffers[3])
    out = page_aligned(SIZES[3])
    file.read(3, out)
    assert torch.equal(out, buffers[3])


def test_a_refused_read_names_file_record_and_reason(tier: DiskTier, monkeypatch: pytest.MonkeyPatch) -> None:
    file, _ = written(tier)
    monkeypatch.setattr(os, "preadv", refused(errno.EIO))
    with pytest.raises(DiskError, match=f"record 1 could not be read .{os.strerror(errno.EIO)}"):
        file.read(1, page_aligned(SIZES[1]))
    assert tier.bytes_read == 0


def test_an_error_that_shows_only_when_written_back_is_not_missed(
    tmp_path: Path, buffered_only: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(descriptor: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    tier = DiskTier(tmp_path)
    file = tier.create("state", [10])
    monkeypatch.setattr(os, "fdatasync", fail)
    with pytest.raises(DiskError, match="record 0 could not be written"):
        file.write(0, filled(10, seed=0))
    tier.close()


@pytest.mark.parametrize("taken", [0, PAGE_BYTES])
def test_a_disk_that_takes_no_more_is_an_error_and_no_endless_loop(
    tier: DiskTier, monkeypatch: pytest.MonkeyPatch, taken: int
) -> None:
    file = tier.create("state", [3 * PAGE_BYTES])
    real = os.pwritev
    monkeypatch.setattr(
        os, "pwritev", lambda fd, parts, at: 0 if at else (real(fd, [parts[0][:taken]], at) if taken else 0)
    )
    with pytest.raises(DiskError, match=f"record 0 could not be written: .*after {taken:,} of 12,288 bytes"):
        file.write(0, filled(3 * PAGE_BYTES, seed=0))
    assert tier.bytes_written == 0


@pytest.mark.parametrize("bit", [0, 7])
@pytest.mark.parametrize("at", [0, 9_999])
def test_a_single_changed_bit_is_found(tier: DiskTier, at: int, bit: int) -> None:
    file, _ = written(tier, (PAGE_BYTES, 10_000))
    with path_of(tier).open("r+b") as raw:
        raw.seek(PAGE_BYTES + at)
        (byte,) = raw.read(1)
        raw.seek(PAGE_BYTES + at)
        raw.write(bytes([byte ^ (1 << bit)]))
    file.read(0, page_aligned(PAGE_BYTES))
    with pytest.raises(DiskError, match="record 1 is damaged") as caught:
        file.read(1, page_aligned(10_000))
    assert str(path_of(tier)) in str(caught.value)


@pytest.mark.parametrize("left", [0, 700, PAGE_BYTES, PAGE_BYTES + 700])
def test_a_truncated_file_is_found(tier: DiskTier, left: int) -> None:
    file, _ = written(tier, (10_000,))
    os.truncate(path_of(tier), left)
    with pytest.raises(DiskError, match=r"record 0 could not be read: .*of 12,288 bytes"):
        file.read(0, page_aligned(10_000))


def test_a_file_that_was_removed_is_found(tier: DiskTier) -> None:
    file, buffers = written(tier)
    path_of(tier).unlink()
    with pytest.raises(DiskError, match="record 0 could not be read"):
        file.read(0, page_aligned(SIZES[0]))
    with pytest.raises(DiskError, match="record 0 could not be written"):
        file.write(0, buffers[0])


# Whoever calls wrongly


@pytest.mark.parametrize(
    "buffer",
    [
        page_aligned(2 * PAGE_BYTES)[:PAGE_BYTES],
        page_aligned(4 * PAGE_BYTES)[8:],
        page_aligned(4 * PAGE_BYTES)[::2],
        page_aligned(4 * PAGE_BYTES).view(2, -1),
        torch.empty(4 * PAGE_BYTES, dtype=torch.uint8, device="meta"),
    ],
    ids=["short", "not at a page", "strided", "2-D", "elsewhere"],
)
def test_unfit_buffers_are_refused_before_any_memory_is_touched(tier: DiskTier, buffer: Tensor) -> None:
    file = tier.create("state", [PAGE_BYTES + 1])
    with pytest.raises(ValueError, match="buffer of record 0"):
        file.write(0, buffer)
    with pytest.raises(ValueError, match="buffer of record 0"):
        file.read(0, buffer)


@pytest.mark.parametrize("record", [-1, 2])
def test_a_record_that_is_not_there_is_refused(tier: DiskTier, record: int) -> None:
    file = tier.create("state", [10, 10])
    with pytest.raises(ValueError, match=f"no {record}"):
        file.write(record, page_aligned(10))
    assert path_of(tier).stat().st_size == file.nbytes


def test_names_that_no_file_could_have_and_equal_names_are_taken(tier: DiskTier) -> None:
    names = ["a/b", "a/b", "../up", "𝒜" * 300, "x" * 300]
    files = [tier.create(name, [10]) for name in names]
    for seed, file in enumerate(files):
        file.write(0, filled(10, seed))
    for seed, file in enumerate(files):
        out = page_aligned(10)
        file.read(0, out)
        assert torch.equal(out[:10], filled(10, seed)[:10])
        assert file.name == names[seed]


# With and without direct I/O


def test_where_the_disk_takes_direct_io_every_transfer_is_direct(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tier = DiskTier(tmp_path)
    if not tier.direct:
        pytest.skip("no direct I/O here")
    flags: list[int] = []

    def noted(real: Transfer) -> Transfer:
        def transfer(descriptor: int, buffers: list[Any], offset: int) -> int:
            flags.append(fcntl.fcntl(descriptor, fcntl.F_GETFL))
            return real(descriptor, buffers, offset)

        return transfer

    monkeypatch.setattr(os, "pwritev", noted(os.pwritev))
    monkeypatch.setattr(os, "preadv", noted(os.preadv))
    file, _ = written(tier)
    for record, size in enumerate(SIZES):
        file.read(record, page_aligned(size))
    assert len(flags) == 2 * sum(size > 0 for size in SIZES) and all(f & os.O_DIRECT for f in flags)
    tier.close()


def test_without_direct_io_what_is_written_or_read_leaves_the_page_cache(
    tmp_path: Path, buffered_only: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[tuple[str, int, int]] = []
    real = os.fdatasync
    monkeypatch.setattr(os, "fdatasync", lambda fd: (calls.append(("sync", 0, 0)), real(fd))[1])
    monkeypatch.setattr(
        os, "posix_fadvise", lambda fd, at, size, advice: calls.append((f"advice {advice}", at, size))
    )
    tier = DiskTier(tmp_path)
    file = tier.create("state", [10, PAGE_BYTES + 1])
    file.write(1, filled(PAGE_BYTES + 1, seed=0))
    file.read(1, page_aligned(PAGE_BYTES + 1))
    dropped = (f"advice {os.POSIX_FADV_DONTNEED}", PAGE_BYTES, 2 * PAGE_BYTES)
    assert calls == [("sync", 0, 0), dropped, dropped]
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
