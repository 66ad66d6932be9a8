"""A lane that is stuck is named and stops the step; one that fails says why; neither leaves a thread behind."""

from __future__ import annotations

import functools
import gc
import threading
import weakref
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from small_models import CHUNK_BYTES, SeparateMemory, batches, gpt2, loss_of
from torch import Tensor

from workbench import sizes
from workbench.engine import LaneError, OffloadEngine
from workbench.engine import execution as execution_module
from workbench.engine.devices.device import CpuDevice, Landing
from workbench.engine.disk_files import DiskError, RecordFile
from workbench.engine.execution import COMPUTED, LaneThreads, StepExecution
from workbench.layout import NORM_BLOCK, ParameterSpec, UnitSpec, build_layout
from workbench.timeline import Lane, StepShape, UnitFlow, build_timeline
from workbench.virtual_cuda import VirtualCuda


class Blocked(SeparateMemory):
    """Copies of one lane wait until they are let go."""

    def __init__(self, lane: Lane) -> None:
        super().__init__()
        self.let_go = threading.Event()
        self._lane = lane

    def begin_copy(self, lane: Lane, destination: Tensor, source: Tensor, after: Any) -> Landing:
        land = super().begin_copy(lane, destination, source, after)

        def wait() -> None:
            assert lane is not self._lane or self.let_go.wait(60)
            land()

        return wait


def train(engine: OffloadEngine, model: Any, steps: int = 3) -> None:
    for ids in batches(steps):
        engine.backward(loss_of(model, ids))
        engine.step()
    engine.wait()


@pytest.mark.parametrize(
    ("lane", "options", "words"),
    [
        (Lane.DOWNLOAD, {}, "lane download: download of unit 3, chunk 0 has been stuck"),
        (Lane.UPLOAD, {"gradient_clipping": 1.0}, "lane upload: upload of unit 0, chunk 0 has been stuck"),
        (Lane.UPLOAD, {"weights": "host"}, "lane upload: fetch of unit 1 has been stuck"),
    ],
)
def test_a_stuck_lane_is_named_with_its_task_and_the_caller_goes_on(
    lane: Lane, options: dict[str, Any], words: str
) -> None:
    model = gpt2()
    device = Blocked(lane)
    with OffloadEngine(model, device=device, chunk_bytes=CHUNK_BYTES, watchdog_s=0.3, **options) as engine:
        try:
            with pytest.raises(LaneError, match=words):
                train(engine, model)
            with pytest.raises(RuntimeError, match="stopped after an error"):
                engine.backward(torch.zeros(1, requires_grad=True).sum())
        finally:
            device.let_go.set()


def test_a_watchdog_leaves_a_lane_alone_that_works_on_one_short_task_after_the_other() -> None:
    model = gpt2()
    others = set(threading.enumerate())
    with OffloadEngine(model, device=SeparateMemory(seed=0), chunk_bytes=CHUNK_BYTES, watchdog_s=5) as engine:
        train(engine, model, steps=6)
        assert engine.steps == 6
        assert set(threading.enumerate()) - others
    assert not set(threading.enumerate()) - others


@pytest.mark.parametrize("options", [{}, {"weights": "host"}, {"state": "disk", "overlap": "delayed"}])
def test_an_engine_that_is_dropped_is_collected_with_its_memory_and_its_threads(
    options: dict[str, Any], tmp_path: Path
) -> None:
    model = gpt2()
    others = set(threading.enumerate())
    if "state" in options:
        options = {**options, "disk_path": tmp_path}
    engine = OffloadEngine(
        model, device=SeparateMemory(seed=0), chunk_bytes=CHUNK_BYTES, watchdog_s=0.2, **options
    )
    train(engine, model)
    threads = set(threading.enumerate()) - others
    dropped = [weakref.ref(part) for part in (engine, engine._runtime.grad_hooks, engine._runtime.tasks)]
    assert {"lane-watchdog", "lane-update"} <= {thread.name for thread in threads}
    del engine, model
    gc.collect()
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive()
    gc.collect()
    assert [part() for part in dropped] == [None, None, None]


