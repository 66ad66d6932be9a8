"""Times of a model's pieces: of every kind and the rest, at the sizes that the time allows."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from model_tables import FAMILIES
from workbench.profiles.model import measure
from workbench.profiles.model.masked_attention import Attention, attentions, time_attention
from workbench.profiles.model.measure import affordable, measure_times, work_of
from workbench.profiles.model.stopwatch import Stopwatch

from workbench.errors import WorkbenchError
from workbench.profiles.block_costs import first_blocks
from workbench.profiles.cut_model import capture, pass_blocks, real_model, tokens
from workbench.profiles.meta_model import meta_model
from workbench.profiles.model_profile import ModelProfile


@pytest.mark.parametrize("family", ["opt", "gemma2"])
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
        assert min(kind.forward_s, kind.graph_s, kind.backward_s) > 0
    assert times.outer_forward_s > 0 and times.outer_backward_s > 0
    assert times.matrix_flops_per_s > 1e8


def test_times_say_how_busy_the_machine_was(
    model_profile_of: Callable[[str], ModelProfile], monkeypatch: pytest.MonkeyPatch
) -> None:
    busy = "other processes kept 3.0 of 4 cores busy meanwhile"
    monkeypatch.setattr(measure.Others, "note", lambda self: busy)
    times = measure_times(
        FAMILIES["gpt2"], model_profile_of("gpt2"), sequences=1, tokens=16, dtype="float32", budget_s=0.01
    )
    assert times.busy == busy


def test_what_a_mask_costs_is_timed_on_the_blocks_own_attention(
    model_profile_of: Callable[[str], ModelProfile],
) -> None:
    for family, masks in (("llama", [None]), ("gemma2", [])):
        names = first_blocks(model_profile_of(family))
        model = real_model(lambda family=family: meta_model(FAMILIES[family]), names, small=False)
        call = capture(model, names, tokens(2, 16, 97))[names[0]]
        found = attentions(model.get_submodule(names[0]), call, torch.float32)
        assert [attention.shapes[0][::2] for attention in found] == [(2, 16) for _ in masks], family
    stopwatch = Stopwatch(torch.device("cpu"))
    shape = torch.Size((1, 2, 768, 32))
    for _ in range(3):
        time_attention(
            Attention((shape,) * 3, torch.float32, torch.device("cpu"), {}), stopwatch, "attention"
        )
    for phase in ("forward", "backward"):
        assert stopwatch.median(f"attention plain {phase}") > 0
        assert stopwatch.median(f"attention masked {phase}") > 0


def test_a_mask_costs_what_its_attentions_take_more_and_never_less_than_nothing() -> None:
    seconds = {
        "block attention 0 plain forward": 1.0,
        "block attention 0 masked forward": 1.5,
        "block attention 1 plain forward": 2.0,
        "block attention 1 masked forward": 4.0,
        "block attention 0 plain backward": 3.0,
        "block attention 0 masked backward": 2.9,
    }
    stopwatch = Stopwatch(torch.device("cpu"))
    stopwatch.median = seconds.__getitem__  # type: ignore[method-assign]
    assert measure._of_masks(stopwatch, "block", 2, "forward") == 2.5
    assert measure._of_masks(stopwatch, "block", 1, "backward") == 0
    assert measure._of_masks(stopwatch, "block", 0, "forward") == 0


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
    assert affordable(model_profile, 8, 128, 0) == (1, measure.FEWEST_TOKENS)


@pytest.mark.parametrize("family", ["gpt2", "opt", "gpt_neox", "mixtral"])
def test_blocks_that_pass_on_what_they_get_leave_the_rest_of_the_model_as_it_is(
    family: str, model_profile_of: Callable[[str], ModelProfile]
) -> None:
    names = first_blocks(model_profile_of(family))
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
    monkeypatch: pytest.MonkeyPatch, model_profile_of: Callable[[str], ModelProfile]
) -> None:
    monkeypatch.setattr(measure, "free_host_bytes", lambda: 1000)
    with pytest.raises(WorkbenchError, match=r"cannot be timed: that takes .* GiB"):
        measure_times(
            FAMILIES["gpt2"], model_profile_of("gpt2"), sequences=1, tokens=16, dtype="float32", budget_s=1
        )
