"""Each part of the probe, on a budget of next to nothing: every figure is there, and they hold together."""

from __future__ import annotations

import dataclasses
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_probe import TINY
from torch import Tensor

from workbench.engine.arithmetic import HostArithmetic
from workbench.engine.devices.device import CpuDevice, Landing, has_bfloat16
from workbench.errors import ConfigurationError
from workbench.layout import StateFormat
from workbench.profiles import probe
from workbench.profiles.host_speeds import (
    HostBuffers,
    buffer_bytes,
    cache_bytes,
    measure_ahead,
    measure_optimizer,
)
from workbench.profiles.machine_profile import MachineProfile
from workbench.profiles.probe import measure_link, measure_products
from workbench.profiles.sampling import MIB, BackgroundLoad, median_seconds
from workbench.timeline import Lane

FORMATS = ("exact", "half", "compact")
DTYPES = {"float32", "bfloat16", "float16"}


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever else runs beside these tests."""
    monkeypatch.setattr(BackgroundLoad, "busy_cores", lambda self: 0.0)


@pytest.fixture
def three_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "usable_cpus", lambda: 3)


def measured() -> tuple[MachineProfile, list[str]]:
    told: list[str] = []
    return probe.measure_machine("cpu", None, told.append, TINY), told


@pytest.mark.usefixtures("three_threads")
def test_a_measured_machine_is_whole_and_each_part_is_told() -> None:
    profile, told = measured()
    host, device = profile.host, profile.device
    # That all rows are as long as `threads` and every rate is positive is the schema's own check.
    assert host.threads == (1, 2, 3)
    assert set(host.optimizer_ns) == {f"{dtype}-{name}" for dtype in DTYPES for name in FORMATS}
    assert set(host.ahead_ratio) == set(host.redo_ratio) == set(FORMATS)
    assert set(host.norm_bytes_per_s) == set(host.accumulate_bytes_per_s) == DTYPES
    assert device.shared_memory and set(device.matrix_flops_per_s) == DTYPES
    assert device.has_bfloat16 == has_bfloat16(CpuDevice()), "as a run decides it, however fast products were"
    assert profile.source == "measured" and profile.link is None and profile.disk is None
    # Orders of magnitude, which hold on any machine: a factor of a thousand is a mistake in a unit.
    assert 1e8 < host.read_bytes_per_s[0] < 1e12 and 1e8 < host.copy_bytes_per_s[0] < 1e12
    assert 0.01 < host.optimizer_ns["float32-exact"][0] < 100
    assert 1e8 < host.norm_bytes_per_s["float32"][0] < 1e12
    assert 1e8 < host.accumulate_bytes_per_s["float32"][0] < 1e12
    assert 1e8 < device.matrix_flops_per_s["float32"] < 1e14
    computed = {"float32", "bfloat16"} if device.has_bfloat16 else {"float32"}
    assert set(device.attention_flops_per_s) == computed
    assert 1e7 < device.attention_flops_per_s["float32"] < 1e14
    assert 1e8 < device.memory_bytes_per_s < 1e13 and 1e-8 < device.launch_s < 1e-2
    assert told == ["the host's memory", "the host optimizer", "the device that the model computes on"]


@pytest.mark.usefixtures("three_threads")
def test_without_the_extension_torch_is_measured_which_knows_exact_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "workbench._native", None)
    profile, _ = measured()
    assert set(profile.host.optimizer_ns) == {f"{dtype}-exact" for dtype in DTYPES}
    assert profile.host.ahead_ratio == profile.host.redo_ratio == {}
    assert "native extension is missing" in profile.note


def test_updates_ahead_and_undone_ones_are_compared_with_plain_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """Undoing and redoing is what such an update takes beyond the update ahead."""
    now = 0.0

    seconds: dict[str, dict[StateFormat, float]] = {
        "update": {"exact": 1.0, "half": 2.0, "compact": 4.0},
        "speculate": {"exact": 1.5, "half": 5.0, "compact": 3.0},
        "redo": {"exact": 2.0, "half": 6.0, "compact": 8.0},
    }

    class Taking:
        """Takes `seconds` with one thread."""

        def __init__(self, threads: int) -> None:
            self._threads = threads

        def __getattr__(self, does: str) -> Callable[..., None]:
            def work(table: StateFormat, *arguments: object) -> None:
                nonlocal now
                now += seconds[does][table] / self._threads

            return work

    monkeypatch.setattr("time.perf_counter", lambda: now)
    optimizers: dict[int, Any] = {1: Taking(1), 2: Taking(2)}
    found = measure_ahead(optimizers, {"exact": "exact", "half": "half", "compact": "compact"}, TINY)
    assert found["ahead_ratio"] == {"exact": (1.5, 1.5), "half": (2.5, 2.5), "compact": (1.0, 1.0)}
    assert found["redo_ratio"] == {"exact": (2.0, 2.0), "half": (3.0, 3.0), "compact": (2.0, 2.0)}


def test_what_is_measured_ahead_of_the_verdict_is_updated_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    """Elements that could not be undone would be left, and the measured update a shorter one."""
    left: list[int] = []
    inner = HostArithmetic.speculate

    def speculate(self: HostArithmetic, *arguments: Any) -> int:
        left.append(inner(self, *arguments))
        return left[-1]

    monkeypatch.setattr(HostArithmetic, "speculate", speculate)
    with HostBuffers(CpuDevice()) as buffers:
        measure_optimizer(buffers, 70_000, (1,), TINY)
    assert left and not any(left)


def test_the_probes_own_time_is_no_background_load(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()  # the fixture's load of 0
    monkeypatch.setattr("psutil.cpu_count", lambda: 4)
    monkeypatch.setattr("psutil.cpu_percent", lambda: 75.0)
    for own, cores in ((300.0, 0.0), (100.0, 2.0), (299.0, 0.0)):
        monkeypatch.setattr("psutil.Process.cpu_percent", lambda self, own=own: own)
        assert BackgroundLoad().busy_cores() == cores


def test_torch_has_its_threads_back_afterwards_whatever_happened(monkeypatch: pytest.MonkeyPatch) -> None:
    before = torch.get_num_threads()

    def fail(*arguments: object) -> None:
        torch.set_num_threads(before + 1)
        raise RuntimeError("no")

    measured()
    assert torch.get_num_threads() == before
    monkeypatch.setattr(probe, "measure_memory", fail)
    with pytest.raises(RuntimeError, match="no"):
        measured()
    assert torch.get_num_threads() == before


@pytest.mark.parametrize(
    ("device", "said"), [("cuda:63", 'torch sees .*; "auto" takes what there is'), ("gpu", "expected auto")]
)
def test_a_device_that_is_not_there_is_one_message(device: str, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        probe.measure_machine(device, budget=TINY)


class Noted(CpuDevice):
    """Memories of their own; `on_copy` is called before every copy, and `held` counts host memory not given back."""

    def __init__(self, on_copy: Callable[[Lane], None]) -> None:
        super().__init__(shared_memory=False)
        self.on_copy = on_copy
        self.held = 0

    def pinned_zeros(self, elements: int, dtype: torch.dtype) -> Tensor:
        self.held += 1
        return super().pinned_zeros(elements, dtype)

    def release_host(self, tensor: Tensor) -> None:
        self.held -= 1

    def begin_copy(self, lane: Lane, destination: Tensor, source: Tensor, after: object) -> Landing:
        self.on_copy(lane)
        return super().begin_copy(lane, destination, source, after)


def test_a_link_is_measured_each_way_alone_and_both_at_once() -> None:
    meet = threading.Barrier(2)
    met: dict[Lane, int] = {}

    def on_copy(lane: Lane) -> None:
        if threading.current_thread() is threading.main_thread():
            assert not met, "first each way alone"
        elif lane not in met:
            met[lane] = threading.get_ident()
            meet.wait(10)  # comes back only where the other way is on its way too

    device = Noted(on_copy)
    with HostBuffers(device) as buffers:
        rates = measure_link(device, buffers, 4 * MIB, TINY)
        assert device.held == 2
    assert device.held == 0
    assert set(met) == {Lane.UPLOAD, Lane.DOWNLOAD}
    assert len(set(met.values())) == 2
    assert all(1e6 < rate < 1e12 for rate in rates.model_dump().values())
    device.close()


def test_a_copy_that_fails_ends_the_measurement_with_its_error() -> None:
    calls = 0

    def fail(lane: Lane) -> None:
        nonlocal calls
        calls += 1
        if threading.current_thread() is not threading.main_thread():
            raise OSError("the link is down")

    device = Noted(fail)
    with pytest.raises(OSError, match="the link is down"), HostBuffers(device) as buffers:
        measure_link(device, buffers, MIB, TINY)
    assert calls and device.held == 0
    device.close()


def test_a_dtype_that_torch_cannot_multiply_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    multiply = torch.mm

    def refuse(one: Tensor, other: Tensor, *, out: Tensor) -> Tensor:
        if one.dtype is torch.float16:
            raise RuntimeError("not implemented for 'Half'")
        return multiply(one, other, out=out)

    monkeypatch.setattr(torch, "mm", refuse)
    found = measure_products(torch.device("cpu"), lambda: None, 1 << 30, TINY)
    assert set(found) == {"float32", "bfloat16"}


@pytest.mark.parametrize(
    ("flops_per_s", "waited_s", "least", "most"),
    [(1e11, 0.0, 900, 1100), (1e11, 1e-3, 900, 1100), (1e8, 0.0, 64, 128)],
    ids=["idle", "waits for threads", "slow by its arithmetic"],
)
def test_products_are_as_large_as_their_time_allows(
    flops_per_s: float, waited_s: float, least: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0

    def product(device: object, dtype: object, wait: object, side: int) -> Callable[[], None]:
        def work() -> None:
            nonlocal now
            now += waited_s + 2 * side**3 / flops_per_s

        return work

    monkeypatch.setattr(probe, "_product", product)
    monkeypatch.setattr("time.perf_counter", lambda: now)
    side = probe._side(torch.device("cpu"), torch.float32, lambda: None, 16384, 0.02)
    assert least <= side <= most


def test_medians_forget_a_disturbance_and_the_first_call() -> None:
    durations = iter([9.0, 1.0, 9.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0])
    now = 0.0

    def work() -> None:
        nonlocal now
        now += next(durations)

    budget = dataclasses.replace(TINY, repetitions=3, part_s=1e9, sample_s=1.0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("time.perf_counter", lambda: now)
        assert median_seconds({"one": work}, budget) == {"one": 1.0}


def test_buffers_are_beyond_the_caches_and_within_an_eighth_of_what_is_free() -> None:
    budget = dataclasses.replace(TINY, buffer_bytes=64 * MIB, cache_multiple=3.0)
    assert buffer_bytes(budget, free_bytes=1 << 40, buffers=2, cached=0) == 64 * MIB
    assert buffer_bytes(budget, free_bytes=1 << 40, buffers=2, cached=100 * MIB) == 300 * MIB
    assert buffer_bytes(budget, free_bytes=512 * MIB, buffers=2, cached=100 * MIB) == 32 * MIB


def test_last_level_caches_are_added_up_once_each(tmp_path: Path) -> None:
    def cache(cpu: int, index: int, level: int, size: str, shared: str) -> None:
        folder = tmp_path / f"cpu{cpu}" / "cache" / f"index{index}"
        folder.mkdir(parents=True)
        for name, text in (("level", str(level)), ("size", size), ("shared_cpu_list", shared)):
            (folder / name).write_text(text + "\n")

    for cpu in range(4):
        cache(cpu, 0, 1, "32K", str(cpu))
        cache(cpu, 1, 2, "1M", str(cpu))
        cache(cpu, 2, 3, "16384K", "0-1" if cpu < 2 else "2-3")
    assert cache_bytes(tmp_path) == 2 * 16 * MIB
    assert cache_bytes(tmp_path / "nowhere") == 0
