"""The layout that time is simulated on moves what the engine's own layout moves, in as many pieces."""

from __future__ import annotations

from collections import Counter

import pytest
from synthetic import gpt2

from workbench.layout import Layout, StateFormat, place
from workbench.plan.two_steps import MOST_GROUPS, group_layout
from workbench.profiles.model_profile import ModelProfile

MODELS = {
    "ten billion": gpt2(50, 4096),
    "small": gpt2(12, 768),
    "tiny": gpt2(4, 128, 257, 128),
    "one": gpt2(1, 64),
}


def elements_by_dtype(layout: Layout) -> Counter[str]:
    found: Counter[str] = Counter()
    for unit in layout.units:
        for region in unit.regions:
            found[region.dtype] += region.elements
    return found


@pytest.mark.parametrize("model_profile", MODELS.values(), ids=MODELS)
@pytest.mark.parametrize("precision", ["bfloat16", "float32"])
@pytest.mark.parametrize("state_format", ["exact", "half", "compact"])
@pytest.mark.parametrize("fraction", [0.0, 0.4, 1.0])
def test_elements_and_chunks_are_the_engines(
    model_profile: ModelProfile, precision: str, state_format: StateFormat, fraction: float
) -> None:
    for chunk_bytes in (16 << 20, 1 << 30):
        engine = model_profile.layout(precision, chunk_bytes, state_format, fraction)
        placements = place(engine, "device", "host", fraction)
        grouped = group_layout(engine, placements, model_profile, chunk_bytes)
        assert elements_by_dtype(grouped.layout) == elements_by_dtype(engine)
        assert sum(group.chunks for group in grouped.groups) == len(list(engine.chunks()))
        assert sum(group.count for group in grouped.groups) == len(engine.units)
        assert len(grouped.groups) <= MOST_GROUPS + 4
        by_unit = [group.placement for group in grouped.groups for _ in range(group.count)]
        assert by_unit == list(placements)
