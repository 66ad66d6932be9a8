"""Gradients of several micro-batches summed on the device, for state on the host: the bits of sums on the host, and one
copy a step over the link."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from plain_torch import assert_same_bits, assert_trains_the_same, train_engine, train_plain
from small_models import MODELS, SeparateMemory, batches, clone, loss_of
from torch import Tensor

from workbench.engine import OffloadEngine
from workbench.engine.devices.cuda_device import CudaDevice
from workbench.engine.devices.device import Landing
from workbench.timeline import Lane
from workbench.virtual_cuda import VirtualCuda

ACCUMULATION = 4
OPTIONS: dict[str, Any] = {"gradient_accumulation": ACCUMULATION, "compute": "same"}


def steps(count: int = 2) -> list[Any]:
    numbers = batches(count * ACCUMULATION)
    return [numbers[at : at + ACCUMULATION] for at in range(0, len(numbers), ACCUMULATION)]


@pytest.mark.parametrize("overlap", ["exact", "delayed"])
@pytest.mark.parametrize("weights", ["device", "host"])
@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_sums_on_the_device_have_the_bits_of_sums_on_the_host_and_of_serial(
    precision: Any, weights: Any, overlap: Any
) -> None:
    start = MODELS["gpt2"](layers=3)
    options = {**OPTIONS, "precision": precision, "weights": weights, "gradient_clipping": 0.5}
    ways = [
        {"gradient_sums": "host", "overlap": overlap, "delay_warmup": 1},
        {"gradient_sums": "device", "overlap": overlap, "delay_warmup": 1},
        {"gradient_sums": "device", "overlap": "serial"},
    ]
    on_host, on_device, serial = (
        train_engine(start, steps(3), SeparateMemory(seed), **options, **way) for seed, way in enumerate(ways)
    )
    assert_same_bits(on_host, on_device)
    if overlap == "exact":
        assert_same_bits(on_device, serial)


def test_sums_on_the_device_train_what_torch_trains() -> None:
    start = MODELS["gpt2"](layers=2)
    ours = train_engine(start, steps(), SeparateMemory(), gradient_sums="device", **OPTIONS)
    assert_trains_the_same(ours, train_plain(start, steps()), start)


def test_a_parameter_that_some_micro_batch_leaves_out_keeps_its_sum() -> None:
    class Sometimes(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.first, self.second = torch.nn.Linear(8, 8), torch.nn.Linear(8, 1)
            self.never = torch.nn.Linear(3, 3)

    def compute_loss(model: Any, batch: Any) -> Any:
        values, through = batch
        return model.second(model.first(values) if through else values).square().mean()

    generator = torch.Generator().manual_seed(1)
    made = [
        [(torch.randn(4, 8, generator=generator), at != last) for at in range(ACCUMULATION)]
        for last in (3, 0, 9)
    ]
    start = Sometimes()
    ours, reference = (
        train_engine(
            start, made, SeparateMemory(), gradient_sums="device", compute_loss=compute_loss, **OPTIONS
        ),
        train_plain(start, made, compute_loss=compute_loss),
    )
    assert_trains_the_same(ours, reference, start)


class Counting(CudaDevice):
    """Adds up what lanes copy down."""

    down = 0

    def begin_copy(self, lane: Lane, destination: Tensor, source: Tensor, after: Any) -> Landing:
        self.down += destination.nbytes if lane is Lane.DOWNLOAD else 0
        return super().begin_copy(lane, destination, source, after)


def test_gradients_go_over_the_link_once_a_step() -> None:
    start = MODELS["gpt2"](layers=3)
    down: dict[str, int] = {}
    for sums in ("host", "device"):
        with VirtualCuda() as cuda:
            model, device = clone(start), Counting(torch.device("cuda", 0))
            options = {**OPTIONS, "precision": "bf16", "gradient_sums": sums}
            with OffloadEngine(model, device=device, **options) as engine:
                elements = sum(unit.elements for unit in engine.layout.units)
                for batch in batches(ACCUMULATION):
                    engine.backward(loss_of(model, batch.to("cuda")))
                engine.step().result()
        down[sums] = device.down
        assert not cuda.races and not cuda.faults
    assert down["host"] == 2 * elements * ACCUMULATION
    assert down["device"] == 4 * elements
