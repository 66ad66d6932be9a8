"""Modules of every kind train what plain torch trains, wherever their weights and state are, whatever comes between."""

from __future__ import annotations

import gc
import os
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hard_models import (
    HARD,
    ROWS,
    WAYS,
    WIDTH,
    Block,
    ReadFromOutside,
    Stack,
    adapters,
    loss_of_hard,
    make_hard,
    memory_of,
    options_of,
    plain_batch,
)
from plain_torch import (
    SETTINGS,
    assert_same_bits,
    assert_trains_the_same,
    assert_went_the_same_way,
    engine_weights,
    train_engine,
    train_plain,
)
from small_models import CHUNK_BYTES, MODELS, SeparateMemory, batches, clone, torch_adamw
from torch import Tensor, nn

from workbench.engine import OffloadEngine
from workbench.engine.blocks.discovery import find_blocks, find_units
from workbench.engine.devices.device import CpuDevice
from workbench.timeline import Lane

STEPS = 5
USUAL = ("weights-host", "delayed")
"""What every model meets in the normal suite; of the others each model meets one, and all of them in the slow suite."""
OTHERS = [way for way in WAYS if way not in USUAL]


def of_normal_suite(number: int, way: str) -> Any:
    usual = way in USUAL or way == OTHERS[number % len(OTHERS)]
    return () if usual else pytest.mark.slow


def steps_of(name: str, accumulation: int, steps: int = STEPS) -> list[list[Any]]:
    batch = HARD[name][1]
    return [[batch(step * accumulation + micro) for micro in range(accumulation)] for step in range(steps)]


@pytest.mark.parametrize(
    ("name", "way"),
    [
        pytest.param(name, way, marks=of_normal_suite(number, way))
        for number, name in enumerate(HARD)
        for way in WAYS
    ],
)
def test_a_hard_model_trains_what_torch_trains(name: str, way: str, tmp_path: Path) -> None:
    start, options = make_hard(name), options_of(way, tmp_path)
    data = steps_of(name, options["gradient_accumulation"])
    reference = train_plain(
        start,
        data,
        gradient_clipping=options["gradient_clipping"],
        delay_warmup=options.get("delay_warmup"),
        compute_loss=loss_of_hard,
    )
    ours = train_engine(start, data, memory_of(way), compute_loss=loss_of_hard, **options)
    assert_trains_the_same(ours, reference, start)


def test_torch_counts_a_step_only_where_there_was_a_gradient() -> None:
    """The models above differ in what matters: without this their agreement would show little."""
    for name, counts in {"layer_drop": {0, 2, 3, 4, 5}, "two_heads": {2, 3, 5}, "dead_block": {0, 5}}.items():
        seen = train_plain(make_hard(name), steps_of(name, 1), compute_loss=loss_of_hard).parameter_steps
        assert set(seen.values()) <= counts | {STEPS} and len(set(seen.values())) > 1, name
    start = make_hard("experts")
    after = train_plain(start, steps_of("experts", 1), compute_loss=loss_of_hard)
    before = dict(start.named_parameters())["blocks.1.1.up"]
    unused = after.parameters["blocks.1.1.up"][-1]
    shrunk = (1 - SETTINGS.lr * SETTINGS.weight_decay) ** STEPS
    torch.testing.assert_close(unused, before[-1] * shrunk)


@pytest.mark.parametrize("way", ["state-host", "half", "weights-host", "delayed", "weights-disk-shared"])
def test_parameters_that_are_read_without_their_blocks_call_are_right_or_nan(
    way: str, tmp_path: Path
) -> None:
    """Weights that are away when they are read must never give a number that looks like one."""
    torch.manual_seed(0)
    start, options = ReadFromOutside(), options_of(way, tmp_path)
    if options["weights"] != "device":
        with OffloadEngine(start, device=memory_of(way), precision="fp32", **options):
            assert torch.isnan(loss_of_hard(start, plain_batch(0)))
        return
    data = [[plain_batch(step + n) for n in range(options["gradient_accumulation"])] for step in range(3)]
    clipping, common = options["gradient_clipping"], {"compute_loss": loss_of_hard}
    reference = train_plain(start, data, gradient_clipping=clipping, **common)
    assert_trains_the_same(train_engine(start, data, memory_of(way), **common, **options), reference, start)


