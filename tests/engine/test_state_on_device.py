"""State on a device of its own: how many operations an update takes, what they move, and that the host does not wait.

Counted on the CPU with a memory apart, which takes the same way, and on the virtual CUDA device.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch
from plain_torch import SETTINGS
from small_models import MODELS, SeparateMemory, batches, clone, loss_of
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

from workbench.engine import AdamW, NonFiniteGradientsError, OffloadEngine, device_arithmetic, unit_memory
from workbench.engine.arithmetic import StateViews
from workbench.engine.device_arithmetic import DeviceArithmetic, DeviceTable
from workbench.engine.devices.cuda_device import CudaDevice
from workbench.engine.step_tasks import StepTasks
from workbench.optimizer.reference import ReferenceParameter
from workbench.timeline import Kind
from workbench.virtual_cuda import Order, VirtualCuda

aten = torch.ops.aten
NOT_LAUNCHED = {aten.empty, aten.empty_like, aten.empty_strided, aten.detach}
UPDATE_KINDS = (Kind.NORM, Kind.VERDICT, Kind.UPDATE, Kind.UPLOAD)


class Counter(TorchDispatchMode):
    """Counts the operations that launch something, and the bytes of what they read and write."""

    def __init__(self) -> None:
        super().__init__()
        self.launches: list[str] = []
        self.nbytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        results = func(*args, **kwargs)
        if func.is_view or func.overloadpacket in NOT_LAUNCHED:
            return results
        self.launches.append(func.overloadpacket.__name__)
        read = written = 0
        for number, argument in enumerate(func._schema.arguments):
            value = kwargs.get(argument.name, args[number] if number < len(args) else None)
            size = sum(x.nbytes for x in tree_flatten(value)[0] if isinstance(x, Tensor))
            writes = argument.alias_info is not None and argument.alias_info.is_write
            copies = writes and func.overloadpacket in (aten.copy_, aten._foreach_copy_)
            read += 0 if copies or argument.name == "out" else size
            written += size if writes else 0
        if not any(argument.alias_info is not None for argument in func._schema.arguments):
            written += sum(x.nbytes for x in tree_flatten(results)[0] if isinstance(x, Tensor))
        self.nbytes += read + written
        return results


@contextmanager
def counted_updates(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counter]:
    """Count what the engine does from a step's norm to its new weights."""
    counter, inner = Counter(), StepTasks.perform

    def perform(self: StepTasks, task: Any) -> None:
        if task.kind in UPDATE_KINDS:
            with counter:
                inner(self, task)
        else:
            inner(self, task)

    monkeypatch.setattr(StepTasks, "perform", perform)
    yield counter


@pytest.mark.parametrize("clipping", [0.0, 0.5])
@pytest.mark.parametrize("accumulation", [1, 2])
@pytest.mark.parametrize(
    ("precision", "per_parameter"),
    # norm, kernel; in 16 bits also gradients made wide and masters made narrow
    [("fp32", 4 + 32), ("bf16", 2 + 6 + 32 + 6), ("fp16", 2 + 6 + 32 + 6)],
)
def test_a_step_of_a_whole_model_takes_thirteen_launches(
    monkeypatch: pytest.MonkeyPatch, precision: Any, per_parameter: int, accumulation: int, clipping: float
) -> None:
    model = MODELS["gpt2"](layers=3)
    with OffloadEngine(
        model,
        optimizer=SETTINGS,
        device=SeparateMemory(),
        state="device",
        precision=precision,
        compute="same",
        gradient_clipping=clipping,
        gradient_accumulation=accumulation,
        chunk_bytes=1,
    ) as engine:
        for batch in batches(accumulation):
            engine.backward(loss_of(model, batch))
        engine.step().result()
        parameters = engine.layout.trainable_parameters
        with counted_updates(monkeypatch) as counter:
            for batch in batches(accumulation):
                engine.backward(loss_of(model, batch))
            report = engine.step()
        before = len(counter.launches)
        with counter:
            assert not report.result().skipped
    assert len(counter.launches) - before <= 1, "one number is copied down"
    assert len(counter.launches) <= 13, counter.launches
    if accumulation > 1 and precision != "fp32":
        per_parameter += 2 - 6  # the sums are wide
    small = 240 * len(model.state_dict())  # norms of parameters, steps
    assert counter.nbytes <= per_parameter * parameters + small


