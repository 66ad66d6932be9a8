"""One case, in its own process: build, warm up, measure, and what it all took.

A step is timed from one moment at which the compute stream is idle to the next; the update of the step before goes on
across it. At the end a few steps are made alone, with nothing left to do before them: what their forward and backward
take less is what a step waits for the update. (Weights that stream through slots are waited for alone, too.)
"""

from __future__ import annotations

import statistics
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.engine.machine import GIB
from benchmarks.engine.processes import tell
from benchmarks.engine.shapes import SEED, Shape
from benchmarks.gpu.cases import Case
from benchmarks.gpu.trainers import Engine, Trained, make_trained
from benchmarks.gpu.watch import DeviceClock, HostWatch
from workbench.profiles.named_machines import load_profile
from workbench.training.measurements import flops_per_token, peak_host_bytes
from workbench.virtual_cuda import VirtualCuda
from workbench.virtual_cuda.clock import VirtualClock

WARM_UP = 3
ALONE = 2
PROFILED = 3
"""Steps in whose course it is seen how long no kernel ran."""
BATCHES = 4
FINISHING_S = 30.0
"""Kept back from the limit for the steps alone, and for giving memory back."""


def run(given: dict[str, Any]) -> dict[str, Any]:
    """Measure the case that `given["case"]` describes; raises whatever it cannot do."""
    if given["virtual"] is None:
        return _run(given, None)
    machine = load_profile(Path(given["virtual"]))
    device_bytes = machine.device.memory_bytes
    with VirtualCuda(machine=machine, values=False, device_bytes=device_bytes) as cuda:
        return _run(given, cuda.clock)


def _run(given: dict[str, Any], virtual: VirtualClock | None) -> dict[str, Any]:
    deadline = time.monotonic() + given["limit_s"] - FINISHING_S
    case = Case(**given["case"])
    device = open_device(given["device"], given["device_gib"])
    start_bytes = peak_host_bytes()
    with HostWatch() as watch:
        begin = time.perf_counter()
        room = {name: given[name] for name in ("all_gradients_wait", "speculation")}
        trained = make_trained(case, device, **room)
        build_s = time.perf_counter() - begin
        tell(f"  built in {build_s:.1f} s; host {peak_host_bytes() / GIB:.1f} GiB")
        try:
            drawn = random_batches(case.shape, given["micro_batch"], given["sequence"])
            batches = [trained.take(ids) for ids in drawn]
            timed = measure(trained, batches, given["steps"], deadline, DeviceClock(device, virtual))
        finally:
            trained.close()
        taken = watch.taken_bytes
    tokens = given["micro_batch"] * given["sequence"]
    per_token = flops_per_token(
        case.shape.parameters, case.shape.n_layer, case.shape.n_embd, given["sequence"]
    )
    step_s = statistics.median(timed["step_s"])
    return {
        "parameters": case.shape.parameters,
        "tokens": tokens,
        "build_s": build_s,
        **timed,
        "median_step_s": step_s,
        "tokens_per_s": tokens / step_s,
        "tflops": per_token * tokens / step_s / 1e12,
        **_lanes(trained, len(timed["step_s"])),
        **_device_peak(device),
        # On the virtual device nothing has values: what this process took says nothing of a run.
        "host_peak_bytes": None if virtual else peak_host_bytes(),
        "host_start_bytes": None if virtual else start_bytes,
        "host_taken_bytes": None if virtual else taken,
    }


def open_device(name: str, device_gib: float) -> torch.device:
    """The device, with no more than `device_gib` of its memory for this process."""
    device = torch.device(name)
    if device.type == "cuda":
        device = torch.device("cuda", device.index or 0)
        torch.cuda.set_device(device)
        total = torch.cuda.get_device_properties(device).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, device_gib * GIB / total), device)
    return device


def random_batches(shape: Shape, micro_batch: int, sequence: int) -> list[Tensor]:
    """Token ids, each of shape (micro_batch, sequence), int64, on the host."""
    generator = torch.Generator().manual_seed(SEED)
    return [
        torch.randint(0, shape.vocab_size, (micro_batch, sequence), generator=generator)
        for _ in range(BATCHES)
    ]


def measure(
    trained: Trained, batches: list[Tensor], steps: int, deadline: float, clock: DeviceClock
) -> dict[str, Any]:
    """Warm up, time up to `steps` steps before the deadline, then some alone. Seconds.

    Raises:
        RuntimeError: the deadline came before the first timed step.
    """
    times: list[float] = []
    losses: list[Tensor] = []
    took_s = 0.0
    for number in range(WARM_UP + steps):
        if number > WARM_UP and time.monotonic() + (1 + ALONE + PROFILED) * took_s > deadline:
            break
        began_at, begin = time.monotonic(), clock.now()
        loss = trained.forward(batches[number % len(batches)])
        trained.finish(loss)
        losses.append(loss.detach())
        clock.settle()
        step_s = clock.now() - begin
        took_s = time.monotonic() - began_at  # the deadline is no virtual one
        tell(f"  step {number + 1}: {step_s:.3f} s")
        if number >= WARM_UP:
            times.append(step_s)
        elif time.monotonic() + (2 + ALONE + PROFILED) * took_s > deadline:
            raise RuntimeError(f"a step takes {took_s:.0f} s: there is no time left to measure one")
    forward, backward = [], []
    for number in range(ALONE):
        trained.settle()
        clock.settle()
        start = clock.mark()
        loss = trained.forward(batches[number % len(batches)])
        between = clock.mark()
        trained.finish(loss)
        stop = clock.mark()
        clock.settle()
        forward.append(clock.seconds(start, between))
        backward.append(clock.seconds(between, stop))

    def profiled() -> None:
        for number in range(PROFILED):
            trained.finish(trained.forward(batches[number % len(batches)]))

    idle_share = clock.idle_share(profiled)
    trained.settle()
    return {
        "idle_share": idle_share,
        "step_s": times,
        "forward_s": min(forward),
        "backward_s": min(backward),
        "losses": [x.item() for x in losses],
    }


def _lanes(trained: Trained, steps: int) -> dict[str, Any]:
    """Median seconds of each lane over the timed steps: busy, hidden and exposed; and what the engine waited.

    A step's own update runs within the next one's time. That of the last timed step is waited for to its end, with
    nothing to hide behind, before the steps alone: it is left out, and that of the last warm-up step counted.
    """
    if not isinstance(trained, Engine):
        return {}
    results = [report.result() for report in trained.reports[WARM_UP - 1 : WARM_UP - 1 + steps]]
    lanes = results[0].lane_seconds
    return {
        "lane_seconds": {
            lane.value: statistics.median(r.lane_seconds[lane] for r in results) for lane in lanes
        },
        "lane_hidden_seconds": {
            lane.value: statistics.median(r.lane_seconds[lane] - r.exposed_seconds[lane] for r in results)
            for lane in lanes
        },
        "lane_exposed_seconds": {
            lane.value: statistics.median(r.exposed_seconds[lane] for r in results) for lane in lanes
        },
        "waited_s": statistics.median(r.exposed_s for r in results),
        "skipped_steps": sum(r.skipped for r in results),
    }


def _device_peak(device: torch.device) -> dict[str, int]:
    if device.type != "cuda":
        return {}
    return {
        "device_reserved_bytes": torch.cuda.max_memory_reserved(device),
        "device_allocated_bytes": torch.cuda.max_memory_allocated(device),
    }
