"""HostAdamW where torch.optim.AdamW stands: the same steps, the same state, and what it says where it cannot."""

from __future__ import annotations

import copy
import gc
import pickle
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import Parameter

from workbench.optimizer.host import AdamW, HostOptimizer, Piece, PieceTable
from workbench.optimizer.host_adamw import HostAdamW
from workbench.state_formats import BLOCK, StateFormat

SHAPES: list[tuple[int, ...]] = [(), (0,), (1,), (7, 13), (256,), (3, 5, 17), (1025,)]
FORMATS: list[StateFormat] = ["exact", "half", "compact"]
SETTINGS: dict[str, Any] = {"lr": 1e-2, "betas": (0.9, 0.95), "weight_decay": 0.1}


def values(shape: Sequence[int], seed: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(tuple(shape), generator=torch.Generator().manual_seed(seed)).to(dtype)


def parameters(
    shapes: Sequence[Sequence[int]] = SHAPES, dtype: torch.dtype = torch.float32, seed: int = 0
) -> list[Parameter]:
    """The same at each call."""
    return [Parameter(values(shape, seed + index, dtype)) for index, shape in enumerate(shapes)]


def host(params: Any, **options: Any) -> HostAdamW:
    return HostAdamW(params, threads=1, **{**SETTINGS, **options})


def torchs(params: Any, **options: Any) -> torch.optim.AdamW:
    return torch.optim.AdamW(params, **{**SETTINGS, "foreach": False, **options})


def listed(optimizer: torch.optim.Optimizer) -> list[Parameter]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def take_steps(
    *optimizers: torch.optim.Optimizer, first: int = 0, count: int = 5, dtype: torch.dtype | None = None
) -> None:
    """The same gradients for each optimizer, none of which is zero, new tensors at each step."""
    for step in range(first, first + count):
        for optimizer in optimizers:
            for index, parameter in enumerate(listed(optimizer)):
                gradient = values(parameter.shape, 1000 * step + index)
                parameter.grad_dtype = None
                parameter.grad = gradient.to(dtype or parameter.dtype)
            optimizer.step()


def same(a: Tensor, b: Tensor) -> bool:
    """The same dtype, shape and bits."""
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    return torch.equal(a.reshape(-1).view(torch.uint8), b.reshape(-1).view(torch.uint8))


def same_entries(a: dict[str, Any], b: dict[str, Any]) -> bool:
    return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)


def same_states(a: dict[str, Any], b: dict[str, Any]) -> bool:
    return a["state"].keys() == b["state"].keys() and all(
        same_entries(entry, b["state"][index]) for index, entry in a["state"].items()
    )


def assert_follows(ours: HostAdamW, theirs: torch.optim.Optimizer) -> None:
    for mine, other in zip(listed(ours), listed(theirs), strict=True):
        assert (mine in ours.state) == (other in theirs.state)
        if mine in ours.state:
            for key in ("step", "exp_avg", "exp_avg_sq"):
                assert same(ours.state[mine][key], theirs.state[other][key]), key
        # Within 1 ulp and four roundings of the change at each step; torch's own variants differ by more.
        torch.testing.assert_close(mine, other, rtol=1e-5, atol=1e-7)


def test_twenty_steps_have_torchs_moments_and_its_parameters() -> None:
    ours, theirs = host(parameters()), torchs(parameters())
    take_steps(ours, theirs, count=20)
    assert_follows(ours, theirs)


def test_coupled_decay_follows_torchs_adam() -> None:
    ours = host(parameters(), coupled_decay=True)
    theirs = torch.optim.Adam(parameters(), **SETTINGS, foreach=False)
    for step in range(20):
        take_steps(ours, theirs, first=step, count=1)
        for mine, other in zip(listed(ours), listed(theirs), strict=True):
            for key in ("step", "exp_avg", "exp_avg_sq"):
                assert same(ours.state[mine][key], theirs.state[other][key])
            torch.testing.assert_close(mine, other, rtol=1e-5, atol=1e-7)
            # Decay carries a parameter's last bit into the next moments, so each step starts from the same ones.
            with torch.no_grad():
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


def test_a_step_without_any_gradient_changes_nothing() -> None:
    ours = host(parameters())
    ours.step()
    assert not ours.state
    assert all(map(torch.equal, listed(ours), parameters()))


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


def test_step_hooks_and_zero_grad_work_as_in_torch() -> None:
    optimizer = host(parameters())
    calls: list[str] = []
    optimizer.register_step_pre_hook(lambda *_: calls.append("before"))
    optimizer.register_step_post_hook(lambda *_: calls.append("after"))
    take_steps(optimizer, count=1)
    assert calls == ["before", "after"]
    optimizer.zero_grad()
    assert all(parameter.grad is None for parameter in listed(optimizer))