@pytest.mark.parametrize(
    ("options", "waits"),
    [
        ({"precision": "fp32"}, False),
        ({"precision": "bf16", "gradient_clipping": 0.5}, False),
        ({"precision": "fp16", "gradient_clipping": 0.5}, False),
        ({"precision": "bf16", "gradient_accumulation": 2, "gradient_clipping": 0.5}, False),
        ({"precision": "fp32", "state": "host", "gradient_clipping": 0.5}, True),
    ],
    ids=str,
)
def test_the_host_does_not_wait_from_backward_to_the_next_forward(
    options: dict[str, Any], waits: bool
) -> None:
    start = MODELS["gpt2"](layers=3)
    with VirtualCuda(Order.LAZY) as cuda:
        model = clone(start)
        options = {"state": "device", "device": CudaDevice(torch.device("cuda", 0)), **options}
        accumulation = options.get("gradient_accumulation", 1)
        with OffloadEngine(model, optimizer=SETTINGS, **options) as engine:
            on_device = [batch.to("cuda") for batch in batches(3 * accumulation)]
            reports = []
            before = cuda.queues.host_waits
            loss_of(model, on_device[0])
            own = cuda.queues.host_waits - before  # transformers looks at the positions
            for step in range(3):
                for batch in on_device[step * accumulation :][:accumulation]:
                    loss = loss_of(model, batch)
                    # The step before is read here, where the device has this forward to do.
                    before = cuda.queues.host_waits
                    engine.backward(loss)
                    waited = cuda.queues.host_waits - before
                    assert waits or waited <= (step > 0)
                before = cuda.queues.host_waits
                reports.append(engine.step())
                loss_of(model, on_device[0])
                assert bool(cuda.queues.host_waits - before - own) == waits
            assert all(math.isfinite(report.result().grad_norm) for report in reports)
    assert not cuda.races and not cuda.faults


# Numbers


def pieces(count: int, dtype: torch.dtype) -> tuple[list[StateViews], list[Tensor]]:
    generator = torch.Generator().manual_seed(3)
    views, gradients = [], []
    for number in range(count):
        size = 100 + 37 * number
        values = torch.randn(size, generator=generator)
        views.append(
            StateViews(
                decay=number % 2 == 0,
                learning_rate_scale=0.5 if number == 4 else 1.0,
                state_format="exact",
                offset=0,
                random_stream=number,
                master=values.to(dtype).float(),
                working=None if dtype == torch.float32 else values.to(dtype),
                exp_avg=torch.zeros(size),
                exp_avg_sq=torch.zeros(size),
            )
        )
        gradients.append(torch.randn(size, generator=generator).to(dtype))
    return views, gradients


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("coupled", [False, True])
@pytest.mark.parametrize("clipping", [0.0, 0.5])
def test_updates_are_the_references_in_float64(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, coupled: bool, clipping: float
) -> None:
    monkeypatch.setattr(device_arithmetic, "UPDATE_SCRATCH_BYTES", 1000)  # several groups
    settings = AdamW(lr=1e-2, betas=(0.9, 0.95), eps=1e-3, weight_decay=0.1, coupled_decay=coupled)
    arithmetic = DeviceArithmetic(SeparateMemory())
    views, gradients = pieces(6, dtype)
    references = [
        ReferenceParameter.fresh(v.master.double(), decay=v.decay) for v in views if v.master is not None
    ]
    table = arithmetic.table(views)
    unscale = 1 / 3
    for step in range(1, 4):
        # One parameter comes late, and one is missing in the second step: each counts its own steps.
        given: list[Tensor | None] = list(gradients)
        given[0] = None if step == 1 else given[0]
        given[3] = None if step == 2 else given[3]
        table.set_gradients([None if g is None else g.clone() for g in given])
        table.set_steps([reference.step + 1 for reference in references])
        arithmetic.sum_of_squares(table)
        arithmetic.apply(table, settings, arithmetic.judge(table, unscale, clipping))
        norm = math.sqrt(sum(float(g.double().square().sum()) for g in given if g is not None))
        elements = sum(g.numel() for g in given if g is not None)
        assert abs(table.read_norm() - norm) <= elements * torch.finfo(torch.float32).eps * norm
        scale = unscale * (min(1.0, clipping / (norm * unscale + 1e-6)) if clipping else 1.0)
        for view, reference, gradient in zip(views, references, given, strict=True):
            own = replace(settings, lr=settings.lr * view.learning_rate_scale)
            reference.update(None if gradient is None else gradient.double(), own, scale)
    eps = torch.finfo(torch.float32).eps
    for view, reference in zip(views, references, strict=True):
        assert view.master is not None
        # The clip factor carries the norm's rounding; a step moves a weight by some lr, and rounds it a few times.
        apart = 3 * (settings.lr * (elements + 64) * eps + 8 * eps * reference.parameter.abs())
        assert bool(((view.master - reference.parameter).abs() <= apart).all())
        if view.working is not None:
            assert torch.equal(view.working, view.master.to(dtype))


