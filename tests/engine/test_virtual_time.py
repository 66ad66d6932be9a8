"""The engine in virtual time, on a machine with a GPU: what it reports of a step is what the step was."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from workbench.engine import AdamW, OffloadEngine, StepResult
from workbench.engine.devices.cuda_device import CudaDevice
from workbench.engine.execution import Span
from workbench.engine.loss.chunked_loss import ChunkedLoss
from workbench.plan.rates import TASK_S, Rates
from workbench.profiles.machine_profile import MachineProfile
from workbench.profiles.named_machines import load_profile
from workbench.timeline import Kind, Lane
from workbench.virtual_cuda import VirtualCuda
from workbench.virtual_cuda.host_threads import DeadlockError, HostThreads

STEPS, SETTLED = 3, 2
CHUNK_BYTES = 4 << 20
PARAMETERS_OF_TWELVE_LAYERS = 91_740_672
TICK_S = 200e-6
"""Forty launches: a device that has been waited for has nothing to do until the next operation is issued."""


@pytest.fixture(scope="module")
def machine() -> MachineProfile:
    return load_profile(Path("desktop-24gb"))


def large_model(layers: int) -> Any:
    """A GPT-2 of 35 million parameters in four blocks; its values are never looked at."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(n_layer=layers, n_embd=768, n_head=12, n_positions=512, vocab_size=8192)
    with torch.device("meta"):
        model = GPT2LMHeadModel(config)
    model.to_empty(device="cpu")
    model.tie_weights()
    return model


def with_all_else_faster(machine: MachineProfile) -> MachineProfile:
    """Return `machine` with a host and a device that keep its link waiting for nothing."""

    def faster(name: str, rate: Any) -> Any:
        if isinstance(rate, dict):
            return {key: faster(name, value) for key, value in rate.items()}
        if isinstance(rate, list | tuple):
            return [faster(name, value) for value in rate]
        if name.endswith("per_s"):
            return rate * 100
        return rate / 100 if name.endswith(("_ns", "_s")) else rate

    known = machine.model_dump()
    for part in ("host", "device"):
        known[part] = {name: faster(name, rate) for name, rate in known[part].items()}
    return MachineProfile.model_validate(known)


@dataclass
class Training:
    """Each step's result, and its spans, which it keeps until the next one is finished; `idle_s`, `busy_s`: of compute,
    from a step's first forward to the next step's."""

    results: list[StepResult]
    spans: list[tuple[Span, ...]]
    idle_s: list[float]
    busy_s: list[float]


def train(machine: MachineProfile, layers: int = 4, sequences: int = 2, **options: Any) -> Training:
    model = large_model(layers)
    accumulation = options.get("gradient_accumulation", 1)
    with VirtualCuda(machine=machine, values=False, device_bytes=8 << 30) as cuda:
        clock = cuda.clock
        assert clock is not None
        reports, spans, marks = [], [], []
        with OffloadEngine(
            model,
            optimizer=AdamW(lr=1e-4),
            device="cuda",
            precision="bf16",
            watchdog_s=0,
            threads=2,
            **options,
        ) as engine:
            for _ in range(STEPS + 1):
                for micro_batch in range(accumulation):
                    ids = torch.zeros(sequences, 512, dtype=torch.long, device="cuda")
                    loss = model(input_ids=ids, labels=ids, use_cache=False).loss
                    if micro_batch == 0:
                        marks.append(clock.mark())
                    engine.backward(loss)
                    if micro_batch == 0 and reports:
                        spans.append(reports[-1].result().spans)
                reports.append(engine.step())
            results = [report.result() for report in reports]
    step_s = [after.ends_at - before.ends_at for before, after in itertools.pairwise(marks)]
    busy_s = [after.busy_s - before.busy_s for before, after in itertools.pairwise(marks)]
    idle_s = [step - busy for step, busy in zip(step_s, busy_s, strict=True)]
    return Training(results[SETTLED:STEPS], spans[SETTLED:], idle_s[SETTLED:], busy_s[SETTLED:])