def test_gradients_are_not_kept_after_a_step() -> None:
    (parameter,) = made = parameters([(10,)])
    optimizer = host(made)
    parameter.grad = torch.ones(10)
    gone = weakref.ref(parameter.grad)
    optimizer.step()
    optimizer.zero_grad()
    gc.collect()
    assert gone() is None


def test_a_backward_pass_through_the_values_before_a_step_is_refused() -> None:
    weight = Parameter(torch.ones(3))
    optimizer = host([weight])
    loss = (weight**2).sum()
    loss.backward(retain_graph=True)
    optimizer.step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_only_parameters_with_a_gradient_count_as_written() -> None:
    optimizer = host(parameters())
    take_steps(optimizer)
    listed(optimizer)[1].grad = None
    before = [parameter._version for parameter in listed(optimizer)]
    optimizer.step()
    after = [parameter._version for parameter in listed(optimizer)]
    assert [index for index, (a, b) in enumerate(zip(before, after, strict=True)) if a == b] == [1]


def master_of(optimizer: HostAdamW, index: int = 0) -> Tensor:
    master: Tensor = optimizer.state_dict()["state"][index]["master"]
    return master


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
def test_updates_too_small_for_16_bits_add_up(dtype: torch.dtype) -> None:
    weight = Parameter(torch.ones(300, dtype=dtype))
    optimizer = host([weight], lr=1e-5, weight_decay=0.0)
    for _ in range(1000):
        weight.grad = torch.ones(300, dtype=dtype)
        optimizer.step()
    assert float(weight.detach().float().max()) == pytest.approx(0.99, abs=4e-3)
    assert float(master_of(optimizer).max()) == pytest.approx(0.99, abs=1e-4)


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


def test_a_parameter_whose_bits_become_another_dtype_is_noticed() -> None:
    weight = Parameter(torch.ones(4, dtype=torch.bfloat16))
    optimizer = host([weight])
    take_steps(optimizer)
    weight.grad = None
    weight.data = weight.data.view(torch.float16)
    take_steps(optimizer)
    assert optimizer.state[weight].keys() == {"step", "exp_avg", "exp_avg_sq", "master"}
    assert same(optimizer.state[weight]["master"].half(), weight.detach())


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


def test_loading_copies() -> None:
    ours, theirs = host(parameters()), torchs(parameters())
    take_steps(theirs)
    before = copy.deepcopy(theirs.state_dict())
    ours.load_state_dict(theirs.state_dict())
    take_steps(ours)
    assert same_states(theirs.state_dict(), before)


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


def test_codes_survive_a_way_through_float32() -> None:
    first = host(parameters(), state_format="compact")
    take_steps(first)
    second = host(parameters(), state_format="compact")
    second.load_state_dict(first.exact_state_dict())
    for mine, other in zip(listed(first), listed(second), strict=True):
        if mine.numel():
            before, after = first.state[mine], second.state[other]
            far = (before["exp_avg_code"].int() - after["exp_avg_code"].int()).abs()
            assert int(far.max()) <= 1
            torch.testing.assert_close(
                before["exp_avg_sq_scale"], after["exp_avg_sq_scale"], rtol=0.01, atol=0
            )


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


def test_parameters_round_by_dice_of_their_own() -> None:
    same_start = [Parameter(torch.zeros(1000)) for _ in range(2)]
    ours = host([{"params": same_start[:1]}, {"params": same_start[1:]}], state_format="half")
    for parameter in same_start:
        parameter.grad = values((1000,), 1)
    ours.step()
    first, second = (ours.state[parameter]["exp_avg_sq"] for parameter in same_start)
    assert not torch.equal(first, second)


def test_users_keys_in_groups_and_state_survive() -> None:
    first, second = host(parameters()), host(parameters())
    take_steps(first)
    first.param_groups[0]["initial_lr"] = 0.5
    first.state[listed(first)[0]]["mine"] = "here"
    second.load_state_dict(first.state_dict())
    assert second.param_groups[0]["initial_lr"] == 0.5
    assert second.state[listed(second)[0]]["mine"] == "here"


