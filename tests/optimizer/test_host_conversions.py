"""Split, join, accumulate and copy: lossless or exactly rounded, at any length, and nowhere else."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from workbench.optimizer.host import HostOptimizer
from workbench.optimizer.reference import join_float32, split_float32

LENGTHS = [*range(0, 70, 3), 1023, 100_003]


@pytest.fixture(scope="module")
def optimizer() -> Iterator[HostOptimizer]:
    with HostOptimizer(threads=2) as made:
        yield made


def bit_patterns() -> Tensor:
    """Random ones, and all that is special: signed zeros, denormals, ties, the largest values, inf, NaN."""
    generator = torch.Generator().manual_seed(1)
    random = torch.randint(-(2**31), 2**31, (1_000_000,), generator=generator)
    upper = torch.randint(0, 2**16, (65536,), generator=generator) << 16
    near_ties = torch.cat([upper + low for low in (0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF)])
    ends = torch.tensor([0, 1, 0x7FFFFF, 0x800000, 0x7F7F7FFF, 0x7F7F8000, 0x7F7FFFFF, 0x7F800000])
    nans = torch.tensor([0x7F800001, 0x7F807FFF, 0x7F808000, 0x7FC00000, 0x7FFF7FFF, 0x7FFF8000, 0x7FFFFFFF])
    special = torch.cat([ends, nans, ends + 2**31, nans + 2**31, near_ties])
    unsigned = torch.cat([random % 2**32, special])
    return torch.where(unsigned >= 2**31, unsigned - 2**32, unsigned).to(torch.int32).view(torch.float32)


def bits(values: Tensor) -> Tensor:
    return values.view(torch.int32)


def test_join_gives_back_every_bit_pattern_that_split_was_given(optimizer: HostOptimizer) -> None:
    values = bit_patterns()
    high = torch.empty_like(values, dtype=torch.bfloat16)
    low = torch.empty_like(values, dtype=torch.int16)
    joined = torch.empty_like(values)
    optimizer.split(values, high, low)
    optimizer.join(high, low, joined)
    assert torch.equal(bits(joined), bits(values))
    expected_high, expected_low = split_float32(values)
    assert torch.equal(high.view(torch.int16), expected_high.view(torch.int16))
    assert torch.equal(low, expected_low)
    assert torch.equal(bits(join_float32(high, low)), bits(values))


def test_high_is_the_nearest_bfloat16_and_differs_from_torchs_on_ties_only() -> None:
    values = bit_patterns()
    values = values[values.isfinite()]
    high, _ = split_float32(values)
    ties = (bits(values) & 0xFFFF) == 0x8000
    rounded = values.bfloat16()
    assert torch.equal(high[~ties], rounded[~ties])
    assert bool((high[ties].float().abs() > values[ties].abs()).all())  # away from zero


def test_infinity_stays_infinite_and_arithmetics_nan_stays_nan_in_high() -> None:
    high, _ = split_float32(torch.tensor([float("inf"), float("-inf"), float("nan"), -float("nan")]))
    assert high[:2].tolist() == [float("inf"), float("-inf")]
    assert bool(high[2:].isnan().all())
    largest = torch.tensor([torch.finfo(torch.float32).max])
    high, low = split_float32(largest)
    assert high.tolist() == [float("inf")]  # as any rounding to bfloat16 makes it; the master keeps its value
    assert torch.equal(join_float32(high, low), largest)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_accumulate_adds_or_replaces_exactly_as_torch_at_any_length(
    optimizer: HostOptimizer, dtype: torch.dtype
) -> None:
    generator = torch.Generator().manual_seed(4)
    for length in LENGTHS:
        block = torch.randn(length + 2, generator=generator)
        before = block.clone()
        source = torch.randn(length + 1, generator=generator).to(dtype)[1:]
        optimizer.accumulate(block[1:-1], source)
        assert torch.equal(block[1:-1], before[1:-1] + source.float())
        optimizer.accumulate(block[1:-1], source, overwrite=True)
        assert torch.equal(block[1:-1], source.float())
        assert block[0] == before[0] and block[-1] == before[-1]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_every_16_bit_value_is_widened_exactly(optimizer: HostOptimizer, dtype: torch.dtype) -> None:
    source = torch.arange(-32768, 32768).to(torch.int16).view(dtype)
    widened = torch.empty(65536)
    optimizer.accumulate(widened, source, overwrite=True)
    number = ~source.isnan()
    assert torch.equal(bits(widened[number]), bits(source.float()[number]))
    assert bool(widened[~number].isnan().all())


def test_copy_moves_bytes_from_any_dtype_to_any_other(optimizer: HostOptimizer) -> None:
    for length in (0, 1, 101, 300_003):
        source = torch.randn(length, generator=torch.Generator().manual_seed(6))
        target = torch.full((2 * length + 2,), 9, dtype=torch.bfloat16)
        optimizer.copy(target[1:-1], source)
        assert torch.equal(target[1:-1].clone().view(torch.int16), source.view(torch.int16))
        assert target[0] == 9 and target[-1] == 9