@pytest.mark.parametrize("bad", [math.inf, math.nan])
def test_a_step_that_is_not_finite_is_left_out_on_the_device(bad: float) -> None:
    arithmetic = DeviceArithmetic(SeparateMemory())
    views, gradients = pieces(3, torch.bfloat16)
    gradients[1][5] = bad
    before = [[t.clone() for t in v if isinstance(t, Tensor)] for v in views]
    table = arithmetic.table(views)
    table.set_gradients(gradients)
    table.set_steps([1, 1, 1])
    assert not arithmetic.measure_and_update(table, SETTINGS, 1.0)
    after = [[t for t in v if isinstance(t, Tensor)] for v in views]
    for mine, kept in zip(after, before, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(mine, kept, strict=True))
    assert not math.isfinite(table.read_norm())
    assert [math.isfinite(float(table.piece_partials(i))) for i in range(3)] == [True, False, True]


@pytest.mark.parametrize("overlap", ["exact", "serial"])
@pytest.mark.parametrize("clipping", [0.0, 0.5])
def test_a_skipped_step_is_found_by_the_next_backward_and_names_its_parameter(
    overlap: Any, clipping: float
) -> None:
    model = MODELS["gpt2"](layers=2)
    twin = clone(model)
    options: dict[str, Any] = {"state": "device", "overlap": overlap, "gradient_clipping": clipping}
    outcomes = []
    for trained, poisoned in ((model, True), (twin, False)):
        with OffloadEngine(
            trained, optimizer=SETTINGS, device=SeparateMemory(), precision="bf16", compute="same", **options
        ) as engine:
            reports = []
            for number, batch in enumerate(batches(3)):
                if number == 1 and not poisoned:
                    continue
                loss = loss_of(trained, batch)
                engine.backward(loss * (math.nan if number == 1 else 1.0))
                reports.append(engine.step())
            wanted_skips = [False, True, False] if poisoned else [False, False]
            assert [report.result().skipped for report in reports] == wanted_skips
            outcomes.append((engine.counters()["parameter_steps"], dict(next(iter(engine.weights())))))
    (steps, weights), (wanted_steps, wanted) = outcomes
    assert steps == wanted_steps
    assert all(torch.equal(weights[name], wanted[name]) for name in wanted)


