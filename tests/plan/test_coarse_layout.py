"""The layout that time is simulated on moves what the engine's own layout moves, in as many pieces."""

from __future__ import annotations

from collections import Counter

import pytest
from synthetic import gpt2

from workbench.layout import Layout
from workbench.plan.census import Census
from workbench.plan.time.coarse import MOST_GROUPS, coarse_layout
from workbench.state_formats import StateFormat

MODELS = {
    "ten billion": gpt2(50, 4096),
    "small": gpt2(12, 768),
    "tiny": gpt2(4, 128, 257, 128),
    "one": gpt2(1, 64),
}


def elements_by_dtype(layout: Layout) -> Counter[str]:
    found: Counter[str] = Counter()
    for shard in layout.shards:
        for region in shard.regions:
            found[region.dtype] += region.elements
    return found


@pytest.mark.parametrize("census", MODELS.values(), ids=MODELS)
@pytest.mark.parametrize("precision", ["bfloat16", "float32"])
@pytest.mark.parametrize("state_format", ["exact", "half", "compact"])
@pytest.mark.parametrize("fraction", [0.0, 0.4, 1.0])
def test_elements_and_chunks_are_the_engines(
    census: Census, precision: str, state_format: StateFormat, fraction: float
) -> None:
    for chunk_bytes in (16 << 20, 1 << 30):
        engine = census.layout(precision, chunk_bytes, state_format, fraction)
        coarse = coarse_layout(census, precision, chunk_bytes, state_format, fraction)
        assert elements_by_dtype(coarse.layout) == elements_by_dtype(engine)
        assert sum(group.chunks for group in coarse.groups) == len(list(engine.chunks()))
        assert sum(group.count for group in coarse.groups) == len(engine.shards)
        assert len(coarse.groups) <= MOST_GROUPS + 4
