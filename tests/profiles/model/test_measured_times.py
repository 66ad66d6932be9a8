"""Times of a model's pieces: of every kind and the rest, at the sizes that the time allows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from model_tables import FAMILIES

from workbench.errors import WorkbenchError
from workbench.profiles import block_times
from workbench.profiles.block_times import affordable, measure_times, work_of
from workbench.profiles.meta_model import cut, first_blocks, materialise, meta_model, pass_blocks, tokens
from workbench.profiles.model_profile import ModelProfile


@pytest.mark.parametrize("family", ["opt", pytest.param("gemma2", marks=pytest.mark.slow)])
def test_every_kind_and_the_rest_are_timed(
    family: str, model_profile_of: Callable[[str], ModelProfile]
) -> None:
    model_profile = model_profile_of(family)
    times = measure_times(
        FAMILIES[family],
        model_profile,
        sequences=2,
        tokens=32,
        dtype="float32",
        budget_s=1,
        fingerprint="here",
    )
    assert (times.sequences, times.tokens, times.dtype, times.fingerprint) == (2, 32, "float32", "here")
    assert len(times.kinds) == len(model_profile.kinds)
    for kind in times.kinds:
        assert min(kind.forward_s, kind.graph_s, kind.again_s, kind.backward_s) > 0
    assert times.outer_forward_s > 0 and times.outer_backward_s > 0
    assert times.matrix_flops_per_s > 1e8


def test_where_time_is_short_sequences_go_first_then_tokens(
    model_profile_of: Callable[[str], ModelProfile],
) -> None:
    model_profile = model_profile_of("gpt2")
    whole = work_of(model_profile, 8, 128)
    assert affordable(model_profile, 8, 128, whole) == (8, 128)
    fewer, length = affordable(model_profile, 8, 128, whole / 3)
    assert 1 <= fewer < 8 and length == 128
    assert work_of(model_profile, fewer, length) <= whole / 3
    one, shorter = affordable(model_profile, 8, 128, whole / 20)
    assert one == 1 and shorter < 128
    assert affordable(model_profile, 8, 128, 0) == (1, block_times.FEWEST_TOKENS)


@pytest.mark.parametrize("family", ["gpt2", "opt", "gpt_neox", "mixtral"])
def test_blocks_that_pass_on_what_they_get_leave_the_rest_of_the_model_as_it_is(
    family: str, model_profile_of: Callable[[str], ModelProfile]
) -> None:
    names = first_blocks(model_profile_of(family))
    model: Any = meta_model(FAMILIES[family])
    cut(model, names)
    materialise(model, blocks=True)
    ids = tokens(1, 16, 97)
    with torch.no_grad():
        before = model(input_ids=ids, labels=ids, use_cache=False).loss
        torch.manual_seed(0)
        with pass_blocks(model):
            passed = model(input_ids=ids, labels=ids, use_cache=False).loss
        after = model(input_ids=ids, labels=ids, use_cache=False).loss
    assert torch.isfinite(passed)
    assert after == before
    assert passed != before


def test_blocks_that_do_not_fit_are_refused_in_one_sentence(
    monkeypatch: pytest.MonkeyPatch, model_profile_of: Callable[[str], ModelProfile]
) -> None:
    monkeypatch.setattr(block_times, "free_host_bytes", lambda: 1000)
    with pytest.raises(WorkbenchError, match=r"cannot be timed: that takes .* GiB"):
        measure_times(
            FAMILIES["gpt2"], model_profile_of("gpt2"), sequences=1, tokens=16, dtype="float32", budget_s=1
        )
