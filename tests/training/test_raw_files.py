"""Raw tensor files: every byte back, whatever the length, or a refusal that names the file."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from workbench.runs.checkpoints import DamagedFileError
from workbench.training.checkpoints import state_files
from workbench.training.checkpoints.state_files import read_tensor, read_tensors, write_tensor, write_tensors


@pytest.fixture(autouse=True)
def _small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_files, "PIECE_BYTES", 64)


def test_numbers_that_are_not_finite_keep_their_bits(tmp_path: Path) -> None:
    bits = torch.tensor([0x7FC00001, 0x7F800000, -0x800000, -1], dtype=torch.int32)
    checksum = write_tensor(tmp_path / "t", bits.view(torch.float32))
    read = torch.zeros(4)
    read_tensor(tmp_path / "t", read, checksum)
    assert torch.equal(read.view(torch.int32), bits)


class Kept:
    """A stored tensor, of which only ranges can be read and written, and the most elements ever asked for at once."""

    def __init__(self, elements: int, dtype: torch.dtype) -> None:
        self.dtype = dtype
        self.values = torch.zeros(elements, dtype=dtype)
        self.largest = 0

    def numel(self) -> int:
        return self.values.numel()

    def element_size(self) -> int:
        return self.dtype.itemsize

    def read(self, start: int, stop: int) -> torch.Tensor:
        assert 0 <= start < stop <= self.numel()
        self.largest = max(self.largest, stop - start)
        return self.values[start:stop].clone()

    def write(self, start: int, values: torch.Tensor) -> None:
        assert values.dtype == self.dtype and 0 <= start < start + values.numel() <= self.numel()
        self.largest = max(self.largest, values.numel())
        self.values[start : start + values.numel()] = values


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.uint8])
@pytest.mark.parametrize("elements", [0, 1, 31, 32, 33, 1000])
def test_a_tensor_comes_back_bit_for_bit_in_memory_and_stored_a_piece_at_a_time(
    tmp_path: Path, dtype: torch.dtype, elements: int
) -> None:
    stored, other, in_memory = (
        Kept(elements, dtype),
        Kept(elements, dtype),
        torch.zeros(elements, dtype=dtype),
    )
    stored.values = (torch.randn(elements, generator=torch.Generator().manual_seed(elements)) * 50).to(dtype)
    checksum = write_tensor(tmp_path / "t", stored)
    assert write_tensor(tmp_path / "memory", stored.values) == checksum
    assert (tmp_path / "memory").read_bytes() == (tmp_path / "t").read_bytes()
    read_tensor(tmp_path / "t", other, checksum)
    read_tensor(tmp_path / "t", in_memory, checksum)
    assert torch.equal(other.values, stored.values) and torch.equal(in_memory, stored.values)
    piece = state_files.PIECE_BYTES // dtype.itemsize
    assert stored.largest == other.largest == min(piece, elements)


def test_what_goes_wrong_with_the_tensor_is_not_taken_for_a_damaged_file(tmp_path: Path) -> None:
    checksum = write_tensor(tmp_path / "t", torch.zeros(100))

    class Full(Kept):
        def write(self, start: int, values: torch.Tensor) -> None:
            raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space left"):
        read_tensor(tmp_path / "t", Full(100, torch.float32), checksum)


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda path: path.unlink(), "cannot be read: No such file"),
        (lambda path: path.write_bytes(path.read_bytes()[:-1]), "399 bytes instead of 400"),
        (lambda path: path.write_bytes(path.read_bytes() + b"x"), "401 bytes instead of 400"),
        (lambda path: path.write_bytes(b"\1" + path.read_bytes()[1:]), "is damaged: its checksum"),
        (lambda path: (path.unlink(), path.mkdir()), "cannot be read"),
    ],
    ids=["missing", "short", "long", "flipped", "a folder"],
)
def test_damage_is_refused_with_the_name_of_the_file(tmp_path: Path, damage, said: str) -> None:  # type: ignore[no-untyped-def]
    path = tmp_path / "0003-h.2.exp_avg"
    checksum = write_tensor(path, torch.arange(100, dtype=torch.float32))
    damage(path)
    with pytest.raises(DamagedFileError, match=said) as error:
        read_tensor(path, torch.empty(100), checksum)
    assert str(path) in str(error.value)


def test_many_at_once_come_back_each_into_its_own_wherever_they_are_kept(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(3)
    wanted = {f"{n:04d}": torch.randn(n * 37, generator=generator) for n in range(40)}
    checksums = write_tensors(tmp_path, wanted.items(), lambda: None)
    read = {name: torch.zeros(tensor.numel()) for name, tensor in wanted.items() if int(name) % 3}
    kept = {name: Kept(wanted[name].numel(), torch.float32) for name in wanted.keys() - read.keys()}
    read_tensors((tmp_path / name, {**read, **kept}[name], checksums[name]) for name in wanted)
    for name, tensor in wanted.items():
        assert torch.equal(read[name] if name in read else kept[name].values, tensor)


def test_when_one_is_damaged_no_other_is_being_read_any_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checksums = write_tensors(tmp_path, [(str(n), torch.ones(4096)) for n in range(30)], lambda: None)
    (tmp_path / "1").write_bytes(b"\0" * 4096 * 4)
    at_work: list[Path] = []
    real = state_files._fill

    def slow(path: Path, *arguments: object) -> int:
        at_work.append(path)
        found = real(path, *arguments)  # type: ignore[arg-type]
        at_work.remove(path)
        return found

    monkeypatch.setattr(state_files, "_fill", slow)
    with pytest.raises(DamagedFileError, match="1 is damaged"):
        read_tensors((tmp_path / name, torch.empty(4096), checksum) for name, checksum in checksums.items())
    assert not at_work
