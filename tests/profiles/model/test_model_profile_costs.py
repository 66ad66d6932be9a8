"""The costs of a block on the meta device are those of a real block, at a size that the profile never ran it at."""

from __future__ import annotations

import functools
from collections.abc import Callable
from itertools import accumulate
from typing import Any

import pytest
import torch
from model_tables import FAMILIES, GPT2, INNER, WIDTH, table
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from workbench.profiles.block_costs import (
    DTYPES,
    record_forward,
    record_training,
    set_dtype,
    take_model_profile,
)
from workbench.profiles.meta_model import (
    capture,
    count_parts,
    cut,
    first_blocks,
    materialise,
    meta_model,
    shrink_vocabulary,
    tokens,
)
from workbench.profiles.model_profile import BlockCost, ComputeWidth, ModelProfile
from workbench.profiles.storage_tracker import Recording, after

SEQUENCES, TOKENS = 5, 96


def size_of(recording: Recording, event: int) -> int:
    return recording.sizes[abs(event) - 1] * (1 if event > 0 else -1)


def figures(alone: Recording, graph: Recording) -> dict[str, int]:
    """What a block was seen to take, added up plainly."""
    live = list(accumulate(size_of(graph, event) for event in graph.events))
    (mark,) = graph.marks
    forward, backward = graph.phases
    return {
        "input": alone.sizes[0],
        "saved": live[mark - 1],
        "forward_peak": max(accumulate(size_of(alone, event) for event in alone.events)),
        "graph_peak": max(live[:mark]),
        "backward_peak": max(live[mark - 1 :]),
        "element_bytes": forward.element_bytes,
        "backward_element_bytes": backward.element_bytes,
    }


@functools.cache
def blocks_of(family: str) -> tuple[Any, dict[str, Any], list[str]]:
    """Real blocks, on the CPU, and what they are called with."""
    model = meta_model(FAMILIES[family])
    names = first_blocks(count_parts(model, family))
    cut(model, names)
    shrink_vocabulary(model)
    materialise(model, blocks=True)
    return model, capture(model, names, tokens(SEQUENCES, TOKENS, 97)), names


def assert_agrees(cost: BlockCost | None, found: dict[str, int], within: float) -> None:
    assert cost is not None
    for name, value in found.items():
        predicted = getattr(cost, name).at(SEQUENCES, TOKENS)
        assert predicted == pytest.approx(value, rel=within), name


@pytest.mark.parametrize(("width", "within"), [("32", 0.02), ("16", 0.05)])
@pytest.mark.parametrize("family", FAMILIES)
def test_costs_are_those_of_a_real_block_at_another_size(
    family: str, width: ComputeWidth, within: float, model_profile_of: Callable[[str], ModelProfile]
) -> None:
    model, calls, names = blocks_of(family)
    for kind, name in zip(model_profile_of(family).kinds, names, strict=True):
        block = model.get_submodule(name)
        set_dtype(block, DTYPES[width])
        found = figures(record_forward(block, calls[name]), record_training(block, calls[name]))
        set_dtype(block, torch.float32)
        assert_agrees(kind.cost(width, on_cpu=True), found, within)
        assert not kind.problem


class Checkpointed(nn.Module):
    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.block = block

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return checkpoint(self.block, *args, use_reentrant=False, **kwargs)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_checkpoint_computes_again_what_the_costs_do_not_leave_out(
    family: str, model_profile_of: Callable[[str], ModelProfile]
) -> None:
    """torch breaks off behind the last tensor that is kept: a last product whose result is only added is left out."""
    model, calls, names = blocks_of(family)
    for kind, name in zip(model_profile_of(family).kinds, names, strict=True):
        block, cost = model.get_submodule(name), kind.cost("32", on_cpu=True)
        assert cost is not None
        forward, alone = record_training(block, calls[name]).phases
        _, with_recompute = record_training(Checkpointed(block), calls[name]).phases
        found, whole = after(with_recompute, alone), cost.left_out_flops.at(SEQUENCES, TOKENS)
        assert found.operations == cost.operations - cost.left_out_operations
        assert found.flops == pytest.approx(forward.flops - whole)
        left_out = cost.left_out_element_bytes.at(SEQUENCES, TOKENS)
        assert found.element_bytes == pytest.approx(forward.element_bytes - left_out, rel=0.02)
    if family == "llama":
        assert whole == 2 * SEQUENCES * TOKENS * INNER * WIDTH, "the projection down, before the last sum"


def test_products_are_counted_as_arithmetic_has_it(model_profile_of: Callable[[str], ModelProfile]) -> None:
    flops = model_profile_of("gpt2").kinds[0].flops
    matrices = 12 * 48 * 48
    assert flops.per_token == 2 * matrices
    assert flops.per_token_pair == 4 * 48
    assert flops.fixed == 0


def test_only_the_experts_that_a_token_goes_to_count() -> None:
    config = FAMILIES["mixtral"]["config"]
    flops = take_model_profile(table("mixtral", **config)).kinds[0].flops
    experts, router = 2 * 3 * 48 * 160, 48 * 6
    attention = 48 * (48 + 2 * 24) + 48 * 48
    assert flops.per_token == pytest.approx(2 * (experts + router + attention), rel=1e-3)


def test_on_an_accelerator_dropout_is_fused_and_keeps_a_byte_an_element(
    model_profile_of: Callable[[str], ModelProfile],
) -> None:
    """34 bytes a token and unit of width in 16 bits: Korthikanti et al., Reducing Activation Recomputation in Large
    Transformer Models (2022), section 4.1, without what fused attention never keeps; where GELU is one operation."""
    assert model_profile_of("llama").kinds[0].accelerator == {}, "the same without dropout"
    fused = take_model_profile(table("gpt2", **GPT2, activation_function="gelu_pytorch_tanh"))
    cost = fused.kinds[0].cost("16", on_cpu=False)
    assert cost is not None
    assert cost.saved.per_token_pair == 0
    assert cost.saved.per_token == pytest.approx(34 * 48, rel=0.03)
    on_cpu = fused.kinds[0].cost("16", on_cpu=True)
    assert on_cpu is not None
    assert on_cpu.saved.per_token_pair > 0


def test_a_peak_that_moves_into_attention_for_long_sequences_is_followed_there(
    model_profile_of: Callable[[str], ModelProfile],
) -> None:
    cost = model_profile_of("gpt2 with dropout").kinds[0].cost("32", on_cpu=True)
    assert cost is not None
    assert cost.forward_peak.beside
    short, long = cost.forward_peak.at(1, 8) / 8, cost.forward_peak.at(1, 4096) / 4096
    assert long > 50 * short


def test_a_block_that_cannot_run_has_no_costs_and_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers.models.llama.modeling_llama import LlamaMLP

    def fail(self: object, x: Tensor) -> Tensor:
        raise RuntimeError("no such kernel\nand more")

    monkeypatch.setattr(LlamaMLP, "forward", fail)
    (kind,) = take_model_profile(FAMILIES["llama"]).kinds
    assert kind.costs is None
    assert "no such kernel" in kind.problem and "\n" not in kind.problem
    assert kind.flops.per_token > 0
