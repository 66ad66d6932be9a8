"""The engine's own CUDA path on a virtual CUDA device: the same bits in every order that CUDA allows, and no race."""

from __future__ import annotations

import contextlib
import gc
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from plain_torch import SETTINGS, Outcome, assert_same_bits, train_engine
from small_models import CHUNK_BYTES, MODELS, SeparateMemory, batches, clone, loss_of
from torch import Tensor

from workbench.engine import OffloadEngine
from workbench.engine.blocks import activation_offload
from workbench.engine.devices.cuda_device import CudaDevice
from workbench.virtual_cuda import Order, VirtualCuda

LAYERS = 5  # more than the slots of streamed weights: each slot is used again
STEPS = 2  # the first step's update, and what it has to be over for
ORDERS = [
    (Order.LAZY, 0),
    (Order.AT_ONCE, 0),
    (Order.COPIES_FIRST, 0),
    (Order.COMPUTE_FIRST, 0),
    *((Order.RANDOM, seed) for seed in range(20)),
]

Options = dict[str, Any]
CONFIGURATIONS: dict[str, Options] = {
    "state on the host": {"gradient_clipping": 0.5},
    "without clipping": {},
    "without clipping, all gradients wait": {"all_gradients_wait": True},
    "serial": {"overlap": "serial", "gradient_clipping": 0.5},
    "delayed": {"overlap": "delayed", "delay_warmup": 1, "gradient_clipping": 0.5},
    "accumulated": {"gradient_accumulation": 2, "gradient_clipping": 0.5},
    "summed on the device": {"gradient_accumulation": 2, "gradient_sums": "device", "gradient_clipping": 0.5},
    "weights on the host": {"weights": "host", "gradient_clipping": 0.5},
    "weights on the host, delayed": {"weights": "host", "overlap": "delayed", "delay_warmup": 1},
    "weights on the host, accumulated": {"weights": "host", "gradient_accumulation": 2},
    "state on the device": {"state": "device", "gradient_clipping": 0.5},
    "state on both": {"device_fraction": 0.4, "gradient_clipping": 0.5},
    "activations on the host": {"activations": "host", "gradient_clipping": 0.5},
    "all on the host": {"weights": "host", "activations": "host", "gradient_clipping": 0.5},
    "bf16": {"precision": "bf16", "gradient_clipping": 0.5},
    "fp16": {"precision": "fp16", "weights": "host", "gradient_clipping": 0.5},
    "without checkpointing": {"activation_checkpointing": False},
}


@pytest.fixture(scope="module")
def start() -> Any:
    """A model that is made before `torch.cuda` is replaced: transformers asks for CUDA when it is imported."""
    return MODELS["gpt2"](dropout=0.1, layers=LAYERS)


@pytest.fixture(autouse=True)
def _small_activations_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(activation_offload, "SMALLEST_BYTES", 1024)


def steps_for(options: Options) -> list[list[Tensor]]:
    accumulation = options.get("gradient_accumulation", 1)
    numbers = iter(batches(STEPS * accumulation))
    return [[next(numbers) for _ in range(accumulation)] for _ in range(STEPS)]


def train(
    start: Any, order: Order, seed: int, options: Options, **of_device: Any
) -> tuple[Outcome, VirtualCuda]:
    def compute_loss(model: Any, ids: Tensor) -> Tensor:
        return loss_of(model, ids.to("cuda"))

    with VirtualCuda(order, seed, **of_device) as cuda:
        device = CudaDevice(torch.device("cuda", 0))
        outcome = train_engine(start, steps_for(options), device, compute_loss=compute_loss, **options)
        on_host = {name: weight.cpu() for name, weight in outcome.parameters.items()}
        state = {name: kept.cpu() for name, kept in outcome.state.items()}
    return replace(outcome, parameters=on_host, state=state), cuda


@pytest.fixture(scope="module")
def wanted(start: Any) -> Callable[[str], Outcome]:
    """The outcome of a configuration where every operation runs as it is issued.

    In two memories of the CPU; where state is on the device on the virtual one, as a CPU's is updated by C.
    """
    known: dict[str, Outcome] = {}

    def outcome(name: str) -> Outcome:
        if name not in known:
            options = CONFIGURATIONS[name]
            if options.get("state") == "device" or "device_fraction" in options:
                known[name] = train(start, Order.AT_ONCE, 0, options)[0]
            else:
                known[name] = train_engine(
                    start, steps_for(options), SeparateMemory(), compute="same", **options
                )
        return known[name]

    return outcome


@pytest.mark.parametrize(
    ("order", "seed"),
    [ORDERS[0], *(pytest.param(*each, marks=pytest.mark.slow) for each in ORDERS[1:])],
    ids=lambda value: value.value if isinstance(value, Order) else str(value),
)
@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_every_order_gives_the_same_bits_without_a_race(
    start: Any, wanted: Callable[[str], Outcome], name: str, order: Order, seed: int
) -> None:
    outcome, cuda = train(start, order, seed, CONFIGURATIONS[name])
    assert_same_bits(wanted(name), outcome)
    assert not cuda.races and not cuda.faults


@contextlib.contextmanager
def replaced(holder: Any, name: str, value: Any) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(holder, name, value)
        yield