@pytest.mark.parametrize("way", ["resident", "half", "weights-host-clipped", "weights-disk"])
def test_fp32_adapters_beside_bf16_weights_keep_their_precision_and_the_bits_of_serial(
    way: str, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    start = adapters()
    for name, parameter in start.named_parameters():
        if "lora" not in name:
            parameter.data = parameter.data.bfloat16()
    options = {**options_of(way, tmp_path), "precision": "bf16", "compute": "same"}
    data = [
        [(x.bfloat16(), extra) for x, extra in step]
        for step in steps_of("adapters", options["gradient_accumulation"])
    ]
    ours, serial = (
        train_engine(
            start, data, memory_of(way), compute_loss=loss_of_hard, **{**options, "overlap": overlap}
        )
        for overlap in ("exact", "serial")
    )
    assert_same_bits(ours, serial)
    before = dict(start.named_parameters())
    # In one precision with the reference: fp32 gradients of the adapters, an fp32 AdamW.
    reference = train_plain(
        start, data, compute_loss=loss_of_hard, gradient_clipping=options["gradient_clipping"]
    )
    for name, weight in ours.parameters.items():
        assert weight.dtype == before[name].dtype
        assert torch.equal(weight, before[name]) == ("lora" not in name), name
        if "lora" in name:
            theirs = reference.parameters[name]
            moved = float((theirs - before[name].detach()).norm())
            assert float((weight - theirs).norm()) <= 0.02 * moved, name


@pytest.mark.parametrize("shared", [False, True], ids=["separate", "shared"])
@pytest.mark.parametrize("name", ["two_lists", "layer_drop", "any_order", "backwards", "dead_block"])
def test_nothing_is_fetched_from_a_slow_disk_while_it_is_written(
    name: str, shared: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is fetched ahead in backward may be a block that was left and is being updated, or one that never ran."""
    write = os.pwritev

    def late(*given: Any) -> int:
        time.sleep(0.002)
        return write(*given)

    monkeypatch.setattr(os, "pwritev", late)
    start, data = make_hard(name), steps_of(name, 1)
    device = CpuDevice() if shared else SeparateMemory(2)
    options: dict[str, Any] = {"weights": "disk", "state": "disk", "disk_path": tmp_path}
    ours = train_engine(start, data, device, compute_loss=loss_of_hard, **options)
    assert_trains_the_same(ours, train_plain(start, data, compute_loss=loss_of_hard), start)


class OneSlowLane(SeparateMemory):
    """Every task of one lane begins late: what the others hold in the meantime piles up as high as it can."""

    def __init__(self, slow: Lane) -> None:
        super().__init__()
        self._slow = slow

    def before_task(self, lane: Lane) -> None:
        if lane is self._slow:
            time.sleep(0.004)


@pytest.mark.parametrize("clipping", [0.0, 0.1])
@pytest.mark.parametrize(
    "slow", [lane for lane in Lane if lane is not Lane.COMPUTE], ids=lambda lane: lane.value
)
@pytest.mark.parametrize("weights", ["host", "disk"])
def test_no_lane_waits_for_a_buffer_that_only_it_could_give_back(
    weights: str, slow: Lane, clipping: float, tmp_path: Path
) -> None:
    """More chunks than buffers, sums that wait on disk, one lane far behind, blocks that bring nothing at first."""
    start, data = make_hard("two_heads"), steps_of("two_heads", 2)
    options: dict[str, Any] = {"weights": weights, "state": "disk", "disk_path": tmp_path, "watchdog_s": 5.0}
    ours = train_engine(
        start,
        data,
        OneSlowLane(slow),
        compute_loss=loss_of_hard,
        gradient_accumulation=2,
        gradient_clipping=clipping,
        **options,
    )
    reference = train_plain(start, data, compute_loss=loss_of_hard, gradient_clipping=clipping)
    assert_trains_the_same(ours, reference, start)


def test_a_parameter_that_is_read_without_its_modules_call_is_waited_for() -> None:
    start, data = make_hard("reads_ahead"), steps_of("reads_ahead", 1)
    common: dict[str, Any] = {"compute_loss": loss_of_hard, "gradient_clipping": 0.1}
    late = train_engine(start, data, OneSlowLane(Lane.UPLOAD), **common)
    assert_same_bits(late, train_engine(start, data, SeparateMemory(), overlap="serial", **common))


# Between and within steps: evaluate, ask for input gradients, fail, go on.

USED_WAYS = ("state-host", "weights-host", "weights-host-clipped", "weights-disk", "delayed")
IN_ORDER = USED_WAYS[:-1]


def open_engine(model: nn.Module, way: str, folder: Path, **options: Any) -> OffloadEngine:
    given = {"device": memory_of(way), **options_of(way, folder), "gradient_accumulation": 1, **options}
    return OffloadEngine(
        model, optimizer=SETTINGS, chunk_bytes=CHUNK_BYTES, threads=2, precision="fp32", **given
    )


def open_torch(model: nn.Module) -> torch.optim.AdamW:
    return torch_adamw(
        model, SETTINGS.lr, SETTINGS.weight_decay, betas=SETTINGS.betas, eps=SETTINGS.eps, foreach=False
    )


def torch_step(model: nn.Module, optimizer: torch.optim.AdamW, way: str) -> None:
    if clipping := WAYS[way].get("gradient_clipping"):
        torch.nn.utils.clip_grad_norm_(model.parameters(), clipping)
    optimizer.step()
    optimizer.zero_grad()


def stack(blocks: Any = 5, **options: Any) -> Any:
    torch.manual_seed(0)
    return Stack(blocks, **options).train()


@pytest.mark.parametrize("way", USED_WAYS)
def test_evaluation_between_steps_and_micro_batches_changes_no_bit_of_training(
    way: str, tmp_path: Path
) -> None:
    start = stack(dropout=0.3)

    def train(evaluates: bool) -> tuple[list[float], dict[str, Tensor]]:
        model, losses = clone(start), []
        with open_engine(model, way, tmp_path, gradient_accumulation=2) as engine:
            for step in range(4):
                for micro in range(2):
                    torch.manual_seed(10 * step + micro)
                    loss = loss_of_hard(model, plain_batch(2 * step + micro))
                    losses.append(loss.item())
                    engine.backward(loss)
                    if evaluates:
                        with torch.no_grad():
                            loss_of_hard(model.eval(), plain_batch(99))
                        model.train()
                engine.step()
                if evaluates:
                    with torch.no_grad():
                        model.eval()
                        first = loss_of_hard(model, plain_batch(99)).item()
                        assert loss_of_hard(model, plain_batch(99)).item() == first
                        model.train()
                    with torch.inference_mode():
                        loss_of_hard(model, plain_batch(98))
            return losses, engine_weights(engine, model)

    plain, evaluated = train(False), train(True)
    assert plain[0] == evaluated[0]
    assert all(torch.equal(plain[1][name], evaluated[1][name]) for name in plain[1])


@pytest.mark.parametrize("way", IN_ORDER)
def test_evaluation_sees_whole_weights_before_a_step_and_the_new_ones_after_it(
    way: str, tmp_path: Path
) -> None:
    """Blocks are updated as backward goes: whoever reads them before `step` must not get some old and some new."""
    model, reference = stack(blocks=6), stack(blocks=6)
    optimizer = open_torch(reference)

    @torch.no_grad()
    def evaluated(network: nn.Module) -> float:
        return loss_of_hard(network, plain_batch(50)).item()

    with open_engine(model, way, tmp_path, device=SeparateMemory(3, longest_s=0.01)) as engine:
        for step in range(4):
            old = evaluated(reference)
            loss_of_hard(reference, plain_batch(step)).backward()
            torch_step(reference, optimizer, way)
            new = evaluated(reference)
            engine.backward(loss_of_hard(model, plain_batch(step)))
            seen = evaluated(model)
            assert min(abs(seen - old), abs(seen - new)) <= 1e-5 * new, (old, seen, new)
            engine.step()  # not waited for
            assert evaluated(model) == pytest.approx(new, rel=1e-5)


class RunningStatistics(nn.Module):
    """A block that updates a buffer in forward, twice where it is recomputed, as under any checkpointing."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Block(inner=50)
        self.normal = nn.BatchNorm1d(WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.normal(torch.tanh(self.inner(x)))
        return out


def two_forwards_in_one_backward(network: nn.Module, step: int) -> Iterator[Tensor]:
    """As contrastive losses have it: every block is called twice before its first gradient comes."""
    one, two = (loss_of_hard(network, plain_batch(2 * step + i)) for i in range(2))
    yield one + two + (one - two).square()


def forwards_thrown_away(network: nn.Module, step: int) -> Iterator[Tensor]:
    for micro in range(2):
        kept = loss_of_hard(network, plain_batch(2 * step + micro))
        loss_of_hard(network, plain_batch(77))
        yield kept
        loss_of_hard(network, plain_batch(78))


def training_switched_on_and_off(network: nn.Module, step: int) -> Iterator[Tensor]:
    for micro, training in enumerate((True, False)):
        torch.manual_seed(step)
        yield loss_of_hard(network.train(training), plain_batch(2 * step + micro))


def blocks_called_by_themselves(network: Any, step: int) -> Iterator[Tensor]:
    """With gradients or without, outside of any forward of the model, as probes and analyses do."""
    x = torch.randn(ROWS, WIDTH, generator=torch.Generator().manual_seed(5))
    for grad in (False, True):
        with torch.set_grad_enabled(grad):
            assert torch.isfinite(network.blocks[2](x)).all()
    yield loss_of_hard(network, plain_batch(step))


def one_forward(network: nn.Module, step: int) -> Iterator[Tensor]:
    yield loss_of_hard(network, plain_batch(step))


USES: list[tuple[Callable[[nn.Module, int], Iterator[Tensor]], Callable[[], nn.Module], int]] = [
    # The micro-batches' losses in a step, the model, and how many micro-batches there are.
    (two_forwards_in_one_backward, stack, 1),
    (forwards_thrown_away, stack, 2),
    (training_switched_on_and_off, lambda: stack(dropout=0.3), 2),
    (blocks_called_by_themselves, stack, 1),
    (one_forward, lambda: stack(RunningStatistics() for _ in range(3)), 1),
]


@pytest.mark.parametrize(("losses", "make", "micro_batches"), USES, ids=[u.__name__ for u, _, _ in USES])
@pytest.mark.parametrize("way", IN_ORDER)
def test_such_a_use_trains_what_torch_trains(
    losses: Callable[[nn.Module, int], Iterator[Tensor]],
    make: Callable[[], nn.Module],
    micro_batches: int,
    way: str,
    tmp_path: Path,
) -> None:
    start = make()
    model, reference = clone(start), clone(start)
    optimizer = open_torch(reference)
    with open_engine(model, way, tmp_path, gradient_accumulation=micro_batches) as engine:
        for step in range(3):
            for loss in losses(reference, step):
                (loss / micro_batches).backward()
            torch_step(reference, optimizer, way)
            for loss in losses(model, step):
                engine.backward(loss)
            engine.step()
        theirs = {name: parameter.detach() for name, parameter in reference.named_parameters()}
        assert_went_the_same_way(engine_weights(engine, model), theirs, start)
        with torch.no_grad():
            assert torch.isfinite(loss_of_hard(model.eval(), plain_batch(9)))


@pytest.mark.parametrize("way", IN_ORDER)
def test_the_gradient_of_an_input_is_torchs(way: str, tmp_path: Path) -> None:
    model, reference = stack(), stack()
    with open_engine(model, way, tmp_path) as engine:
        ours, theirs = (plain_batch(0)[0].requires_grad_() for _ in range(2))
        loss_of_hard(reference, (theirs, None)).backward()
        engine.backward(loss_of_hard(model, (ours, None)))
        engine.step()
        assert ours.grad is not None and theirs.grad is not None
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-3, atol=1e-6)


class Failing(Block):
    """Raises in its forward, its recompute, or its backward, where it is told to."""

    fails = ""
    runs = 0

    def forward(self, x: Tensor) -> Tensor:
        self.runs += 1
        if self.fails == "forward" or (self.fails == "recompute" and self.runs % 2 == 0):
            raise KeyError("the block breaks")
        out = super().forward(x)
        if self.fails == "backward" and out.requires_grad:
            out.register_hook(self._break)
        return out

    @staticmethod
    def _break(gradient: Tensor) -> None:
        raise KeyError("the block breaks")


@pytest.mark.parametrize("way", USED_WAYS)
def test_after_an_exception_in_a_blocks_forward_training_goes_on_as_if_it_had_not_been_called(
    way: str, tmp_path: Path
) -> None:
    start = stack(Failing() for _ in range(4))
    outcomes = []
    for breaks in (False, True):
        model = clone(start)
        with open_engine(model, way, tmp_path, gradient_accumulation=2) as engine:
            for step in range(4):
                for micro in range(2):
                    if breaks:
                        model.blocks[2].fails = "forward"
                        with pytest.raises(KeyError, match="the block breaks"):
                            loss_of_hard(model, plain_batch(77))
                        model.blocks[2].fails = ""
                    engine.backward(loss_of_hard(model, plain_batch(2 * step + micro)))
                engine.step()
            outcomes.append(engine_weights(engine, model))
    assert all(torch.equal(outcomes[0][name], outcomes[1][name]) for name in outcomes[0])


@pytest.mark.parametrize("fails", ["recompute", "backward"])
@pytest.mark.parametrize("way", USED_WAYS)
def test_an_exception_in_a_blocks_backward_reaches_the_caller_and_stops_the_engine_in_words(
    way: str, fails: str, tmp_path: Path
) -> None:
    """Gradients that came half-way cannot be told apart from whole ones. The fixture sees that no thread is left."""
    model = stack(Failing() for _ in range(4))
    with open_engine(model, way, tmp_path, gradient_accumulation=2) as engine:
        for step in range(2):
            engine.backward(loss_of_hard(model, plain_batch(step)))
        engine.step()
        engine.wait()
        model.blocks[1].fails, model.blocks[1].runs = fails, 0
        loss = loss_of_hard(model, plain_batch(3))
        with pytest.raises(KeyError, match="the block breaks"):
            engine.backward(loss)
        model.blocks[1].fails = ""
        with pytest.raises(RuntimeError, match="stopped after an error"):
            engine.backward(torch.zeros((), requires_grad=True))
        with pytest.raises(RuntimeError, match="stopped after an error"):
            engine.step()
        if WAYS[way]["weights"] != "device":
            # The weights do not come any more: this must not look like a forward.
            with pytest.raises((RuntimeError, KeyError)):
                loss_of_hard(model, plain_batch(4))


@pytest.mark.parametrize("way", USED_WAYS)
def test_a_closed_engines_model_is_torchs_again_and_nothing_holds_it(way: str, tmp_path: Path) -> None:
    model = stack()
    engine = open_engine(model, way, tmp_path)
    for step in range(2):
        engine.backward(loss_of_hard(model, plain_batch(step)))
        engine.step()
    newest = engine_weights(engine, model)
    engine.close()
    engine.close()
    assert not any("forward" in vars(module) or module._forward_pre_hooks for module in model.modules())
    if WAYS[way]["weights"] != "disk":
        expected = stack()
        expected.load_state_dict(newest)
        for network in (model, expected):
            loss_of_hard(network, plain_batch(5)).backward()
        for ours, theirs in zip(model.parameters(), expected.parameters(), strict=True):
            assert torch.equal(ours, theirs)
            assert ours.grad is not None and theirs.grad is not None
            assert torch.equal(ours.grad, theirs.grad)
    held = weakref.ref(engine)
    del engine
    gc.collect()
    assert held() is None


def test_a_short_last_step_is_the_mean_over_the_micro_batches_it_has() -> None:
    start, data = MODELS["llama"](), [batches(2)]
    ours = train_engine(start, data, SeparateMemory(1), gradient_accumulation=5)
    assert_trains_the_same(ours, train_plain(start, data), start)


# Units


class Experts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.experts = nn.ModuleList(nn.Linear(2, 2) for _ in range(4))
        self.gate = nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        raise NotImplementedError


def test_the_blocks_are_found_from_the_tree() -> None:
    assert list(find_blocks(MODELS["gpt2"](layers=3))) == [f"transformer.h.{i}" for i in range(3)]
    assert list(find_blocks(MODELS["llama"](layers=1))) == ["model.layers.0"]
    assert find_blocks(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))) == {}
    experts = nn.Module()
    experts.layers = nn.ModuleList(Experts() for _ in range(2))
    assert list(find_blocks(experts)) == ["layers.0", "layers.1"]


def test_every_parameter_is_in_one_unit_and_tied_ones_appear_once() -> None:
    for make in MODELS.values():
        model = make()
        found = find_units(model)
        listed = [id(p) for unit in found for p in unit.parameters.values()]
        assert sorted(listed) == sorted(id(p) for p in model.parameters())
        assert [s.kind for s in found] == ["outer", "block", "block", "outer"]
    gpt2 = MODELS["gpt2"]()
    assert "lm_head.weight" not in [n for s in find_units(gpt2) for n in s.parameters]
    with OffloadEngine(gpt2, device="cpu"):
        assert gpt2.lm_head.weight is gpt2.transformer.wte.weight


def test_a_module_without_trainable_parameters_is_refused() -> None:
    with pytest.raises(ValueError, match="no trainable parameter"):
        OffloadEngine(nn.Linear(2, 2).requires_grad_(False), device="cpu")
