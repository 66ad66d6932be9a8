"""HostAdamW takes the steps of torch.optim.AdamW, whatever the program does between them."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from adamw_pairs import (
    SETTINGS,
    SHAPES,
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

from workbench.optimizer.host_adamw import HostAdamW


@pytest.mark.parametrize("coupled", [False, True])
def test_twenty_steps_follow_torch(coupled: bool) -> None:
    made = parameters()
    ours = host(parameters(), coupled_decay=coupled)
    theirs = torch.optim.Adam(made, **SETTINGS, foreach=False) if coupled else torchs(made)
    for step in range(20):
        take_steps(ours, theirs, first=step, count=1)
        assert_follows(ours, theirs)
        # Coupled decay carries a parameter's last bit into the next moments, so each step starts from the same ones.
        with torch.no_grad():
            for mine, other in zip(listed(ours), made, strict=True):
                mine.copy_(other)


def test_groups_have_settings_of_their_own_and_can_be_added() -> None:
    def build(kind: Callable[..., Any]) -> Any:
        made = parameters()
        groups = [
            {"params": made[:2], "weight_decay": 0.0},
            {"params": made[2:5], "lr": 3e-3, "betas": (0.5, 0.99), "eps": 1e-4},
        ]
        optimizer = kind(groups)
        take_steps(optimizer, count=2)
        optimizer.add_param_group({"params": made[5:], "lr": 0.1})
        return optimizer

    ours, theirs = build(host), build(torchs)
    take_steps(ours, theirs, first=2)
    assert_follows(ours, theirs)


def test_a_parameter_without_a_gradient_rests_and_counts_no_step() -> None:
    ours, theirs = host(parameters()), torchs(parameters())
    for step in range(8):
        for optimizer in (ours, theirs):
            optimizer.zero_grad()
            for index, parameter in enumerate(listed(optimizer)):
                if (step + index) % 3 and index != 4:  # 4 never has one
                    parameter.grad = values(parameter.shape, 100 * step + index)
            optimizer.step()
    assert_follows(ours, theirs)
    assert {int(entry["step"]) for entry in ours.state.values()} == {5, 6}
    assert len(ours.state) == len(SHAPES) - 1


def test_schedulers_and_tensor_learning_rates_take_effect() -> None:
    ours, theirs = host(parameters()), torchs(parameters())
    schedulers = [torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5) for optimizer in (ours, theirs)]
    for step in range(4):
        take_steps(ours, theirs, first=step, count=1)
        for scheduler in schedulers:
            scheduler.step()
    assert_follows(ours, theirs)
    rate = torch.tensor(1e-2)
    ours, theirs = host(parameters(), lr=rate), torchs(parameters(), lr=rate)
    take_steps(ours, theirs, count=2)
    rate.mul_(0.1)
    take_steps(ours, theirs, first=2, count=2)
    assert_follows(ours, theirs)


def test_a_closure_is_called_with_autograd_and_its_loss_returned() -> None:
    weight = Parameter(torch.tensor([3.0]))
    optimizer = host([weight])

    def closure() -> float:
        optimizer.zero_grad()
        loss = (weight**2).sum()
        loss.backward()
        return float(loss.detach())

    with torch.no_grad():
        assert optimizer.step(closure) == 9.0
    assert weight.grad is not None
    assert float(weight.detach()) < 3.0


def test_a_backward_pass_through_the_values_before_a_step_is_refused() -> None:
    weight = Parameter(torch.ones(3))
    optimizer = host([weight])
    loss = (weight**2).sum()
    loss.backward(retain_graph=True)
    optimizer.step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@pytest.mark.parametrize("gradient", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_16_bit_parameters_are_the_rounding_of_what_float32_would_be(
    dtype: torch.dtype, gradient: torch.dtype
) -> None:
    ours, truth = host(parameters(dtype=dtype)), host([Parameter(p.float()) for p in parameters(dtype=dtype)])
    for step in range(10):
        for optimizer in (ours, truth):
            for index, parameter in enumerate(listed(optimizer)):
                parameter.grad_dtype = None
                parameter.grad = values(parameter.shape, 100 * step + index, gradient)
            optimizer.step()
    masters = ours.state_dict()["state"]
    for index, (mine, other) in enumerate(zip(listed(ours), listed(truth), strict=True)):
        assert same(masters[index]["master"], other.detach())
        torch.testing.assert_close(mine.float(), other, rtol=2.0**-8, atol=1e-6)
        for key in ("exp_avg", "exp_avg_sq"):
            assert same(ours.state[mine][key], truth.state[other][key])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_what_others_write_to_a_16_bit_parameter_is_followed(dtype: torch.dtype) -> None:
    weight = Parameter(values((1000,), 1, dtype))
    optimizer = host([weight], lr=1e-4, weight_decay=0.0)
    take_steps(optimizer)
    with torch.no_grad():
        weight[:500] = 0.0  # where the lower half of a split master is negative, this alone would be NaN
        weight[500:600] = -0.0
        weight[600] = 8.0
        weight[601:700] = torch.inf
    before = weight.detach().clone()
    take_steps(optimizer, first=5, count=1)
    torch.testing.assert_close(weight, before, rtol=2.0**-7, atol=1e-3)
    torch.testing.assert_close(master_of(optimizer), before.float(), rtol=2.0**-7, atol=1e-3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_replaced_storage_of_parameters_and_gradients_is_noticed(dtype: torch.dtype) -> None:
    first, second = host(parameters(dtype=dtype)), host(parameters(dtype=dtype))
    take_steps(first, second, count=2)
    kept = []
    for parameter in listed(second):
        kept.append(parameter.data)
        parameter.data = parameter.data.clone()
        parameter.grad = None
    before = [tensor.clone() for tensor in kept]
    take_steps(first, second, first=2, count=2)
    assert all(map(same, map(Tensor.detach, listed(first)), map(Tensor.detach, listed(second))))
    assert all(map(same, kept, before))


def test_a_parameter_whose_dtype_changes_keeps_its_moments() -> None:
    made = parameters()
    optimizer = host(made)
    take_steps(optimizer, count=2)
    for dtype in (torch.bfloat16, torch.float16, torch.float32, torch.float16, torch.bfloat16):
        before = [optimizer.state[parameter]["exp_avg"] for parameter in made]
        for parameter in made:
            parameter.grad = None
            parameter.data = parameter.data.to(dtype)
        take_steps(optimizer, first=2, count=1)
        assert all(
            optimizer.state[p]["exp_avg"].data_ptr() == old.data_ptr()
            for p, old in zip(made, before, strict=True)
        )
    assert all(bool(parameter.isfinite().all()) for parameter in made)


def test_a_state_that_somebody_empties_starts_again() -> None:
    first, second = host(parameters()), host(parameters())
    take_steps(first, second)
    second.load_state_dict(first.state_dict())
    first.state.clear()
    second.state = type(second.state)(dict)
    take_steps(first, second, first=5, count=1)
    assert {int(entry["step"]) for entry in first.state.values()} == {1}
    assert same_states(first.state_dict(), second.state_dict())


def test_a_gradient_that_is_not_contiguous_is_used_as_it_reads() -> None:
    ours, theirs = host(parameters([(7, 13)])), torchs(parameters([(7, 13)]))
    for optimizer in (ours, theirs):
        listed(optimizer)[0].grad = values((13, 7), 3).T
        optimizer.step()
    assert_follows(ours, theirs)


@pytest.mark.parametrize("copied", [copy.deepcopy, pickle.dumps])
def test_a_copy_is_refused(copied: Callable[[Any], Any]) -> None:
    with pytest.raises(TypeError, match="state_dict"):
        copied(host(parameters()))


def test_close_ends_the_threads_and_says_so() -> None:
    optimizer = HostAdamW(parameters(), threads=2)
    take_steps(optimizer, count=1)
    optimizer.close()
    optimizer.close()
    with pytest.raises(RuntimeError, match="closed"):
        take_steps(optimizer, count=1)
    assert {int(entry["step"]) for entry in optimizer.state_dict()["state"].values()} == {1}
