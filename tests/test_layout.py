"""The layout: nothing overlaps, nothing is lost, and the norm's blocks do not depend on the chunks."""

from __future__ import annotations

import random

import pytest

from workbench.layout import ALIGNMENT, NORM_BLOCK, Layout, ParameterSpec, UnitSpec, build_layout


def _random_specs(seed: int) -> list[UnitSpec]:
    chance = random.Random(seed)
    specs = []
    for number in range(chance.randint(1, 4)):
        parameters = []
        for index in range(chance.randint(0, 8)):
            size = chance.choice(
                [0, 1, 7, 255, 256, 257, 5_000, NORM_BLOCK, NORM_BLOCK + 1, 3 * NORM_BLOCK + 17]
            )
            shape = (size,) if chance.random() < 0.5 else (1, size)
            dtype = chance.choice(["float32", "bfloat16"])
            parameters.append(ParameterSpec(f"{number}.{index}", shape, dtype, chance.random() < 0.8))
        specs.append(UnitSpec(f"unit{number}", "block", tuple(parameters)))
    return specs


def _block_cuts(layout: Layout) -> dict[str, list[int]]:
    """For every parameter, where its blocks of the norm begin."""
    cuts: dict[str, list[int]] = {}
    for unit, chunk in layout.chunks():
        for part in chunk.slices:
            begins = range(part.start, part.start + part.count, NORM_BLOCK)
            cuts.setdefault(unit.segments[part.segment].name, []).extend(begins)
    return cuts


@pytest.mark.parametrize("seed", range(60))
def test_every_element_has_one_place_and_every_chunk_one_dtype(seed: int) -> None:
    specs = _random_specs(seed)
    chunk_bytes = random.Random(seed).choice([1, 100_000, 1 << 19, 16 << 20])
    layout = build_layout(specs, chunk_bytes)
    for spec, unit in zip(specs, layout.units, strict=True):
        trainable = {p.name: p for p in spec.parameters if p.trainable}
        assert {s.name for s in unit.segments} == set(trainable)
        assert unit.parameters == sum(p.numel for p in spec.parameters)
        end = 0
        for segment in sorted(unit.segments, key=lambda s: (s.offset, s.numel)):
            assert segment.offset % ALIGNMENT == 0 and segment.offset >= end
            assert segment.decay == (len(trainable[segment.name].shape) >= 2)
            end = segment.offset + segment.numel
        assert end <= unit.elements
        covered = {s.name: 0 for s in unit.segments}
        before = 0
        for number, chunk in enumerate(unit.chunks):
            assert chunk.index == number and before <= chunk.start < chunk.stop <= unit.elements
            before = chunk.stop
            for part in chunk.slices:
                segment = unit.segments[part.segment]
                assert segment.dtype == chunk.dtype
                assert part.start == covered[segment.name], "slices of a parameter follow each other"
                assert part.start % NORM_BLOCK == 0
                covered[segment.name] += part.count
                assert chunk.start <= segment.offset + part.start
                assert segment.offset + part.start + part.count <= chunk.stop
            assert chunk.weight_bytes <= max(chunk_bytes, NORM_BLOCK * 4) + ALIGNMENT * 4
        assert covered == {s.name: s.numel for s in unit.segments}


@pytest.mark.parametrize("seed", range(20))
def test_the_norms_blocks_are_the_same_for_every_size_of_chunk(seed: int) -> None:
    specs = _random_specs(seed)
    cuts = [_block_cuts(build_layout(specs, size)) for size in (1, 300_000, 64 << 20)]
    assert cuts[0] == cuts[1] == cuts[2]


def test_frozen_parameters_weigh_and_have_no_state() -> None:
    parameters = (
        ParameterSpec("a", (10, 10), "float32"),
        ParameterSpec("b", (3,), "bfloat16", trainable=False),
    )
    unit = build_layout([UnitSpec("s", "outer", parameters)], 1 << 20).units[0]
    assert unit.parameters == 103 and unit.trainable_parameters == 100 and unit.elements == 256
    assert unit.weight_bytes == 256 * 4 + 3 * 2


def test_wrong_arguments_are_named() -> None:
    with pytest.raises(ValueError, match="chunk_bytes = 0"):
        build_layout([], 0)
    with pytest.raises(ValueError, match="int8"):
        build_layout([UnitSpec("s", "block", (ParameterSpec("a", (1,), "int8"),))], 1)
