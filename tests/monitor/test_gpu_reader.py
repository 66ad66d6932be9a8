"""GPUs through the real pynvml: what is given arrives, what is not is None, and no failure reaches the caller."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Callable
from pathlib import Path

import psutil
import pynvml
import pytest
from recorded_nvml import MIB, NOT_GIVEN, Card, RecordedNvml, h200, install, rtx_4090

import workbench.monitor
from workbench.monitor.gpu_values import link_bytes_per_s, throttle_words
from workbench.monitor.nvml import LONGEST_S, GpuReader, PcieReader, PcieTraffic
from workbench.monitor.samples import GpuProcess, GpuSample

NO_SUCH_PID = 2**31 - 2


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


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


def test_a_package_without_the_old_names_still_tells_why_clocks_are_down(
    monkeypatch: pytest.MonkeyPatch, driver: Callable[..., RecordedNvml]
) -> None:
    for name in [name for name in vars(pynvml) if "hrottleReason" in name]:
        monkeypatch.delattr(pynvml, name)
    driver(h200())
    with GpuReader() as reader:
        assert reader.read().gpus[0].throttled_by == ("power cap",)


@pytest.mark.parametrize(
    ("bits", "words"),
    [
        (0x0, ()),
        (0x1, ()),
        (0x2, ("clocks set by the user",)),
        (0x24, ("power cap", "thermal")),
        (0x48, ("thermal, by hardware",)),
        (0x88, ("power brake",)),
        (0x8, ("slowed by hardware",)),
        (0x200, ("board limit",)),
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
def test_a_gpu_that_falls_out_says_so_and_the_others_go_on(
    driver: Callable[..., RecordedNvml], code: int, word: str
) -> None:
    library, clock = driver(h200(), rtx_4090()), Clock()
    with GpuReader(clock=clock) as reader:
        reader.read()
        library.cards[0].error = code
        clock.now += 0.5
        lost, other = reader.read().gpus
        assert word in lost.fault
        assert (lost.index, lost.name, lost.busy) == (0, "NVIDIA H200", None)
        assert (other.fault, other.busy) == ("", 0.03)


def test_a_lost_gpu_is_asked_again_less_and_less_often_and_comes_back(
    driver: Callable[..., RecordedNvml],
) -> None:
    library, clock = driver(h200(), rtx_4090()), Clock()
    with GpuReader(clock=clock) as reader:
        reader.read()
        library.cards[0].error = pynvml.NVML_ERROR_GPU_IS_LOST
        attempts = []
        for _ in range(600):
            clock.now += 0.5
            library.called.clear()
            reader.read()
            if "nvmlDeviceGetHandleByIndex_v2" in library.called or not attempts:
                attempts.append(clock.now)
        pauses = [later - earlier for earlier, later in itertools.pairwise(attempts)]
        assert pauses[:5] == [1.0, 2.0, 4.0, 8.0, 16.0]
        assert max(pauses) == LONGEST_S
        library.cards[0].error = pynvml.NVML_SUCCESS
        clock.now += LONGEST_S
        assert reader.read().gpus[0].busy == 0.97
        library.cards[0].error = pynvml.NVML_ERROR_GPU_IS_LOST
        clock.now += 0.5
        reader.read()
        library.cards[0].error = pynvml.NVML_SUCCESS
        clock.now += 1.0
        assert reader.read().gpus[0].fault == ""


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
        clock.now += LONGEST_S
        assert reader.read() == before
        assert library.opened == 1
        library.reset()
        clock.now += 0.5
        assert reader.read().gpus[0].fault
        clock.now += 1.0
        assert reader.read() == before


def test_a_single_gpu_that_is_reset_is_found_again_by_opening_nvml_anew(
    driver: Callable[..., RecordedNvml],
) -> None:
    library, clock = driver(h200()), Clock()
    with GpuReader(clock=clock) as reader:
        reader.read()
        library.cards[0].error = pynvml.NVML_ERROR_RESET_REQUIRED
        for _ in range(100):
            clock.now += 0.5
            assert reader.read().gpus[0].fault
        assert 3 <= library.times_opened <= 8
        openings = [at for at, name in enumerate(library.called) if name == "nvmlInitWithFlags"]
        assert {library.called[at + 2] for at in openings} == {"nvmlDeviceGetHandleByIndex_v2"}
        library.cards[0].error = pynvml.NVML_SUCCESS
        clock.now += LONGEST_S
        assert reader.read().gpus[0].busy == 0.97
        assert library.opened == 1


def test_a_gpu_that_the_driver_no_longer_lists_is_shown_at_fault(driver: Callable[..., RecordedNvml]) -> None:
    library, clock = driver(h200()), Clock()
    with GpuReader(clock=clock) as reader:
        reader.read()
        library.reset()
        cards, library.cards = library.cards, []
        for _ in range(4):
            clock.now += 2.0
            reading = reader.read()
        assert (reading.gpus[0].name, reading.gpus[0].fault) == (
            "NVIDIA H200",
            "the driver no longer lists this GPU",
        )
        library.cards = cards
        clock.now += LONGEST_S
        assert reader.read().gpus[0].fault == ""


def test_a_gpu_that_may_not_be_asked_says_so(driver: Callable[..., RecordedNvml]) -> None:
    library = driver(h200(), rtx_4090())
    library.cards[1].error = pynvml.NVML_ERROR_NO_PERMISSION
    with GpuReader() as reader:
        assert [gpu.fault for gpu in reader.read().gpus] == ["", "this process may not look at this GPU"]


def test_eight_gpus_come_in_order(driver: Callable[..., RecordedNvml]) -> None:
    driver(*(h200() for _ in range(8)))
    with GpuReader() as reader:
        assert [gpu.index for gpu in reader.read().gpus] == list(range(8))


def test_all_gpus_are_shown_whatever_cuda_may_see(
    monkeypatch: pytest.MonkeyPatch, driver: Callable[..., RecordedNvml]
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    driver(h200(), rtx_4090())
    with GpuReader() as reader:
        assert len(reader.read().gpus) == 2


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (pynvml.NVML_ERROR_DRIVER_NOT_LOADED, "not loaded"),
        (pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH, "reboot"),
        (pynvml.NVML_ERROR_NO_PERMISSION, "may not ask"),
        (pynvml.NVML_ERROR_UNKNOWN, "does not answer (Unknown Error)"),
    ],
)
def test_a_driver_that_does_not_answer_is_one_calm_sentence(
    driver: Callable[..., RecordedNvml], error: int, words: str
) -> None:
    driver(h200()).init_error = error
    reading = GpuReader().read()
    assert reading.gpus == ()
    assert words in reading.note
    assert reading.note.endswith(".")


def test_no_driver_and_no_gpu_are_calm_sentences_too(
    monkeypatch: pytest.MonkeyPatch, driver: Callable[..., RecordedNvml]
) -> None:
    driver()
    assert GpuReader().read() == ((), "There is no NVIDIA GPU in this machine.")
    install(monkeypatch, None)
    assert GpuReader().read() == ((), "There is no NVIDIA driver on this machine.")


def test_a_missing_package_is_a_calm_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pynvml", None)
    assert "nvidia-ml-py" in GpuReader().read().note


def test_a_driver_that_comes_later_is_found(driver: Callable[..., RecordedNvml]) -> None:
    library, clock = driver(h200()), Clock()
    library.init_error = pynvml.NVML_ERROR_DRIVER_NOT_LOADED
    reader = GpuReader(clock=clock)
    for _ in range(20):
        reader.read()
    assert library.called.count("nvmlInitWithFlags") == 1
    library.init_error = pynvml.NVML_SUCCESS
    clock.now += LONGEST_S
    assert len(reader.read().gpus) == 1


def test_closing_lets_go_of_nvml(driver: Callable[..., RecordedNvml]) -> None:
    library = driver(h200())
    with GpuReader() as reader:
        reader.read()
        assert library.opened == 1
    assert library.opened == 0


def test_nothing_but_reading_functions_is_ever_called(driver: Callable[..., RecordedNvml]) -> None:
    library = driver(h200(), rtx_4090())
    with GpuReader() as reader:
        reader.read()
        PcieReader().read(0)
    others = {name for name in library.called if not name.startswith("nvmlDeviceGet")}
    assert others == {"nvmlInitWithFlags", "nvmlShutdown"}


def test_every_name_that_is_asked_exists_in_the_real_package() -> None:
    folder = Path(workbench.monitor.__file__).parent
    names = {
        name
        for file in ("nvml.py", "gpu_values.py")
        for name in re.findall(r"\b(?:nvml[A-Z_]\w+|NVML\w+)\b", (folder / file).read_text())
    }
    prefixes = {"nvmlClocksEventReason", "nvmlClocksThrottleReason", "NVML"}
    assert len(names) > 30
    assert sorted(name for name in names - prefixes if not hasattr(pynvml, name)) == []


def test_every_reason_is_known_to_the_real_package() -> None:
    told = {word for bit in range(16) for word in throttle_words(pynvml, 1 << bit) or ()}
    assert {"power cap", "thermal", "thermal, by hardware", "power brake", "sync boost"} <= told
    assert {"clocks set by the user", "display clocks", "slowed by hardware"} <= told


@pytest.mark.parametrize(
    ("generation", "width", "gb_per_s"),
    [
        (1, 16, 4.0),
        (2, 8, 4.0),
        (3, 16, 15.754),
        (4, 16, 31.508),
        (5, 16, 63.015),
        (6, 16, 121.0),
        (4, 4, 7.877),
    ],
)
def test_a_links_limit_is_the_one_its_specification_gives(
    generation: int, width: int, gb_per_s: float
) -> None:
    assert link_bytes_per_s(generation, width) == pytest.approx(gb_per_s * 1e9, rel=1e-4)


@pytest.mark.parametrize(("generation", "width"), [(None, 16), (4, None), (99, 16), (4, 0)])
def test_a_link_that_is_not_known_has_no_limit(generation: int | None, width: int | None) -> None:
    assert link_bytes_per_s(generation, width) is None


def test_received_is_what_the_gpu_receives(driver: Callable[..., RecordedNvml]) -> None:
    driver(h200())
    with GpuReader() as reader:
        reader.read()
        assert PcieReader().read(0) == PcieTraffic(received_bytes_per_s=41e9, sent_bytes_per_s=12.5e9)


def test_counters_that_are_not_there_are_asked_less_and_less_often(
    driver: Callable[..., RecordedNvml],
) -> None:
    card = h200()
    card.answers = {key: value for key, value in card.answers.items() if "PcieThroughput" not in key[0]}
    library, clock = driver(card), Clock()
    pcie = PcieReader(clock=clock)
    with GpuReader() as reader:
        reader.read()
        for _ in range(100):
            clock.now += 0.5
            assert pcie.read(0) == PcieTraffic()
    assert library.called.count("nvmlDeviceGetPcieThroughput") == 6


@pytest.mark.gpu
def test_a_real_gpu_answers() -> None:
    with GpuReader() as reader:
        reading = reader.read()
        traffic = PcieReader().read(0)
    if not reading.gpus:
        pytest.skip(reading.note)
    gpu = reading.gpus[0]
    assert gpu.fault == ""
    assert gpu.name and gpu.uuid
    assert gpu.memory_total_bytes and gpu.memory_total_bytes > 1 << 30
    assert gpu.busy is not None and 0 <= gpu.busy <= 1
    assert gpu.temperature_c is not None and 0 < gpu.temperature_c < 120
    assert (
        gpu.pcie_limit_bytes_per_s is None
        or traffic.received_bytes_per_s is None
        or (traffic.received_bytes_per_s <= 1.1 * gpu.pcie_limit_bytes_per_s)
    )
