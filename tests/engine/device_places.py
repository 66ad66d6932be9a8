"""Where the CUDA suite's checks run: on a CUDA device, and on the CPU with a memory of its own, which is everywhere.

A check is written once, for a place; its CUDA half is marked `gpu` and is left out where torch sees no such device.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from plain_torch import SETTINGS, Outcome
from small_models import SeparateMemory, clone, loss_of
from torch import Tensor, nn

from workbench.engine.devices.cuda_device import CudaDevice
from workbench.engine.devices.device import Device, Event
from workbench.optimizer.reference import ReferenceParameter, split_float32
from workbench.timeline import Lane

# cuBLAS reads it when it is first used.
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

NEEDS_CUDA = (
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device"),
)
PLACES = ("separate", pytest.param("cuda", marks=NEEDS_CUDA))
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

    def copy(self, lane: Lane, destination: Tensor, source: Tensor, after: Event) -> None:
        with torch.cuda.stream(self._lanes[lane].stream):
            self._delay(lane)
        super().copy(lane, destination, source, after)

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


def torch_device(place: str) -> torch.device:
    return torch.device("cuda" if place == "cuda" else "cpu")


def open_place(place: str, seed: int | None = None) -> Device:
    """A fresh device; with a `seed` all that can be late is late at random."""
    if place == "separate":
        return SeparateMemory(seed)
    return CudaDevice(torch.device("cuda")) if seed is None else DelayedCuda(seed)


def loss_at(place: str) -> Any:
    """`loss_of` for batches that are on the CPU and a model that is at `place`."""
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
