"""GPUs through the real pynvml: what is given arrives, what is not is None, and no failure reaches the caller."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pynvml
import pytest
from recorded_nvml import MIB, NOT_GIVEN, Card, Clock, RecordedNvml, h200, install, rtx_4090

import workbench.monitor
from workbench.monitor.nvml import (
    RETRY_S,
    GpuReader,
    PcieTraffic,
    link_bytes_per_s,
    read_pcie_traffic,
    throttle_words,
)
from workbench.monitor.samples import GpuProcess, GpuSample

NO_SUCH_PID = 2**31 - 2


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Callable[..., RecordedNvml]:
    def installed(*cards: Card, missing: frozenset[str] = frozenset()) -> RecordedNvml:
        library = RecordedNvml(*cards, missing=missing)
        install(monkeypatch, library)
        return library

    return installed


def test_an_h200_arrives_whole_and_what_it_has_not_is_none(driver: Callable[..., RecordedNvml]) -> None:
    driver(h200())
    with GpuReader() as reader:
        reading = reader.read()
    assert reading.note == ""
    assert reading.gpus == (
        GpuSample(
            index=0,
            name="NVIDIA H200",
            uuid="GPU-0b8e4a6c-6f3d-4b55-9d0e-2f1f3c1a7e10",
            busy=0.97,
            memory_busy=0.41,
            memory_used_bytes=61440 * MIB,
            memory_total_bytes=143771 * MIB,
            power_w=612.345,
            power_limit_w=700.0,
            temperature_c=58.0,
            temperature_limit_c=87.0,
            fan=None,
            clock_mhz=1755,
            clock_limit_mhz=1980,
            memory_clock_mhz=3201,
            memory_clock_limit_mhz=3201,
            throttled_by=("power cap",),
            pcie_generation=5,
            pcie_width=16,
            pcie_limit_bytes_per_s=pytest.approx(63.0e9, rel=1e-3),
            processes=(),
        ),
    )


def test_a_geforce_tells_its_temperature_limit_by_the_distance_and_is_idle_not_throttled(
    driver: Callable[..., RecordedNvml],
) -> None:
    driver(rtx_4090())
    with GpuReader() as reader:
        (gpu,) = reader.read().gpus
    assert gpu.temperature_limit_c == 84.0
    assert gpu.fan == 0.3
    assert gpu.throttled_by == ()
    assert gpu.memory_used_bytes == 1210 * MIB


def test_a_card_that_supports_nothing_is_all_none_and_no_fault(driver: Callable[..., RecordedNvml]) -> None:
    card = Card("Bare", "GPU-bare", 1, 0, 0, {})
    missing = {
        "nvmlDeviceGetMemoryInfo",
        "nvmlDeviceGetMemoryInfo_v2",
        "nvmlDeviceGetName",
        "nvmlDeviceGetUUID",
    }
    missing |= {f"nvmlDeviceGet{kind}RunningProcesses_v3" for kind in ("Compute", "Graphics")}
    driver(card, missing=frozenset(missing))
    with GpuReader() as reader:
        assert reader.read().gpus == (GpuSample(index=0),)


def test_a_driver_of_before_535_is_asked_by_its_old_names(driver: Callable[..., RecordedNvml]) -> None:
    new = {
        "nvmlDeviceGetCurrentClocksEventReasons",
        "nvmlDeviceGetTemperatureV",
        "nvmlDeviceGetMemoryInfo_v2",
    }
    driver(h200(), missing=frozenset(new))
    with GpuReader() as reader:
        (gpu,) = reader.read().gpus
    assert gpu.throttled_by == ("power cap",)
    assert gpu.temperature_c == 58.0
    assert gpu.memory_used_bytes == (61440 + 585) * MIB


@pytest.mark.parametrize(
    ("bits", "words"),
    [
        (0x1, ()),
        (0x24, ("power cap", "thermal")),
        (0x48, ("thermal, by hardware",)),
        (0x88, ("power brake",)),
        (0x8, ("slowed by hardware",)),
        (1 << 40, ("another reason (0x10000000000)",)),
    ],
)
def test_what_holds_clocks_down_is_told_in_words(bits: int, words: tuple[str, ...]) -> None:
    assert throttle_words(pynvml, bits) == words


def test_processes_are_named_told_once_and_the_largest_first(driver: Callable[..., RecordedNvml]) -> None:
    card = h200()
    card.compute = [(NO_SUCH_PID, 5 * MIB), (os.getpid(), 900 * MIB)]
    card.graphics = [(os.getpid(), 900 * MIB), (NO_SUCH_PID - 1, NOT_GIVEN)]
    driver(card)
    with GpuReader() as reader:
        (gpu,) = reader.read().gpus
    assert gpu.processes == (
        GpuProcess(os.getpid(), psutil.Process().name(), 900 * MIB),
        GpuProcess(NO_SUCH_PID, None, 5 * MIB),
        GpuProcess(NO_SUCH_PID - 1, None, None),
    )


@pytest.mark.parametrize(
    ("code", "word"),
    [
        (pynvml.NVML_ERROR_GPU_IS_LOST, "fallen off the bus"),
        (pynvml.NVML_ERROR_RESET_REQUIRED, "needs to be reset"),
        (pynvml.NVML_ERROR_UNKNOWN, "unknown errors"),
    ],
)
def test_a_gpu_that_falls_out_has_a_fault_the_others_go_on_and_it_comes_back(
    driver: Callable[..., RecordedNvml], code: int, word: str
) -> None:
    library, clock = driver(h200(), rtx_4090()), Clock()
    with GpuReader(clock=clock) as reader:
        before = reader.read()
        library.cards[0].error = code
        for _ in range(100):
            clock.now += 0.5
            lost, other = reader.read().gpus
            assert lost.fault and (lost.index, lost.name, lost.busy) == (0, "NVIDIA H200", None)
            assert (other.fault, other.busy) == ("", 0.03)
            assert word in lost.fault or library.times_opened > 1
        assert library.times_opened <= 2 + 50 / RETRY_S
        library.cards[0].error = pynvml.NVML_SUCCESS
        clock.now += RETRY_S
        assert reader.read() == before
        assert library.opened == 1
    assert library.opened == 0


def test_a_gpu_that_may_not_be_read_says_so(driver: Callable[..., RecordedNvml]) -> None:
    driver(h200(), rtx_4090()).cards[1].error = pynvml.NVML_ERROR_NO_PERMISSION
    with GpuReader() as reader:
        assert [gpu.fault for gpu in reader.read().gpus] == ["", "this process has no access to this GPU"]


def test_a_reset_of_the_driver_in_mid_run_is_survived(driver: Callable[..., RecordedNvml]) -> None:
    library, clock = driver(h200(), rtx_4090()), Clock()
    with GpuReader(clock=clock) as reader:
        before = reader.read()
        library.reset()
        library.init_error = pynvml.NVML_ERROR_DRIVER_NOT_LOADED
        for _ in range(20):
            clock.now += 0.5
            reading = reader.read()
            assert [gpu.fault for gpu in reading.gpus] == ["the driver was reset"] * 2
            assert [gpu.name for gpu in reading.gpus] == [gpu.name for gpu in before.gpus]
        library.init_error = pynvml.NVML_SUCCESS
        cards, library.cards = library.cards, []
        clock.now += RETRY_S
        assert {gpu.fault for gpu in reader.read().gpus} == {"the driver no longer lists this GPU"}
        library.cards = cards
        clock.now += RETRY_S
        assert reader.read() == before
        assert library.opened == 1


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (pynvml.NVML_ERROR_DRIVER_NOT_LOADED, "not loaded"),
        (pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH, "reboot"),
        (pynvml.NVML_ERROR_NO_PERMISSION, "no access"),
        (pynvml.NVML_ERROR_UNKNOWN, "does not answer (Unknown Error)"),
    ],
)
def test_a_driver_that_does_not_answer_is_one_calm_sentence_and_is_found_later(
    driver: Callable[..., RecordedNvml], error: int, words: str
) -> None:
    library, clock = driver(h200()), Clock()
    library.init_error = error
    reader = GpuReader(clock=clock)
    for _ in range(20):
        gpus, note = reader.read()
        assert gpus == () and words in note and note.endswith(".")
    assert library.called.count("nvmlInitWithFlags") == 1
    library.init_error = pynvml.NVML_SUCCESS
    clock.now += RETRY_S
    assert len(reader.read().gpus) == 1


def test_no_driver_no_gpu_and_no_package_are_calm_sentences_too(
    monkeypatch: pytest.MonkeyPatch, driver: Callable[..., RecordedNvml]
) -> None:
    driver()
    assert GpuReader().read() == ((), "There is no NVIDIA GPU in this machine.")
    install(monkeypatch, None)
    assert GpuReader().read() == ((), "There is no NVIDIA driver on this machine.")
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert "nvidia-ml-py" in GpuReader().read().note


def test_all_gpus_are_read_and_nothing_else_is_ever_called(
    monkeypatch: pytest.MonkeyPatch, driver: Callable[..., RecordedNvml]
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    library = driver(h200(), rtx_4090())
    with GpuReader() as reader:
        assert [gpu.index for gpu in reader.read().gpus] == [0, 1]
        assert read_pcie_traffic(0) == PcieTraffic(received_bytes_per_s=41e9, sent_bytes_per_s=12.5e9)
    others = {name for name in library.called if not name.startswith("nvmlDeviceGet")}
    assert others == {"nvmlInitWithFlags", "nvmlShutdown"}


def test_every_name_that_is_asked_exists_in_the_real_package() -> None:
    folder = Path(workbench.monitor.__file__).parent
    names = set(re.findall(r"\b(?:nvml[A-Z_]\w+|NVML\w+)\b", (folder / "nvml.py").read_text()))
    prefixes = {"nvmlClocksEventReason", "nvmlClocksThrottleReason", "NVML"}
    assert len(names) > 30
    assert sorted(name for name in names - prefixes if not hasattr(pynvml, name)) == []


@pytest.mark.parametrize(
    ("generation", "width", "gb_per_s"),
    [
        (2, 8, 4.0),
        (4, 16, 31.508),
        (6, 16, 121.0),
        (None, 16, None),
        (99, 16, None),
        (4, 0, None),
    ],
)
def test_a_links_limit_is_the_one_its_specification_gives(
    generation: int | None, width: int | None, gb_per_s: float | None
) -> None:
    expected = None if gb_per_s is None else pytest.approx(gb_per_s * 1e9, rel=1e-4)
    assert link_bytes_per_s(generation, width) == expected


@pytest.mark.gpu
def test_a_real_gpu_answers() -> None:
    with GpuReader() as reader:
        reading = reader.read()
        traffic = read_pcie_traffic(0)
    if not reading.gpus:
        pytest.skip(reading.note)
    gpu = reading.gpus[0]
    assert gpu.fault == "" and gpu.name and gpu.uuid
    assert gpu.memory_total_bytes and gpu.memory_total_bytes > 1 << 30
    assert gpu.busy is not None and 0 <= gpu.busy <= 1
    assert gpu.temperature_c is not None and 0 < gpu.temperature_c < 120
    if gpu.pcie_limit_bytes_per_s and traffic.received_bytes_per_s:
        assert traffic.received_bytes_per_s <= 1.1 * gpu.pcie_limit_bytes_per_s
