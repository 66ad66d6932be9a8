"""The driver and its GPUs, by an NVML that is played here: also none, an old and a broken one."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from forged_machine import CARD, GIB, NO_GPU, ONE_GPU, around

from workbench.doctor import nvidia
from workbench.doctor.findings import Finding
from workbench.doctor.nvidia import NvidiaSample, sample


def check_driver(tmp_path: Path, seen: NvidiaSample) -> list[Finding]:
    return list(nvidia.check_driver(around(tmp_path, nvidia=seen)))


class ForgedNvml:
    """The calls of pynvml that are asked for. `refused`: names of those that the driver does not support."""

    NVML_ERROR_LIBRARY_NOT_FOUND = 12
    NVML_ERROR_DRIVER_NOT_LOADED = 9

    class NVMLError(Exception):
        def __init__(self, value: int) -> None:
            super().__init__(f"NVML error {value}")
            self.value = value

    def __init__(self, *, init: int | None = None, refused: tuple[str, ...] = ()) -> None:
        self._init = init
        self._refused = refused
        self.open = False

    def nvmlInit(self) -> None:  # noqa: N802
        if self._init is not None:
            raise self.NVMLError(self._init)
        self.open = True

    def nvmlShutdown(self) -> None:  # noqa: N802
        self.open = False

    def __getattr__(self, name: str) -> Callable[..., Any]:
        answers: dict[str, Any] = {
            "nvmlDeviceGetCount": 1,
            "nvmlSystemGetDriverVersion": b"580.10",
            "nvmlSystemGetCudaDriverVersion": 13010,
            "nvmlDeviceGetHandleByIndex": "handle",
            "nvmlDeviceGetName": "NVIDIA Forged 24",
            "nvmlDeviceGetMemoryInfo": SimpleNamespace(total=24 * GIB, free=20 * GIB, used=4 * GIB),
            "nvmlDeviceGetComputeRunningProcesses": [
                SimpleNamespace(pid=os.getpid()),
                SimpleNamespace(pid=1),
            ],
            "nvmlDeviceGetGraphicsRunningProcesses": [SimpleNamespace(pid=1), SimpleNamespace(pid=2)],
        }
        if name not in answers:
            raise AttributeError(name)

        def answer(*_: Any) -> Any:
            if name in self._refused:
                raise self.NVMLError(3)
            return answers[name]

        return answer


def sampled(monkeypatch: pytest.MonkeyPatch, root: Path, nvml: object) -> NvidiaSample:
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    return sample(root)


def on_bus(root: Path) -> None:
    for number, (vendor, kind) in enumerate(
        [("0x10de", "0x030200"), ("0x10de", "0x040300"), ("0x8086", "0x030000")]
    ):
        device = root / f"sys/bus/pci/devices/0000:0{number}:00.0"
        device.mkdir(parents=True)
        (device / "vendor").write_text(f"{vendor}\n")
        (device / "class").write_text(f"{kind}\n")


def test_the_driver_is_asked_and_let_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = ForgedNvml()
    seen = sampled(monkeypatch, tmp_path, nvml)
    assert (seen.driver, seen.cuda, nvml.open) == ("580.10", "13.1", False)
    (card,) = seen.cards
    assert (card.name, card.total_bytes, card.free_bytes) == ("NVIDIA Forged 24", 24 * GIB, 20 * GIB)
    assert card.others == 2, "this process is none of the others, and one that also draws counts once"


def test_what_the_driver_does_not_give_is_not_available_and_never_zero(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = (
        "nvmlDeviceGetMemoryInfo",
        "nvmlDeviceGetName",
        "nvmlSystemGetCudaDriverVersion",
        "nvmlDeviceGetComputeRunningProcesses",
        "nvmlDeviceGetGraphicsRunningProcesses",
    )
    driver, gpu = check_driver(tmp_path, sampled(monkeypatch, tmp_path, ForgedNvml(refused=refused)))
    assert (driver.status, driver.finding) == ("ok", "NVIDIA 580.10, for CUDA up to N/A")
    assert (gpu.status, gpu.finding) == ("ok", "0: N/A, N/A of N/A free")


@pytest.mark.parametrize("nvml", [None, ForgedNvml(init=12), ForgedNvml(init=9)])
def test_without_a_driver_a_machine_without_a_card_is_ok(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nvml: object
) -> None:
    seen = sampled(monkeypatch, tmp_path, nvml)
    (found,) = check_driver(tmp_path, seen)
    assert found.status == "ok" and "CPU" in found.finding and not seen.present


@pytest.mark.parametrize("nvml", [None, ForgedNvml(init=12), ForgedNvml(init=9)])
def test_a_card_without_a_driver_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nvml: object
) -> None:
    on_bus(tmp_path)
    seen = sampled(monkeypatch, tmp_path, nvml)
    (found,) = check_driver(tmp_path, seen)
    assert found.status == "warning" and "1 NVIDIA card" in found.finding and "--gpus all" in found.remedy
    assert seen.present


def test_a_driver_that_does_not_answer_is_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = sampled(monkeypatch, tmp_path, ForgedNvml(init=18))
    (found,) = check_driver(tmp_path, seen)
    assert found.status == "failure" and "NVML error 18" in found.finding and "nvidia-smi" in found.remedy


def test_a_gpu_that_somebody_fills_is_a_warning(tmp_path: Path) -> None:
    for free, others, status in (
        (23 * GIB + GIB // 2, 3, "ok"),
        (20 * GIB, 1, "warning"),
        (20 * GIB, None, "warning"),
    ):
        _, gpu = check_driver(
            tmp_path, replace(ONE_GPU, cards=(replace(CARD, free_bytes=free, others=others),))
        )
        assert gpu.status == status
        assert ("train.device=cuda:N" in gpu.remedy) == (status == "warning")


def test_each_gpu_has_a_line(tmp_path: Path) -> None:
    assert [found.check for found in check_driver(tmp_path, replace(ONE_GPU, cards=(CARD, CARD)))] == [
        "driver",
        "gpu",
        "gpu",
    ]
    assert len(check_driver(tmp_path, NO_GPU)) == 1
