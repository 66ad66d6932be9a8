"""Every byte reaches the file, however it lies in memory, and what the disk refuses is raised."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from workbench.engine.devices.buffers import page_aligned
from workbench.model import direct_file
from workbench.model.direct_file import PAGE, DirectFile


@pytest.fixture(autouse=True)
def _small_buffers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(direct_file, "BUFFER_BYTES", 4 * PAGE)


def random(count: int, seed: int, *, aligned: bool) -> torch.Tensor:
    """uint8, [count]."""
    memory = page_aligned(count + 8)[(0 if aligned else 3) :][:count]
    return memory.copy_(
        torch.randint(256, (count,), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))
    )


SIZES = [
    [0],
    [1],
    [PAGE],
    [PAGE * 9 + 5],
    [7, PAGE * 2, PAGE * 4 - 7, PAGE * 3 + 1],
    [PAGE * 4, PAGE * 4, 1, PAGE],
    [3] * 50,
]


@pytest.mark.parametrize("aligned", [True, False])
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_pieces_of_any_size_follow_one_another(tmp_path: Path, sizes: list[int], aligned: bool) -> None:
    pieces = [random(size, number, aligned=aligned) for number, size in enumerate(sizes)]
    with DirectFile(tmp_path / "f") as file:
        for piece in pieces:
            file.write(piece)
    assert (tmp_path / "f").read_bytes() == b"".join(piece.numpy().tobytes() for piece in pieces)


def test_the_beginning_can_be_written_last(tmp_path: Path) -> None:
    file = DirectFile(tmp_path / "f")
    file.write(torch.zeros(PAGE, dtype=torch.uint8))
    file.write(torch.arange(10, dtype=torch.int32))
    file.close(b"header")
    written = (tmp_path / "f").read_bytes()
    assert (
        written[:8] == b"header\0\0"
        and written[PAGE:] == torch.arange(10, dtype=torch.int32).numpy().tobytes()
    )


def refusing(number: int, fails: Callable[[int], bool]) -> Callable[[int, memoryview, int], int]:
    """`os.pwrite` that fails with `number` for the calls that `fails` picks by their place in the file."""
    real = os.pwrite

    def pwrite(descriptor: int, view: memoryview, at: int) -> int:
        if fails(at):
            raise OSError(number, os.strerror(number))
        return real(descriptor, view[: 3 * PAGE], at)

    return pwrite


@pytest.mark.parametrize("aligned", [True, False])
def test_a_disk_that_is_full_is_an_error_of_its_number_and_leaves_nothing_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, aligned: bool
) -> None:
    before = set(Path("/proc/self/fd").iterdir())
    monkeypatch.setattr(os, "pwrite", refusing(errno.ENOSPC, lambda at: at >= 8 * PAGE))
    with pytest.raises(OSError, match="No space left") as raised, DirectFile(tmp_path / "f") as file:
        for seed in range(6):
            file.write(random(5 * PAGE, seed, aligned=aligned))
    assert raised.value.errno == errno.ENOSPC
    assert set(Path("/proc/self/fd").iterdir()) == before


@pytest.mark.parametrize("first", [0, 6 * PAGE])
def test_a_file_system_that_refuses_direct_writes_gets_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: int
) -> None:
    import fcntl

    real = os.pwrite

    def pwrite(descriptor: int, view: memoryview, at: int) -> int:
        direct = fcntl.fcntl(descriptor, fcntl.F_GETFL) & direct_file._DIRECT
        if direct and at >= first:
            raise OSError(errno.EINVAL, "no direct writes")
        return real(descriptor, view, at)

    monkeypatch.setattr(os, "pwrite", pwrite)
    data = [random(5 * PAGE + 1, seed, aligned=bool(seed % 2)) for seed in range(4)]
    with DirectFile(tmp_path / "f") as file:
        for piece in data:
            file.write(piece)
    assert (tmp_path / "f").read_bytes() == b"".join(piece.numpy().tobytes() for piece in data)


def test_a_file_system_that_opens_no_direct_file_gets_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.open

    def refuse(path: Path, flags: int, mode: int = 0o777) -> int:
        if flags & direct_file._DIRECT:
            raise OSError(errno.EINVAL, "no direct files")
        return real(path, flags, mode)

    monkeypatch.setattr(os, "open", refuse)
    with DirectFile(tmp_path / "f") as file:
        file.write(torch.arange(5000))
    assert (tmp_path / "f").read_bytes() == torch.arange(5000).numpy().tobytes()