@pytest.mark.parametrize("bad_tokens", ["everywhere", "on the device alone"])
def test_units_on_the_device_beside_others_write_nothing_of_a_step_that_is_not_finite(
    bad_tokens: str,
) -> None:
    model = MODELS["gpt2"](layers=3)
    with OffloadEngine(
        model, optimizer=SETTINGS, device=SeparateMemory(), device_fraction=0.5, precision="fp32"
    ) as engine:
        engine.backward(loss_of(model, batches(1)[0]))
        engine.step().result()
        first = next(p for n, p in model.named_parameters() if n.endswith("h.0.attn.c_attn.weight"))
        before = first.detach().clone()
        assert not before.isnan().any()
        if bad_tokens == "everywhere":
            engine.backward(loss_of(model, batches(1)[0]) * math.nan)
            assert engine.step().result().skipped
        else:
            last = next(t for name, t in engine.state() if name.endswith("h.2/master"))
            assert isinstance(last, Tensor)
            since = last.clone()

            def spoil_when_the_host_has_updated(gradient: Tensor) -> Tensor:
                deadline = time.monotonic() + 30
                while last.equal(since) and time.monotonic() < deadline:
                    time.sleep(0.001)
                return gradient * math.nan

            handle = first.register_hook(spoil_when_the_host_has_updated)
            engine.backward(loss_of(model, batches(1)[0]))
            handle.remove()
            with pytest.raises(NonFiniteGradientsError, match="had been updated already"):
                engine.step().result()
        assert torch.equal(first.detach(), before)


def test_state_has_the_same_names_and_values_in_every_tier(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unit_memory, "UPDATE_SCRATCH_BYTES", 4000)  # parameters in several pieces
    start = MODELS["gpt2"](layers=2)
    states: dict[str, dict[str, Tensor]] = {}
    for tier in ("device", "host"):
        model = clone(start)
        options: dict[str, Any] = {"state": tier, "precision": "bf16", "compute": "same"}
        with OffloadEngine(model, optimizer=SETTINGS, device=SeparateMemory(), **options) as engine:
            states[tier] = {
                n: t.clone() if isinstance(t, Tensor) else t.read(0, t.numel()) for n, t in engine.state()
            }
            engine.backward(loss_of(model, batches(1)[0]))
            engine.step().result()
            counters = engine.counters()
            trained = {
                n: t.clone() if isinstance(t, Tensor) else t.read(0, t.numel()) for n, t in engine.state()
            }
        fresh = clone(start)
        for other in ("host", "device"):
            with OffloadEngine(
                clone(fresh), optimizer=SETTINGS, device=SeparateMemory(), **{**options, "state": other}
            ) as engine:
                for name, tensor in reversed(list(engine.state())):
                    if isinstance(tensor, Tensor):
                        tensor.copy_(trained[name])
                    else:
                        tensor.write(0, trained[name])
                engine.restore(counters)
                for name, tensor in engine.state():
                    held = tensor if isinstance(tensor, Tensor) else tensor.read(0, tensor.numel())
                    assert torch.equal(held, trained[name]), name
    assert states["device"].keys() == states["host"].keys()
    for name, tensor in states["device"].items():
        assert tensor.dtype == states["host"][name].dtype and torch.equal(tensor, states["host"][name]), name


def test_the_norm_is_right_to_fp32s_last_digits_and_for_gradients_whose_squares_overflow() -> None:
    gradients = [torch.randn(3_000_001, generator=torch.Generator().manual_seed(n)) * 1e20 for n in range(2)]
    empty = torch.zeros(0)
    table = DeviceTable([StateViews(False, 1.0, "exact", 0, 0, empty, empty) for _ in gradients])
    table.set_gradients(gradients)
    DeviceArithmetic(SeparateMemory()).sum_of_squares(table)
    right = torch.stack([g.double().square().sum() for g in gradients]).sum().sqrt()
    assert table.norm is not None and table.norm.dtype == torch.float32
    assert abs(table.norm.double() / right - 1) < 2.0**-23
