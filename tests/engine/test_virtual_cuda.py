"""The engine's own CUDA path on a virtual CUDA device: memory, streams, and what a driver refuses.

That every order gives the same bits without a race is in `test_cuda.py` and `test_ordering.py`.
"""

from __future__ import annotations

import contextlib
import gc
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from device_places import CONFIGURATIONS, steps_of, train_at
from plain_torch import SETTINGS
from small_models import CHUNK_BYTES, MODELS, batches, clone, loss_of
from torch import Tensor

from workbench.engine import OffloadEngine
from workbench.engine.blocks import activation_offload
from workbench.engine.devices.cuda_device import CudaDevice
from workbench.virtual_cuda import Order, VirtualCuda

LAYERS = 5  # more than the slots of streamed weights: each slot is used again
STEPS = 2  # the first step's update, and what it has to be over for

Options = dict[str, Any]


@pytest.fixture(scope="module")
def start() -> Any:
    """A model that is made before `torch.cuda` is replaced: transformers asks for CUDA when it is imported."""
    return MODELS["gpt2"](dropout=0.1, layers=LAYERS)


@pytest.fixture(autouse=True)
def _small_activations_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(activation_offload, "SMALLEST_BYTES", 1024)


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
    options = CONFIGURATIONS[name]
    train_at("virtual", None, start, steps_of(options.get("gradient_accumulation", 1), STEPS), **options)
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
