"""The step of `large`, in its own process, with the time and the disk traffic of each part."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from benchmarks.engine.contenders import LEARNING_RATE, WEIGHT_DECAY, batch, trainers_loss
from benchmarks.engine.disk_traffic import disk_traffic
from benchmarks.engine.large import shape_with
from benchmarks.engine.processes import tell
from benchmarks.engine.shapes import meta_model
from workbench.training.measurements import peak_host_bytes


class Parts:
    """The parts of the run so far."""

    def __init__(self) -> None:
        self.found: dict[str, dict[str, Any]] = {}

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Time what is inside, and say so."""
        tell(f"{name} begins")
        before, begin = disk_traffic(), time.perf_counter()
        yield
        moved = disk_traffic().since(before)
        seconds = time.perf_counter() - begin
        self.found[name] = {"seconds": seconds, "read_bytes": moved.read, "written_bytes": moved.written}
        tell(f"{name} took {seconds:.1f} s; peak resident size {peak_host_bytes() / 2**30:.2f} GiB")


def run(case: dict[str, Any]) -> dict[str, Any]:
    """Build, one forward, one backward, one step, wait for all of it."""
    from workbench.engine import OffloadEngine
    from workbench.optimizer import AdamW

    parts = Parts()
    shape = shape_with(case["layers"])
    ids = batch(shape, case["tokens"])
    model, initialize = meta_model(shape)
    built = 0

    def materialize(unit: Any) -> None:
        nonlocal built
        initialize(unit)
        built += 1
        tell(f"  unit {built}: {unit.name}; peak resident size {peak_host_bytes() / 2**30:.2f} GiB")

    with parts.part("building"):
        engine = OffloadEngine(
            model,
            optimizer=AdamW(lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY),
            weights="disk",
            state="disk",
            state_format=case["state_format"],
            precision="bf16",
            disk_path=case["folder"],
            device="cpu",
            materialize=materialize,
        )
    with engine:
        loss_of = trainers_loss(model, ids[:, :16])
        with parts.part("forward"):
            loss = loss_of(ids)
        with parts.part("backward"):
            engine.backward(loss)
        with parts.part("step"):
            result = engine.step().result()
        memory_breakdown = engine.memory()
    return {
        "parameters": shape.parameters,
        "parts": parts.found,
        "lane_seconds": {lane.value: seconds for lane, seconds in result.lane_seconds.items()},
        "exposed_seconds": {lane.value: seconds for lane, seconds in result.exposed_seconds.items()},
        "loss": loss.item(),
        "grad_norm": result.grad_norm,
        "peak_bytes": peak_host_bytes(),
        "memory_breakdown": memory_breakdown,
    }
