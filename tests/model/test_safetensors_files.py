"""Safetensors files written as tensors come: every byte found again by the format's own reader."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from saved_families import same_bytes, tensors_in
from torch import Tensor

from workbench.model.safetensors_files import DTYPE_NAMES, SafetensorsFiles


def random(shape: tuple[int, ...], dtype: torch.dtype, seed: int) -> Tensor:
    """Random bits, seen as `dtype`."""
    generator = torch.Generator().manual_seed(seed)
    count = torch.Size(shape).numel() * dtype.itemsize
    high = 2 if dtype == torch.bool else 256
    return torch.randint(high, (count,), dtype=torch.uint8, generator=generator).view(dtype).reshape(shape)


def shapes(tensors: dict[str, Tensor]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(tensor.shape) for name, tensor in tensors.items()}


def header_of(path: Path) -> tuple[int, dict[str, Any]]:
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    del header["__metadata__"]
    return length, header


def test_tensors_of_every_dtype_and_odd_sizes_come_back_and_lie_aligned(tmp_path: Path) -> None:
    sizes = [(3,), (5, 7), (), (0,), (2, 3, 4), (1,)]
    tensors = {
        f"{dtype}-{number}": random(size, dtype, number)
        for number, size in enumerate(sizes)
        for dtype in sorted(DTYPE_NAMES, key=lambda dtype: (dtype.itemsize * 7) % 11)
    }
    tensors["one more byte"] = random((1,), torch.uint8, 9)
    with SafetensorsFiles(tmp_path, shapes(tensors)) as files:
        for name, tensor in tensors.items():
            files.add({name: tensor})
    found = tensors_in(tmp_path)
    assert set(found) == set(tensors)
    assert all(same_bytes(found[name], tensors[name]) for name in tensors)
    length, header = header_of(tmp_path / "model.safetensors")
    assert length % 8 == 0
    for name, entry in header.items():
        assert entry["data_offsets"][0] % tensors[name].element_size() == 0, name


def test_parts_of_other_tensors_and_transposed_ones_are_written_as_they_are_seen(tmp_path: Path) -> None:
    whole = random((6, 10), torch.float32, 1)
    tensors = {
        "rows": whole[2:4],
        "turned": whole.T,
        "spread": whole[:, :1].expand(6, 4),
        "strided": whole[::2, 1::3],
    }
    with SafetensorsFiles(tmp_path, shapes(tensors)) as files:
        files.add(tensors)
    found = tensors_in(tmp_path)
    assert all(same_bytes(found[name], tensor.contiguous()) for name, tensor in tensors.items())


@pytest.mark.parametrize("count", [1, 2, 7])
def test_a_file_takes_what_fits_and_a_larger_tensor_has_one_of_its_own(tmp_path: Path, count: int) -> None:
    tensors = {f"t{n}": random((100,), torch.float32, n) for n in range(count)}
    tensors["large"] = random((1000,), torch.float32, 99)
    tensors["last"] = random((3,), torch.bfloat16, 98)
    with SafetensorsFiles(tmp_path, shapes(tensors), largest_bytes=1000) as files:
        files.add(tensors)
    held = [sorted(header_of(path)[1]) for path in sorted(tmp_path.glob("*.safetensors"))]
    small = [f"t{n}" for n in range(count)]
    assert held == [*(small[n : n + 2] for n in range(0, count, 2)), ["large"], ["last"]]
    found = tensors_in(tmp_path)
    assert all(same_bytes(found[name], tensors[name]) for name in tensors)


def test_names_of_any_letters_have_room_in_the_header(tmp_path: Path) -> None:
    names = ["plain", 'quo"ted', "back\\slash", "größe", "重み", "line\nbreak", "x" * 500]
    tensors = {name: random((2,), torch.float32, n) for n, name in enumerate(names)}
    with SafetensorsFiles(tmp_path, shapes(tensors), largest_bytes=8) as files:
        files.add(tensors)
    found = tensors_in(tmp_path)
    assert set(found) == set(names)
    assert all(same_bytes(found[name], tensors[name]) for name in names)


def test_what_was_not_awaited_is_refused(tmp_path: Path) -> None:
    files = SafetensorsFiles(tmp_path, {"a": (2,)})
    for tensors in ({"b": torch.zeros(2)}, {"a": torch.zeros(3)}, {"a": torch.zeros(2, 1)}):
        assert not files.awaits(tensors)
        with (
            pytest.raises(ValueError, match="is not expected"),
            SafetensorsFiles(tmp_path, {"a": (2,)}) as other,
        ):
            other.add(tensors)
    assert files.awaits({"a": torch.zeros(2)})
    with files:
        files.add({"a": torch.zeros(2)})
        assert not files.awaits({"a": torch.zeros(2)})
        with pytest.raises(ValueError, match="tensor a of shape"):
            files.add({"a": torch.zeros(2)})


def test_without_all_that_was_awaited_there_is_no_file_of_weights(tmp_path: Path) -> None:
    with (
        pytest.raises(ValueError, match="2 tensors were not given, one of them b"),
        SafetensorsFiles(tmp_path, {"a": (2,), "c": (2,), "b": (2,)}) as files,
    ):
        files.add({"a": torch.zeros(2)})
    assert list(tmp_path.glob("*.safetensors")) == []
