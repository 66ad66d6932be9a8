"""Times of a model's pieces: of every kind and the rest, at the sizes that the time allows."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from model_tables import FAMILIES

from workbench.census import measure
from workbench.census.building import meta_model
from workbench.census.cut_model import pass_blocks, real_model, tokens
from workbench.census.measure import affordable, measure_times, work_of
from workbench.census.take import first_blocks
from workbench.errors import WorkbenchError
from workbench.plan.census import Census


@pytest.mark.parametrize("family", ["opt", "gemma2"])
def test_every_kind_and_the_rest_are_timed(family: str, census_of: Callable[[str], Census]) -> None:
    census = census_of(family)
    times = measure_times(
        FAMILIES[family], census, sequences=2, tokens=32, dtype="float32", budget_s=1, fingerprint="here"
    )
    assert (times.sequences, times.tokens, times.dtype, times.fingerprint) == (2, 32, "float32", "here")
    assert len(times.kinds) == len(census.kinds)
    for kind in times.kinds:
        assert min(kind.forward_s, kind.graph_s, kind.backward_s) > 0
    assert times.outer_forward_s > 0 and times.outer_backward_s > 0
    assert times.matrix_flops_per_s > 1e8


def test_times_say_how_busy_the_machine_was(
    census_of: Callable[[str], Census], monkeypatch: pytest.MonkeyPatch
) -> None:
    busy = "other processes kept 3.0 of 4 cores busy meanwhile"
    monkeypatch.setattr(measure.Others, "note", lambda self: busy)
    times = measure_times(
        FAMILIES["gpt2"], census_of("gpt2"), sequences=1, tokens=16, dtype="float32", budget_s=0.01
    )
    assert times.busy == busy


def test_where_time_is_short_sequences_go_first_then_tokens(census_of: Callable[[str], Census]) -> None:
    census = census_of("gpt2")
    whole = work_of(census, 8, 128)
    assert affordable(census, 8, 128, whole) == (8, 128)
    fewer, length = affordable(census, 8, 128, whole / 3)
    assert 1 <= fewer < 8 and length == 128
    assert work_of(census, fewer, length) <= whole / 3
    one, shorter = affordable(census, 8, 128, whole / 20)
    assert one == 1 and shorter < 128
    assert affordable(census, 8, 128, 0) == (1, measure.FEWEST_TOKENS)


@pytest.mark.parametrize("family", ["gpt2", "opt", "gpt_neox", "mixtral"])
def test_blocks_that_pass_on_what_they_get_leave_the_rest_of_the_model_as_it_is(
    family: str, census_of: Callable[[str], Census]
) -> None:
    names = first_blocks(census_of(family))
    model = real_model(lambda: meta_model(FAMILIES[family]), names, small=False)
    ids = tokens(1, 16, 97)
    with torch.no_grad():
        before = model(input_ids=ids, labels=ids, use_cache=False).loss
        torch.manual_seed(0)
        with pass_blocks(model, ids):
            passed = model(input_ids=ids, labels=ids, use_cache=False).loss
        after = model(input_ids=ids, labels=ids, use_cache=False).loss
    assert torch.isfinite(passed)
    assert after == before
    assert passed != before


def test_blocks_that_do_not_fit_are_refused_in_one_sentence(
    monkeypatch: pytest.MonkeyPatch, census_of: Callable[[str], Census]
) -> None:
    monkeypatch.setattr(measure, "free_host_bytes", lambda: 1000)
    with pytest.raises(WorkbenchError, match=r"cannot be timed: that takes .* GiB"):
        measure_times(
            FAMILIES["gpt2"], census_of("gpt2"), sequences=1, tokens=16, dtype="float32", budget_s=1
        )