def test_hooks_see_what_is_saved_and_what_is_loaded() -> None:
    first, second = host(parameters(dtype=torch.bfloat16)), host(parameters(dtype=torch.bfloat16))
    take_steps(first)
    seen: list[Any] = []
    first.register_state_dict_post_hook(lambda _, packed: seen.append(packed["state"][0]["master"]))
    saved = first.state_dict()
    assert seen.pop().dtype is torch.float32
    second.register_load_state_dict_pre_hook(lambda _, given: seen.append(given["state"][0]["exp_avg"]))
    second.register_load_state_dict_post_hook(
        lambda self: seen.append(self.state[listed(self)[0]]["exp_avg"])
    )
    second.load_state_dict(saved)
    assert same(*seen)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("copied", [copy.deepcopy, lambda pair: pickle.loads(pickle.dumps(pair))])
def test_a_copy_continues_on_its_own(copied: Callable[[Any], Any], dtype: torch.dtype) -> None:
    made = parameters(dtype=dtype)
    first = host(made, state_format="half", coupled_decay=True)
    take_steps(first)
    parameters_of_second, second = copied((made, first))
    assert listed(second)[0] is parameters_of_second[0]
    take_steps(first)
    assert int(second.state[parameters_of_second[0]]["step"]) == 5
    take_steps(second)
    assert same_states(first.state_dict(), second.state_dict())
    first.close()
    take_steps(second, count=1)


def test_close_ends_the_threads_and_says_so() -> None:
    optimizer = HostAdamW(parameters(), threads=2)
    take_steps(optimizer, count=1)
    optimizer.close()
    optimizer.close()
    with pytest.raises(RuntimeError, match="closed"):
        take_steps(optimizer, count=1)
    assert {int(entry["step"]) for entry in optimizer.state_dict()["state"].values()} == {1}


def test_a_dropped_optimizer_ends_its_threads() -> None:
    optimizer = HostAdamW(parameters(), threads=2)
    take_steps(optimizer, count=1)
    gone = weakref.ref(optimizer._host)
    del optimizer
    gc.collect()
    assert gone() is None


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
    with pytest.raises(ValueError, match="parameter 1 of group 0 is in the same memory as parameter 0"):
        host([tied, Parameter(tied.data)])


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda g: g.to_sparse(), "the gradient of parameter 1 of group 0 is sparse"),
        (lambda g: g.double(), "the gradient of parameter 1 of group 0 must be float32, bfloat16 or float16"),
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


def test_a_gradient_of_another_length_is_named() -> None:
    optimizer = host(parameters([(3,), (4,)]))
    take_steps(optimizer, count=1)
    gradient = listed(optimizer)[1].grad
    assert gradient is not None
    gradient.data = torch.ones(5)
    with pytest.raises(
        ValueError, match="the gradient of parameter 1 of group 0 has 5 elements, the parameter 4"
    ):
        optimizer.step()


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


@pytest.mark.parametrize(
    "options",
    [{"lr": -1.0}, {"eps": -1.0}, {"betas": (0.9, 1.0)}, {"weight_decay": -1.0}, {"state_format": "tiny"}],
    ids=str,
)
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


def table_of(count: int) -> PieceTable:
    return PieceTable([Piece(*(torch.zeros(8) for _ in range(3))) for _ in range(count)])


def test_gradients_given_together_are_checked_as_they_are_singly() -> None:
    table = table_of(2)
    for bad, message in (
        (torch.zeros(7), "gradient must have 8 elements, not 7"),
        (torch.zeros(8).double(), "gradient must be float32, bfloat16 or float16"),
        (torch.zeros(16)[::2], "gradient must be contiguous"),
        (torch.zeros(8, device="meta"), "gradient must be on the CPU"),
    ):
        with pytest.raises(ValueError, match=message):
            table.set_gradients([None, bad])
    with pytest.raises(ValueError):
        table.set_gradients([None])


def test_gradients_given_together_work_as_given_singly_and_can_be_released() -> None:
    together, singly = table_of(3), table_of(3)
    given = [torch.ones(8, dtype=torch.bfloat16), None, torch.full((2, 4), 2.0)]
    together.set_gradients(given)
    for index, gradient in enumerate(given):
        singly.set_gradient(index, gradient)
    together.steps.fill_(1)
    for index in range(3):
        singly.set_step(index, 1)
    assert singly.steps.tolist() == [1, 1, 1]
    with HostOptimizer(threads=1) as optimizer:
        results = []
        for table in (together, singly, together):  # the last without gradients
            optimizer.update(table, AdamW())
            table.release_gradients()
            results.append([piece.exp_avg.tolist() for piece in table._pieces])
    assert results[0] == results[1] == results[2]
    assert results[0][0][0] > 0 and results[0][1][0] == 0 and results[0][2][0] > 0