@pytest.mark.parametrize(
    "options",
    [
        {"gradient_clipping": 1.0},
        {},
        {"overlap": "serial", "gradient_clipping": 1.0},
        {"overlap": "delayed", "delay_warmup": 1, "gradient_clipping": 1.0},
        {"weights": "host", "gradient_clipping": 1.0},
        {"gradient_accumulation": 3, "gradient_clipping": 1.0},
    ],
    ids=lambda options: ", ".join(f"{name} {value}" for name, value in options.items()) or "no clipping",
)
def test_a_step_reports_as_exposed_how_long_the_device_had_nothing_to_do(
    machine: MachineProfile, options: dict[str, Any]
) -> None:
    training = train(machine, **options)
    tick_s = TICK_S * options.get("gradient_accumulation", 1)
    assert min(training.idle_s) > 20 * tick_s, "there is something to report"
    for result, truth_s in zip(training.results, training.idle_s, strict=True):
        assert result.exposed_s == pytest.approx(truth_s, abs=tick_s)


def test_updates_that_are_slower_than_backward_do_not_hold_it_up_and_hide_behind_the_next_forward(
    machine: MachineProfile,
) -> None:
    """A step takes about max(update, backward + forward); with a ring, or in the order of arrival, a forward more."""
    training = train(machine, layers=24, sequences=6, all_gradients_wait=True)
    for result, busy_s, idle_s in zip(training.results, training.busy_s, training.idle_s, strict=True):
        update_s, forward_s = (
            result.lane_seconds[Lane.UPDATE],
            busy_s / 4,
        )  # a recompute and a backward of two more
        assert 3 * forward_s < update_s < 5 * forward_s, "between backward and all of compute, or so"
        assert busy_s + idle_s < max(update_s, busy_s) + 0.7 * forward_s


def test_updates_ahead_of_the_norm_go_on_while_the_device_is_at_units_that_stay_there(
    machine: MachineProfile,
) -> None:
    """The host has issued all of backward before the device is through the units that it keeps."""
    training = train(
        machine,
        layers=24,
        sequences=6,
        gradient_clipping=1.0,
        speculation=1.0,
        device_fraction=0.5,
        all_gradients_wait=True,
    )
    on_host = sum(p.numel() for p in large_model(24).parameters()) / 2
    for result in training.results:
        assert result.speculation.speculated > on_host, "all, for which there is time enough"
    for spans in training.spans:
        assert {span.kind for span in spans if span.lane is Lane.DOWNLOAD} == {Kind.DOWNLOAD}


def test_virtual_time_is_the_same_each_time(machine: MachineProfile) -> None:
    assert train(machine, weights="host") == train(machine, weights="host")


def test_compute_seconds_are_the_devices_own_and_not_those_of_issuing(machine: MachineProfile) -> None:
    training = train(machine, overlap="serial")
    for result, busy_s in zip(training.results, training.busy_s, strict=True):
        assert result.lane_seconds[Lane.COMPUTE] == pytest.approx(busy_s, abs=TICK_S)
        # Backward computes the blocks again, and two products for each of forward's; the loss has its own in forward.
        assert busy_s / 4 < result.forward_s < busy_s / 3


def test_new_weights_within_the_host_are_copied_by_as_many_threads_as_update(machine: MachineProfile) -> None:
    model = large_model(layers=4)
    with (
        VirtualCuda(machine=machine, values=False, device_bytes=8 << 30) as cuda,
        OffloadEngine(model, device="cuda", precision="bf16", watchdog_s=0, threads=2) as engine,
    ):
        assert cuda.clock is not None and isinstance(engine.device, CudaDevice)
        one, other = torch.zeros(1 << 20), torch.zeros(1 << 20)
        began_s = cuda.clock.host.now()
        engine.device.copy(Lane.UPLOAD, one, other, None)
        took_s = cuda.clock.host.now() - began_s
        assert engine.device._copier.threads == 2
    assert took_s == pytest.approx(one.nbytes / max(machine.host.copy_bytes_per_s))


def test_the_link_does_not_stand_still_between_the_pieces_of_a_block(machine: MachineProfile) -> None:
    """Waiting for each piece would add Python's part of a task sixteen times."""
    took_s: list[float] = []
    with VirtualCuda(machine=machine, values=False, device_bytes=8 << 30) as cuda:
        assert cuda.clock is not None
        host, rates = cuda.clock.host, cuda.clock.rates
        device = CudaDevice(torch.device("cuda", 0))
        here, there = device.pinned_zeros(64 << 20, torch.uint8), device.empty(64 << 20, torch.uint8)
        copies = list(zip(there.split(4 << 20), here.split(4 << 20), strict=True))

        def fetch() -> None:
            device.before_task(Lane.UPLOAD)
            began_s = host.now()
            device.copy_all(Lane.UPLOAD, copies, None)
            took_s.append(host.now() - began_s)

        lane = host.threading.Thread(target=fetch, name="lane-upload")
        lane.start()
        lane.join()
        device.close()
    assert rates.up_s(4 << 20) > TASK_S
    assert rates.up_s(here.nbytes) <= took_s[0] < rates.up_s(here.nbytes) + 2 * TASK_S