@pytest.mark.parametrize("overlap", ["serial", "exact", "delayed"])
@pytest.mark.parametrize("call", ["write", "read"])
def test_a_disk_that_fails_stops_the_step_with_its_own_words_and_nothing_is_left(
    call: str, overlap: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = gpt2()

    def refuse(self: RecordFile, record: int, buffer: Tensor) -> None:
        raise DiskError(f"{self.name}: record {record}: the disk has gone")

    options: dict[str, Any] = {"state": "disk", "overlap": overlap, "delay_warmup": 0, "disk_path": tmp_path}
    with (
        pytest.raises(LaneError, match="the disk has gone") as raised,
        OffloadEngine(model, device=CpuDevice(), chunk_bytes=CHUNK_BYTES, **options) as engine,
    ):
        train(engine, model, steps=2)
        monkeypatch.setattr(RecordFile, call, refuse)
        train(engine, model)
    assert isinstance(raised.value.__cause__, DiskError)
    assert not list(tmp_path.iterdir())


def test_memory_that_runs_out_in_backward_is_reported_with_what_the_engine_holds() -> None:
    model = gpt2()
    with OffloadEngine(model, device=CpuDevice(), chunk_bytes=CHUNK_BYTES) as engine:
        loss = loss_of(model, batches(1)[0])

        def run_out(gradient: Tensor) -> None:
            raise torch.OutOfMemoryError("tried to allocate 2 GiB")

        next(model.parameters()).register_hook(run_out)
        with pytest.raises(
            torch.OutOfMemoryError, match=r"tried to allocate 2 GiB.*device: weights .*host: exp_avg"
        ):
            engine.backward(loss)


def test_a_task_that_hands_work_to_a_lane_that_has_not_begun_does_not_hold_up_the_end() -> None:
    lanes = LaneThreads(CpuDevice())
    begun, let_go = threading.Event(), threading.Event()

    def read() -> None:
        begun.set()
        assert let_go.wait(60)
        lanes.submit(Lane.UPLOAD, "a fetch", lambda: None)

    lanes.submit(Lane.READ, "a read", read)
    assert begun.wait(60)
    closing = threading.Thread(target=lanes.close, daemon=True)
    closing.start()
    let_go.set()
    closing.join(5)
    assert not closing.is_alive()


def test_a_lane_begins_its_next_copy_before_it_waits_for_the_last_and_all_else_after_it() -> None:
    lanes = LaneThreads(CpuDevice())
    done: list[str] = []
    all_are_there = threading.Event()

    def begin(name: str) -> Landing:
        assert all_are_there.wait(60)
        done.append(f"{name} begins")
        return lambda: done.append(f"{name} lands")

    for name in ("one", "two", "three"):
        lanes.submit(Lane.UPLOAD, name, functools.partial(begin, name), lands=True)
    lanes.submit(Lane.UPLOAD, "a fetch", lambda: done.append("a fetch"))
    lanes.submit(Lane.UPLOAD, "four", functools.partial(begin, "four"), lands=True)
    all_are_there.set()
    lanes.close()
    assert done == [
        *("one begins", "two begins", "one lands", "three begins", "two lands", "three lands"),
        *("a fetch", "four begins", "four lands"),
    ]


def test_a_download_that_has_not_landed_keeps_no_other_waiting_for_its_slot(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sizes, "ARRIVAL_SLOTS", 1)
    model = gpt2()
    device, accumulation = SeparateMemory(), 2
    with OffloadEngine(
        model, device=device, gradient_accumulation=accumulation, chunk_bytes=CHUNK_BYTES, watchdog_s=5.0
    ) as engine:
        for ids in batches(accumulation):
            engine.backward(loss_of(model, ids))
        engine.step()
        engine.wait()


def test_a_device_that_cannot_take_a_lanes_thread_stops_the_step_with_its_reason() -> None:
    class Lost(SeparateMemory):
        def before_task(self, lane: Lane) -> None:
            raise RuntimeError("the device has fallen off the bus")

    model = gpt2()
    with (
        pytest.raises(RuntimeError, match=r"lane download: .*fallen off the bus"),
        OffloadEngine(model, device=Lost(), chunk_bytes=CHUNK_BYTES, watchdog_s=0) as engine,
    ):
        train(engine, model)


@pytest.mark.parametrize("drop", [True, False], ids=["dropped", "closed"])
def test_an_engine_that_is_dropped_unregisters_its_host_memory_while_it_is_mapped(drop: bool) -> None:
    model = gpt2()
    with VirtualCuda() as cuda:
        engine = OffloadEngine(model, device="cuda", precision="fp32", chunk_bytes=CHUNK_BYTES)
        ids = batches(1)[0].to("cuda")
        engine.backward(loss_of(model, ids))
        engine.step().result()
        assert cuda.pinned.registered
        if drop:
            del engine, model
            for thread in threading.enumerate():
                if thread.name.startswith("lane-"):
                    gc.collect()
                    thread.join(5)
            gc.collect()
        else:
            engine.close()
        assert not cuda.pinned.registered
    assert not cuda.faults


def test_who_waits_for_a_step_is_woken_once(monkeypatch: pytest.MonkeyPatch) -> None:
    woken = [0]

    class Counted(threading.Event):
        def set(self) -> None:
            woken[0] += 1
            super().set()

    class CountedCondition(threading.Condition):
        def notify_all(self) -> None:
            woken[0] += 1
            super().notify_all()

    unit = UnitSpec("h", "block", (ParameterSpec("w", (64, NORM_BLOCK), "bfloat16"),))
    flow = UnitFlow("host", False, True, False, False, True)
    timeline = build_timeline(build_layout([unit], 1), StepShape(1, (flow,), True, "exact"))
    lanes = LaneThreads(CpuDevice())
    counted = SimpleNamespace(
        Event=Counted, Condition=CountedCondition, Lock=threading.Lock, local=threading.local
    )
    monkeypatch.setattr(execution_module, "threading", counted)
    execution = StepExecution(timeline, lanes, lambda task: None, inline=True)
    execution.start()
    model = threading.Thread(target=execution.wait_all)
    model.start()
    for task in timeline.tasks:
        if task.kind in COMPUTED:
            execution.complete(task.index)
    model.join()
    assert len(timeline.tasks) > 300 and woken[0] <= 1
    lanes.close()
