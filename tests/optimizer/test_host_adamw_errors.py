"""What HostAdamW and its table refuse, each time naming the place."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from adamw_pairs import host, listed, parameters, same_states, take_steps, torchs
from torch import Tensor
from torch.nn import Parameter


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (
            lambda: torch.zeros(3, dtype=torch.float64),
            "must be float32, bfloat16 or float16, not torch.float64",
        ),
        (lambda: torch.zeros(3, device="meta"), "must be on the CPU, not on meta"),
        (lambda: torch.zeros(4, 2).T, "must be contiguous"),
        (lambda: torch.zeros(3).to_sparse(), "must be contiguous"),
    ],
)
def test_a_parameter_that_does_not_fit_is_named_by_its_place(
    made: Callable[[], Tensor], message: str
) -> None:
    good = parameters()
    optimizer = host(good[:1])
    with pytest.raises(ValueError, match=f"^parameter 1 of group 1 {message}"):
        optimizer.add_param_group({"params": [good[1], Parameter(made())]})
    assert len(optimizer.param_groups) == 1
    take_steps(optimizer)


def test_a_parameter_that_stops_fitting_is_named_at_the_step() -> None:
    optimizer = host(parameters([(3, 4), (4, 4)]))
    take_steps(optimizer)
    listed(optimizer)[1].data = listed(optimizer)[1].data.T
    with pytest.raises(ValueError, match="parameter 1 of group 0 must be contiguous"):
        optimizer.step()


def test_two_parameters_in_the_same_memory_are_refused() -> None:
    tied = Parameter(torch.zeros(3))
    with pytest.raises(ValueError, match="parameter 1 of group 0 shares memory with parameter 0"):
        host([tied, Parameter(tied.data)])


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda g: g.to_sparse(), "the gradient of parameter 1 of group 0 does not fit: .* dense"),
        (
            lambda g: g.double(),
            "the gradient of parameter 1 of group 0 does not fit: .* float32, bfloat16 or float16",
        ),
    ],
)
def test_a_gradient_that_does_not_fit_is_named_and_counts_no_step(
    spoil: Callable[[Tensor], Tensor], message: str
) -> None:
    optimizer = host(parameters([(3,), (4,)]))
    take_steps(optimizer, count=1)
    before = copy.deepcopy(optimizer.state_dict())
    bad = listed(optimizer)[1]
    bad.grad_dtype = None
    bad.grad = spoil(torch.ones(4))
    with pytest.raises(ValueError, match=message):
        optimizer.step()
    assert same_states(optimizer.state_dict(), before)


@pytest.mark.parametrize("name", ["amsgrad", "maximize"])
def test_what_is_not_offered_is_refused_in_groups_and_in_states(name: str) -> None:
    with pytest.raises(ValueError, match=f"parameter group 0 has {name}=True"):
        host([{"params": parameters(), name: True}])
    ours, theirs = host(parameters()), torchs(parameters(), **{name: True})
    take_steps(ours, theirs)
    before = copy.deepcopy(ours.state_dict())
    with pytest.raises(ValueError, match=f"parameter group 0 has {name}=True"):
        ours.load_state_dict(theirs.state_dict())
    assert same_states(ours.state_dict(), before)
    take_steps(ours)
    ours.param_groups[0][name] = True
    with pytest.raises(ValueError, match=f"parameter group 0 has {name}=True"):
        take_steps(ours)


@pytest.mark.parametrize("options", [{"betas": (0.9, 1.0)}, {"state_format": "tiny"}], ids=str)
def test_settings_out_of_range_are_named(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(options))):
        host(parameters(), **options)


def test_a_state_of_another_kind_is_refused_and_nothing_changes() -> None:
    ours = host(parameters([(7, 3)]))
    take_steps(ours)
    before = copy.deepcopy(ours.state_dict())
    other_shape = torchs(parameters([(3, 7)]))
    momentum = torch.optim.SGD(parameters([(7, 3)]), lr=0.1, momentum=0.9)
    take_steps(other_shape, momentum)
    with pytest.raises(
        ValueError, match=r"parameter 0 of group 0 does not fit: exp_avg has the shape \(3, 7\)"
    ):
        ours.load_state_dict(other_shape.state_dict())
    with pytest.raises(ValueError, match="has no betas"):
        ours.load_state_dict(momentum.state_dict())
    without = copy.deepcopy(before)
    del without["state"][0]["exp_avg_sq"]
    with pytest.raises(ValueError, match="has no tensor exp_avg_sq"):
        ours.load_state_dict(without)
    infinite = copy.deepcopy(before)
    infinite["state"][0]["exp_avg"][0] = torch.inf
    with pytest.raises(ValueError, match="exp_avg is not finite everywhere, which compact cannot hold"):
        host(parameters([(7, 3)]), state_format="compact").load_state_dict(infinite)
    assert same_states(ours.state_dict(), before)
