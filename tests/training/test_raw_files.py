"""Raw tensor files: every byte back, whatever the length, or a refusal that names the file."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from workbench.training import raw_files
from workbench.training.raw_files import DamagedFileError, read_tensor, write_tensor


@pytest.fixture(autouse=True)
def _small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(raw_files, "PIECE_BYTES", 64)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int16, torch.uint8])
@pytest.mark.parametrize("elements", [0, 1, 31, 32, 33, 1000])
def test_a_tensor_comes_back_bit_for_bit(tmp_path: Path, dtype: torch.dtype, elements: int) -> None:
    generator = torch.Generator().manual_seed(elements)
    tensor = (torch.randn(elements, generator=generator) * 50).to(dtype)
    checksum = write_tensor(tmp_path / "t", tensor)
    assert (tmp_path / "t").stat().st_size == elements * tensor.element_size()
    read = torch.zeros(elements, dtype=dtype)
    read_tensor(tmp_path / "t", read, checksum)
    assert torch.equal(read, tensor)


def test_numbers_that_are_not_finite_keep_their_bits(tmp_path: Path) -> None:
    bits = torch.tensor([0x7FC00001, 0x7F800000, -0x800000, -1], dtype=torch.int32)
    checksum = write_tensor(tmp_path / "t", bits.view(torch.float32))
    read = torch.zeros(4)
    read_tensor(tmp_path / "t", read, checksum)
    assert torch.equal(read.view(torch.int32), bits)


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
