"""A head that reads the embedding leaves a gradient waiting for the embedding's own."""

from __future__ import annotations

from synthetic import gpt2, workload

from workbench.plan.memory import AutogradGradients, model_rows
from workbench.profiles.model_profile import ParameterProfile

WORK = workload(micro_batch_size=1, sequence_length=2)
MIB = 1 << 20


def logits(vocabulary: int, positions: int, *, head: bool = False) -> int:
    model_profile = gpt2(1, 64, vocabulary, positions)
    if head:
        own = ParameterProfile(name="lm_head.weight", shape=(vocabulary, 64), dtype="float32")
        model_profile = model_profile.model_copy(update={"after": (*model_profile.after, own)})
    # So much held at the end that this is the heaviest moment.
    return model_rows(model_profile, WORK, AutogradGradients(0, 64 * MIB))["device"].get("logits", 0)


def test_it_waits_where_the_head_is_tied_also_where_there_are_as_many_positions_as_tokens() -> None:
    assert logits(4096, 1024) == logits(4096, 4096) == 2 * 4096 * 64


def test_it_does_not_where_the_head_has_a_matrix_of_its_own() -> None:
    assert logits(4096, 1024, head=True) == 0
