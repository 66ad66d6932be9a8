"""Every element of a chunk has one owner, cuts keep the norm's blocks whole, and no rank owns more than its part."""

from __future__ import annotations

import itertools
import random

import pytest

from workbench.layout import NORM_BLOCK, Layout, ParameterSpec, UnitSpec, build_layout
from workbench.partition import partition


def layout(seed: int, chunk_bytes: int) -> Layout:
    """Units of a few parameters, from single elements to several blocks, in two dtypes."""
    chance = random.Random(seed)
    return build_layout(
        [
            UnitSpec(
                f"u{unit}",
                "block",
                tuple(
                    ParameterSpec(f"u{unit}.p{n}", (size,), chance.choice(("float32", "bfloat16")))
                    for n, size in enumerate(
                        chance.choice((1, 300, 5000, NORM_BLOCK, 3 * NORM_BLOCK + 77, 700_001))
                        for _ in range(chance.randint(1, 6))
                    )
                ),
            )
            for unit in range(chance.randint(1, 12))
        ],
        chunk_bytes,
    )


@pytest.mark.parametrize("chunk_bytes", [1, 1 << 20, 16 << 20])
@pytest.mark.parametrize("ranks", [1, 2, 3, 8, 64])
@pytest.mark.parametrize("seed", range(4))
def test_ranks_own_all_blocks_of_the_norm_whole_and_equally_many(
    seed: int, ranks: int, chunk_bytes: int
) -> None:
    made = layout(seed, chunk_bytes)
    cut = partition(made, ranks)
    held = [0] * ranks
    for unit in made.units:
        owned = [cut.owned(unit, rank) for rank in range(ranks)]
        for chunk in unit.chunks:
            parts = [owned[rank][chunk.index] for rank in range(ranks)]
            assert [part.elements for part in parts] == cut.sizes(unit.index, chunk.index)
            assert parts[0].start == chunk.start and parts[-1].stop == chunk.stop
            assert all(one.stop == other.start for one, other in itertools.pairwise(parts))
            blocks = [
                (part.segment, start)
                for part in chunk.slices
                for start in range(part.start, part.start + part.count, NORM_BLOCK)
            ]
            theirs = [
                (part.segment, start)
                for each in parts
                for part in each.slices
                for start in range(part.start, part.start + part.count, NORM_BLOCK)
            ]
            assert theirs == blocks
            for rank, part in enumerate(parts):
                assert part.index == chunk.index and part.region == chunk.region
                held[rank] += part.elements
    total = sum(held)
    assert max(held) <= total / ranks + 2 * NORM_BLOCK


def test_one_rank_owns_every_chunk_as_it_is() -> None:
    made = layout(0, 1 << 20)
    cut = partition(made, 1)
    assert all(cut.owned(unit, 0) == unit.chunks for unit in made.units)
