"""HostAdamW's state: to and from torch's, and from format to format."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from adamw_pairs import (
    FORMATS,
    SETTINGS,
    assert_follows,
    host,
    listed,
    master_of,
    parameters,
    same,
    same_states,
    take_steps,
    torchs,
    values,
)
from torch import Tensor
from torch.nn import Parameter

from workbench.layout import BLOCK, StateFormat
from workbench.optimizer.host_adamw import HostAdamW


@pytest.mark.parametrize("options", [{"foreach": False}, {"foreach": True}, {"fused": True}], ids=str)
def test_torch_continues_from_our_state_and_we_from_torchs(options: dict[str, Any]) -> None:
    ours, theirs = host(parameters()), torchs(parameters())
    take_steps(ours, theirs)
    their_next = torch.optim.AdamW([Parameter(p.detach().clone()) for p in listed(ours)], lr=7.0, **options)
    their_next.load_state_dict(copy.deepcopy(ours.state_dict()))
    our_next = host([Parameter(p.detach().clone()) for p in listed(theirs)], lr=7.0)
    source = torch.optim.AdamW(listed(theirs), **{**SETTINGS, **options})
    source.load_state_dict(copy.deepcopy(theirs.state_dict()))
    source.param_groups[0].update(options)
    our_next.load_state_dict(source.state_dict())
    take_steps(ours, theirs, our_next, their_next, first=5)
    assert_follows(our_next, theirs)
    for mine, other in zip(listed(ours), listed(their_next), strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-5, atol=1e-7)
        torch.testing.assert_close(
            ours.state[mine]["exp_avg_sq"], their_next.state[other]["exp_avg_sq"], rtol=1e-6, atol=0
        )
    assert our_next.param_groups[0]["lr"] == SETTINGS["lr"]


def test_torchs_adam_takes_a_coupled_state_as_coupled() -> None:
    ours = host(parameters(), coupled_decay=True)
    take_steps(ours)
    theirs = torch.optim.Adam(parameters())
    theirs.load_state_dict(ours.state_dict())
    assert theirs.param_groups[0]["decoupled_weight_decay"] is False


def test_a_state_dict_keeps_its_step_counts_while_training_goes_on() -> None:
    ours = host(parameters())
    take_steps(ours, count=2)
    saved = ours.state_dict()
    take_steps(ours, count=2)
    assert {int(entry["step"]) for entry in saved["state"].values()} == {2}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("state_format", FORMATS)
@pytest.mark.parametrize("order", ["optimizer first", "model first"])
def test_a_state_dict_comes_back_losslessly_and_continues_with_the_same_bits(
    state_format: StateFormat, dtype: torch.dtype, order: str
) -> None:
    first = host(parameters(dtype=dtype), state_format=state_format)
    take_steps(first)
    saved = copy.deepcopy(first.state_dict())
    model = [parameter.detach().clone() for parameter in listed(first)]
    second = host(parameters(dtype=dtype, seed=50), state_format=state_format)
    loads = [lambda: second.load_state_dict(saved), lambda: copy_all(listed(second), model)]
    for load in loads if order == "optimizer first" else reversed(loads):
        load()
    assert same_states(second.state_dict(), saved)
    take_steps(first, second, first=5)
    assert same_states(first.state_dict(), second.state_dict())
    assert all(map(same, map(Tensor.detach, listed(first)), map(Tensor.detach, listed(second))))


def copy_all(targets: Sequence[Tensor], sources: Sequence[Tensor]) -> None:
    with torch.no_grad():
        for target, source in zip(targets, sources, strict=True):
            target.copy_(source)


def test_a_16_bit_parameter_keeps_float32_moments_and_a_32_bit_one_bfloat16_moments() -> None:
    narrow, wide = host(parameters(dtype=torch.bfloat16)), host(parameters(), state_format="half")
    for optimizer, dtype in ((narrow, torch.float32), (wide, torch.bfloat16)):
        take_steps(optimizer)
        optimizer.load_state_dict(optimizer.state_dict())
        assert {entry["exp_avg"].dtype for entry in optimizer.state.values()} == {dtype}


def test_torchs_state_of_bfloat16_parameters_is_taken_with_the_parameter_as_master() -> None:
    theirs = torchs(parameters(dtype=torch.bfloat16))
    take_steps(theirs)
    ours = host([Parameter(p.detach().clone()) for p in listed(theirs)])
    ours.load_state_dict(theirs.state_dict())
    for index, (mine, other) in enumerate(zip(listed(ours), listed(theirs), strict=True)):
        assert same(ours.state[mine]["exp_avg"], theirs.state[other]["exp_avg"].float())
        assert same(master_of(ours, index), other.detach().float())


def test_a_master_that_torch_carried_along_rounded_is_not_used() -> None:
    ours = host(parameters(dtype=torch.bfloat16))
    take_steps(ours)
    theirs = torchs([Parameter(p.detach().clone()) for p in listed(ours)])
    theirs.load_state_dict(ours.state_dict())
    take_steps(theirs, first=5)
    again = host([Parameter(p.detach().clone()) for p in listed(theirs)])
    again.load_state_dict(theirs.state_dict())
    for index, parameter in enumerate(listed(again)):
        assert same(master_of(again, index), parameter.detach().float())


def loaded(entry_format: StateFormat, exp_avg: Tensor, exp_avg_sq: Tensor) -> HostAdamW:
    """An optimizer of that format that was given float32 moments."""
    theirs = torchs([Parameter(torch.zeros(exp_avg.shape))])
    take_steps(theirs, count=1)
    (entry,) = theirs.state.values()
    entry.update(exp_avg=exp_avg, exp_avg_sq=exp_avg_sq)
    optimizer = host([Parameter(torch.zeros(exp_avg.shape))], state_format=entry_format)
    optimizer.load_state_dict(theirs.state_dict())
    return optimizer


def test_an_exact_state_is_rounded_to_the_nearest_for_half() -> None:
    exp_avg, exp_avg_sq = values((7, 99), 1), values((7, 99), 2) ** 2
    (entry,) = loaded("half", exp_avg, exp_avg_sq).state.values()
    assert same(entry["exp_avg"], exp_avg.bfloat16())
    assert same(entry["exp_avg_sq"], exp_avg_sq.bfloat16())


def test_an_exact_state_gets_the_nearest_codes_for_compact() -> None:
    exponents = torch.linspace(-18, 3, 7 * 99).view(7, 99)
    exp_avg, exp_avg_sq = values((7, 99), 1) * 10**exponents, values((7, 99), 2) ** 2 * 10**exponents
    optimizer = loaded("compact", exp_avg, exp_avg_sq)
    (entry,) = optimizer.state.values()
    (expanded,) = optimizer.exact_state_dict()["state"].values()
    assert entry["exp_avg_scale"].shape == (-(-7 * 99 // BLOCK),)
    assert int(entry["exp_avg_sq_code"].min()) >= 1
    for kind, given, most in (("exp_avg", exp_avg, 127), ("exp_avg_sq", exp_avg_sq, 255)):
        for block, decoded in zip(
            given.view(-1).split(BLOCK), expanded[kind].view(-1).split(BLOCK), strict=True
        ):
            largest = block.abs().max()
            assert float(decoded.abs().max() / largest) == pytest.approx(1, rel=1e-6)
            apart = (decoded.abs().sqrt() - block.abs().sqrt()) * most / largest.sqrt()
            # Half a code, or up to one where exp_avg_sq must not have a code of 0.
            small = (block.abs().sqrt() * most / largest.sqrt() < 0.5) & (kind == "exp_avg_sq")
            assert float(apart[~small].abs().max()) < 0.5 + 1e-3
            assert float(apart[small].abs().sum()) <= float(small.sum())
            assert torch.equal(decoded.sign()[decoded != 0], block.sign()[decoded != 0])


def test_moments_of_zero_and_of_denormals_have_a_place_in_compact() -> None:
    for size in (0.0, 1e-45, 1e-40):
        optimizer = loaded("compact", torch.full((300,), -size), torch.full((300,), size))
        (expanded,) = optimizer.exact_state_dict()["state"].values()
        torch.testing.assert_close(expanded["exp_avg"], torch.full((300,), -size), rtol=0.5, atol=1e-41)
        take_steps(optimizer, count=1)
        assert bool(listed(optimizer)[0].isfinite().all())


@pytest.mark.parametrize("state_format", ["half", "compact"])
def test_a_shorter_state_can_be_expanded_for_torch(state_format: StateFormat) -> None:
    ours, exact = host(parameters(), state_format=state_format), host(parameters())
    take_steps(ours, exact, count=20)
    theirs = torchs(parameters())
    theirs.load_state_dict(copy.deepcopy(ours.exact_state_dict()))
    for index, (mine, other) in enumerate(zip(listed(theirs), listed(exact), strict=True)):
        assert theirs.state[mine].keys() == {"step", "exp_avg", "exp_avg_sq"}
        for key in ("exp_avg", "exp_avg_sq"):
            given, truth = theirs.state[mine][key], exact.state[other][key]
            assert given.dtype is torch.float32
            apart = (given - truth).norm() / truth.norm() if truth.numel() else torch.tensor(0.0)
            assert float(apart) < 0.05, (index, key)
    take_steps(theirs, first=20)


def test_torch_stops_at_codes_instead_of_taking_them_for_moments() -> None:
    ours, theirs = host(parameters(), state_format="compact"), torchs(parameters())
    take_steps(ours)
    theirs.load_state_dict(ours.state_dict())
    with pytest.raises(KeyError, match="exp_avg"):
        take_steps(theirs)


def test_a_group_may_have_a_format_of_its_own_and_keeps_it_when_a_state_is_loaded() -> None:
    made = parameters()
    groups = [{"params": made[:3], "state_format": "exact"}, {"params": made[3:]}]
    ours = host(groups, state_format="compact")
    take_steps(ours)
    ours.load_state_dict(ours.exact_state_dict())
    take_steps(ours)
    assert "exp_avg" in ours.state[made[0]]
    assert "exp_avg_code" in ours.state[made[3]]


def test_users_keys_in_groups_and_state_survive() -> None:
    first, second = host(parameters()), host(parameters())
    take_steps(first)
    first.param_groups[0]["initial_lr"] = 0.5
    first.state[listed(first)[0]]["mine"] = "here"
    second.load_state_dict(first.state_dict())
    assert second.param_groups[0]["initial_lr"] == 0.5
    assert second.state[listed(second)[0]]["mine"] == "here"