# What is allocated when


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_the_engine_allocates_all_its_device_memory_before_the_first_step(
    start: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the first backward its slots would be cut out of what is free at the peak, and lie scattered ever after."""
    made: list[int] = []
    at_the_start: list[int] = []
    empty, set_up = CudaDevice.empty, OffloadEngine.__init__

    def noting_empty(self: CudaDevice, elements: int, dtype: torch.dtype) -> Tensor:
        made.append(elements * dtype.itemsize)
        return empty(self, elements, dtype)

    def noting_set_up(self: OffloadEngine, *args: Any, **kwargs: Any) -> None:
        set_up(self, *args, **kwargs)
        at_the_start.extend(made)
        slots = self._scheduler._plan.sizes.device_slots.total
        assert not slots or made.count(slots) == 1, "all gradient slots are cut from one piece"

    monkeypatch.setattr(CudaDevice, "empty", noting_empty)
    monkeypatch.setattr(OffloadEngine, "__init__", noting_set_up)
    train(start, Order.AT_ONCE, 0, CONFIGURATIONS[name])
    assert made == at_the_start and made


@pytest.mark.parametrize("overlap", ["exact", "serial"])
def test_a_few_chunks_of_gradients_are_on_the_device_at_a_time(start: Any, overlap: str) -> None:
    with VirtualCuda(Order.AT_ONCE):
        engine = OffloadEngine(
            clone(start), device="cuda", precision="fp32", chunk_bytes=CHUNK_BYTES, overlap=overlap
        )
        with engine:
            engine.backward(loss_of(engine.model, batches(1)[0].to("cuda")))
            engine.step()
            units = engine._scheduler._plan.layout.units
            slots = engine._scheduler._plan.sizes.device_slots
            assert engine._runtime.grad_hooks.device_slots.nbytes == slots.total
            assert slots.number == 2 * max(len(unit.chunks) for unit in units) + 2
            assert slots.number < sum(len(unit.chunks) for unit in units), "not all of them"


def test_nothing_of_a_micro_batch_is_kept_when_it_has_been_summed(
    start: Any, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    events: weakref.WeakSet[Any] = weakref.WeakSet()
    record_event = CudaDevice.record_event

    def noting(self: CudaDevice) -> Any:
        event = record_event(self)
        events.add(event)
        return event

    monkeypatch.setattr(CudaDevice, "record_event", noting)
    alive = []
    gc.freeze()  # what other tests have left need not be looked through 64 times
    request.addfinalizer(gc.unfreeze)
    with VirtualCuda(Order.AT_ONCE):
        engine = OffloadEngine(
            clone(start),
            device="cuda",
            precision="fp32",
            chunk_bytes=CHUNK_BYTES,
            gradient_accumulation=64,
            overlap="serial",
        )
        with engine:
            for ids in batches(64):
                engine.backward(loss_of(engine.model, ids.to("cuda")))
                gc.collect()
                hooks = engine._runtime.grad_hooks
                assert not hooks._full and not hooks._summed and not hooks._owned
                alive.append(len(events))
            engine.step()
    assert max(alive) == alive[0] < 20


# Memory that the driver registers


def test_host_memory_is_unregistered_at_close_even_when_the_device_has_failed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with VirtualCuda(Order.LAZY) as cuda:
        device = CudaDevice(torch.device("cuda", 0))
        kept = device.pinned_zeros(1000, torch.float32)
        assert cuda.pinned.holds(kept)
        with replaced(torch.cuda, "synchronize", broken), pytest.raises(RuntimeError, match="illegal memory"):
            device.close()
        assert not cuda.pinned.registered and kept.numel() == 1000
    assert not cuda.faults


def broken(device: Any) -> None:
    raise RuntimeError("an illegal memory access was encountered")


@pytest.mark.parametrize("options", [{"overlap": "delayed", "delay_warmup": 0}, {}], ids=["delayed", "exact"])
def test_a_forward_between_backward_and_step_reads_weights_that_nobody_writes(
    start: Any, options: Options
) -> None:
    def looked_at(order: Order) -> tuple[list[float], VirtualCuda]:
        model, losses = clone(start), []
        with VirtualCuda(order) as cuda:
            with OffloadEngine(
                model, optimizer=SETTINGS, device="cuda", precision="fp32", chunk_bytes=CHUNK_BYTES, **options
            ) as engine:
                for ids in batches(STEPS):
                    there = ids.to("cuda")
                    torch.manual_seed(0)
                    engine.backward(loss_of(model, there))
                    losses.append(loss_of(model, there).detach())
                    engine.step()
            return [loss.item() for loss in losses], cuda

    at_once, _ = looked_at(Order.AT_ONCE)
    lazy, cuda = looked_at(Order.LAZY)
    assert at_once == lazy and not cuda.races


def test_a_model_that_is_called_on_another_stream_is_refused(start: Any) -> None:
    model = clone(start)
    with (
        VirtualCuda(),
        OffloadEngine(model, device="cuda", precision="fp32", chunk_bytes=CHUNK_BYTES) as engine,
    ):
        ids = batches(1)[0].to("cuda")
        with (
            torch.cuda.stream(torch.cuda.Stream(engine.device.torch_device)),
            pytest.raises(RuntimeError, match="another CUDA stream"),
        ):
            loss_of(model, ids)
        engine.backward(loss_of(model, ids))
        assert not engine.step().result().skipped
