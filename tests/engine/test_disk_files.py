"""Files of records on the disk tier give back what was written, or say what is wrong."""

from __future__ import annotations

import errno
import fcntl
import os
import random
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from disk_records import SIZES, Transfer, filled, path_of, refused, written
from torch import Tensor

from workbench.engine import disk_files as disk
from workbench.engine.devices.buffers import page_aligned
from workbench.engine.disk_files import DiskError, DiskTier
from workbench.layout import PAGE_BYTES, padded


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


def test_empty_records_and_files_are_no_special_case(tier: DiskTier) -> None:
    assert tier.create("nothing", []).nbytes == 0
    file = tier.create("state", [0, 10, 0])
    assert file.nbytes == PAGE_BYTES
    buffer = filled(10, seed=4)
    for record in (0, 1, 2):
        file.write(record, buffer)
    file.read(0, page_aligned(0))
    out = page_aligned(10)
    file.read(1, out)
    assert torch.equal(out[:10], buffer[:10])


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


@pytest.mark.parametrize("reason", [errno.ENOSPC, errno.EIO])
def test_a_refused_write_names_file_record_and_reason(
    tier: DiskTier, monkeypatch: pytest.MonkeyPatch, reason: int
) -> None:
    file, buffers = written(tier)
    real = os.pwritev
    monkeypatch.setattr(os, "pwritev", refused(reason))
    with pytest.raises(DiskError) as caught:
        file.write(3, buffers[3])
    message = str(caught.value)
    assert str(path_of(tier)) in message and "record 3" in message and os.strerror(reason) in message
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
    assert len(flags) == 2 * len(SIZES) and all(f & os.O_DIRECT for f in flags)
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


def flags_of_mapping(address: int) -> list[str] | None:
    """What the system knows of the mapping that holds `address`; None where nothing is mapped."""
    inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        first, *rest = line.split()
        if not first.endswith(":"):
            start, stop = (int(part, 16) for part in first.split("-"))
            inside = start <= address < stop
        elif inside and first == "VmFlags:":
            return rest
    return None


def test_page_aligned_memory_is_whole_zeroed_pages_and_goes_back_when_freed() -> None:
    for nbytes in (1, PAGE_BYTES, 3 * PAGE_BYTES + 5):
        buffer = page_aligned(nbytes)
        assert buffer.dtype == torch.uint8 and buffer.shape == (padded(nbytes),)
        assert buffer.data_ptr() % PAGE_BYTES == 0 and not buffer.any()
    assert page_aligned(0).numel() == 0
    # So large that nothing else is likely to take its place meanwhile.
    large = page_aligned(1 << 30)
    address = large.data_ptr() + large.numel() // 2
    view = large[10:20]
    del large
    assert flags_of_mapping(address) is not None
    del view
    assert flags_of_mapping(address) is None


def test_a_fork_does_not_move_memory_that_is_being_read_into() -> None:
    buffer = page_aligned(PAGE_BYTES)
    flags = flags_of_mapping(buffer.data_ptr())
    assert flags is not None and "dc" in flags, "the system is told not to copy these pages on a fork"