@pytest.mark.parametrize("lane", [Lane.DOWNLOAD, Lane.UPLOAD])
def test_a_step_that_waits_for_the_link_keeps_it_busy(machine: MachineProfile, lane: Lane) -> None:
    """A lane that waits for the end of each copy before it begins the next one leaves a quarter of the link."""
    waits_for_link = with_all_else_faster(machine)
    rates = Rates(waits_for_link, "auto")
    link_s = rates.down_s if lane is Lane.DOWNLOAD else rates.up_s
    training = train(waits_for_link, layers=12, gradient_clipping=1.0, chunk_bytes=CHUNK_BYTES)
    for result, all_spans in zip(training.results, training.spans, strict=True):
        spans = [span for span in all_spans if span.lane is lane]
        took_s = max(span.stop_s for span in spans) - min(span.start_s for span in spans)
        copied_s = link_s(2 * PARAMETERS_OF_TWELVE_LAYERS)
        assert 0.95 < copied_s / took_s <= 1
        assert result.lane_seconds[lane] <= took_s, "copies that are under way at once are counted once"


def test_a_delayed_step_with_weights_on_the_host_is_not_held_up_by_copying_them() -> None:
    """The copy precedes the next forward: on one thread it took longer than all that a delayed update hides."""
    server = load_profile(Path("server-80gb"))
    exact, delayed = (
        train(server, layers=12, sequences=6, weights="host", gradient_clipping=1.0, **options)
        for options in ({}, {"overlap": "delayed", "delay_warmup": 1})
    )
    assert delayed.idle_s[-1] + delayed.busy_s[-1] < 0.95 * (exact.idle_s[-1] + exact.busy_s[-1])


def test_a_lookup_takes_the_time_of_what_it_touches(machine: MachineProfile) -> None:
    with VirtualCuda(machine=machine, values=False, device_bytes=1 << 30) as cuda:
        clock = cuda.clock
        assert clock is not None
        table, index = (
            torch.empty(1000, 5000, device="cuda"),
            torch.zeros(1000, 1, dtype=torch.long, device="cuda"),
        )
        before = clock.device_bytes
        found = table.gather(1, index)
        assert clock.device_bytes - before == 1000 * (8 + 4 + 4)
        before = clock.device_bytes
        table.scatter_(1, index, found)
        assert clock.device_bytes - before == 1000 * (8 + 4 + 4)


def test_threads_that_wait_for_each_other_are_a_deadlock() -> None:
    host = HostThreads()
    one, other = host.threading.Lock(), host.threading.Lock()
    failures = []

    def crosswise() -> None:
        with other:
            host.advance(2.0)
            try:
                one.acquire()
            except DeadlockError as error:
                failures.append(str(error))

    thread = host.threading.Thread(target=crosswise, name="crosswise")
    thread.start()
    with one:
        host.advance(1.0)
        with other:
            assert host.now() == 2.0
    assert failures == ["every thread waits: main, crosswise"]


def test_the_loss_is_computed_in_chunks_on_the_virtual_device_too(machine: MachineProfile) -> None:
    """The chunked loss returns tensors of a subclass, which must lie on the device as their results do."""
    model = large_model(4)
    with (
        VirtualCuda(machine=machine, values=False, device_bytes=8 << 30),
        OffloadEngine(model, device="cuda", precision="bf16", watchdog_s=0, threads=2) as engine,
    ):
        ids = torch.zeros(8, 512, dtype=torch.long, device="cuda")
        loss = ChunkedLoss(model, chunk_tokens=256)
        loss.check(ids, use_cache=False)
        assert loss.refusal is None
        engine.backward(loss(ids, ids, use_cache=False))
        engine.step()


def test_whoever_waits_for_a_thread_that_has_ended_hears_of_it() -> None:
    host = HostThreads()
    never = host.threading.Event()
    host.threading.Thread(target=lambda: host.advance(1.0), name="ends").start()
    with pytest.raises(DeadlockError, match="every thread waits: main"):
        never.wait()
