"""Where the CUDA suite's checks run: in separate memories of the CPU, on the virtual CUDA device, and on a real one.

A check is written once, for a place; its CUDA third is marked `gpu` and is left out where torch sees no such device.
"""

from __future__ import annotations

import contextlib
import os
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from plain_torch import SETTINGS, Outcome, train_engine
from small_models import SeparateMemory, batches, clone, loss_of
from torch import Tensor, nn

from workbench.engine.devices.cuda_device import CudaDevice
from workbench.engine.devices.device import Device, Event, Landing
from workbench.optimizer.reference import ReferenceParameter, split_float32
from workbench.timeline import Lane
from workbench.virtual_cuda import Order, VirtualCuda

# cuBLAS reads it when it is first used.
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

NEEDS_CUDA = (
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device"),
)
PLACES = (
    "separate",
    pytest.param("virtual", marks=pytest.mark.slow),
    pytest.param("cuda", marks=NEEDS_CUDA),
)
ORDERS = (Order.LAZY, Order.COPIES_FIRST, Order.COMPUTE_FIRST)
"""Of the virtual device's first seeds; all others are random orders."""
CONFIGURATIONS: dict[str, dict[str, Any]] = {
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
LONGEST_CYCLES = 4_000_000
"""About two milliseconds."""


class DelayedCuda(CudaDevice):
    """Every stream is held up at random: compute at each mark, copies before each one, lanes before each task."""

    def __init__(self, seed: int) -> None:
        super().__init__(torch.device("cuda"))
        self._chance = {name: random.Random(f"{seed}/{name}") for name in (*Lane, "compute", "beside")}

    def _delay(self, name: Any) -> None:
        # Mostly short, now and then long: both orders of every pair of streams come up.
        torch.cuda._sleep(int(self._chance[name].random() ** 4 * LONGEST_CYCLES))

    def record_event(self) -> Event:
        self._delay("compute")
        return super().record_event()

    def begin_copy(self, lane: Lane, destination: Tensor, source: Tensor, after: Event) -> Landing:
        with torch.cuda.stream(self._lanes[lane].stream):
            self._delay(lane)
        return super().begin_copy(lane, destination, source, after)

    def copy_all(self, lane: Lane, copies: Sequence[tuple[Tensor, Tensor]], after: Event) -> None:
        with torch.cuda.stream(self._lanes[lane].stream):
            self._delay(lane)
        super().copy_all(lane, copies, after)

    def copy_async(self, lane: Lane, destination: Tensor, source: Tensor, after: Event) -> Event:
        with torch.cuda.stream(self._beside_compute[lane].stream):
            self._delay("beside")
        return super().copy_async(lane, destination, source, after)

    def before_task(self, lane: Lane) -> None:
        super().before_task(lane)
        time.sleep(self._chance[lane].random() ** 4 * 0.002)


def steps_of(accumulation: int, steps: int) -> list[list[Tensor]]:
    data = iter(batches(steps * accumulation))
    return [[next(data) for _ in range(accumulation)] for _ in range(steps)]


def torch_device(place: str) -> torch.device:
    """Return where the same is computed without the engine: on a CPU, but for real CUDA."""
    return torch.device("cuda" if place == "cuda" else "cpu")


@contextlib.contextmanager
def opened(place: str, seed: int | None = None) -> Iterator[Device]:
    """Open a fresh device; with a `seed` all that can be late is late at random, without one nothing is."""
    if place == "separate":
        yield SeparateMemory(seed)
    elif place == "cuda":
        yield CudaDevice(torch.device("cuda")) if seed is None else DelayedCuda(seed)
    else:
        order = Order.AT_ONCE if seed is None else Order.RANDOM if seed >= len(ORDERS) else ORDERS[seed]
        with VirtualCuda(order, seed or 0) as cuda:
            yield CudaDevice(torch.device("cuda", 0))
        assert not cuda.races and not cuda.faults


def train_at(
    place: str, seed: int | None, start: nn.Module, steps: Sequence[Sequence[Tensor]], **options: Any
) -> Outcome:
    """Train at `place`, where nothing waits for compute but the engine; the outcome is on the CPU."""
    with opened(place, seed) as device:
        # At first: an upload from pageable memory waits for compute.
        there = [[ids.to(device.torch_device) for ids in micro_batches] for micro_batches in steps]
        outcome = train_engine(start, there, device, **options)
        parameters = {name: weight.cpu() for name, weight in outcome.parameters.items()}
        state = {name: kept.cpu() for name, kept in outcome.state.items()}
        return replace(outcome, parameters=parameters, state=state)


def loss_at(place: str) -> Any:
    """`loss_of` for batches that are on the CPU and a model that is trained by torch alone."""
    return lambda model, ids: loss_of(model, ids.to(torch_device(place)))


def train_16_bits(
    start: nn.Module, data: list[Tensor], dtype: torch.dtype, compute: torch.dtype, scale: float, place: str
) -> Outcome:
    """Weights rounded to `dtype` before each step, computed in `compute`; AdamW on fp32 masters, on the CPU."""
    model = clone(start).to(torch_device(place))  # buffers stay as they are
    kept = {
        n: ReferenceParameter.fresh(p.detach().clone(), decay=p.dim() >= 2)
        for n, p in start.named_parameters()
    }
    outcome = Outcome()
    for ids in data:
        for name, parameter in model.named_parameters():
            master = kept[name].parameter
            rounded = split_float32(master)[0] if dtype == torch.bfloat16 else master.to(dtype)
            parameter.data = rounded.to(torch_device(place), compute)
            parameter.grad = None
        loss = loss_at(place)(model, ids)
        (loss * scale).backward()
        outcome.losses.append(loss.item())
        for name, parameter in model.named_parameters():
            assert parameter.grad is not None
            kept[name].update(parameter.grad.to(dtype).float().cpu() / scale, SETTINGS)
    outcome.parameters.update({name: k.parameter for name, k in kept.items()})
    return outcome
