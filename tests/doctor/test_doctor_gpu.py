"""The driver and its GPUs, torch and CUDA, and the native extension: what is said of each way in which they fail."""

from __future__ import annotations

import math
import platform
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pynvml
import pytest
from forged_machine import GIB, GOOD, GPU, NO_GPU, ONE_GPU, around, only

from workbench.doctor import Outcome, gpu_checks
from workbench.doctor.gpu_checks import (
    ask_driver,
    check_cuda,
    check_driver,
    check_extension,
    check_pinned_memory,
    check_torch,
)
from workbench.monitor.nvml import GpuReading
from workbench.monitor.samples import GpuProcess


@pytest.fixture
def bus(tmp_path: Path) -> Path:
    """A PCI bus with one NVIDIA GPU, its sound device, and another maker's GPU."""
    for number, (vendor, kind) in enumerate(
        [("0x10de", "0x030200"), ("0x10de", "0x040300"), ("0x8086", "0x030000")]
    ):
        device = tmp_path / "bus" / f"0000:0{number}:00.0"
        device.mkdir(parents=True)
        (device / "vendor").write_text(f"{vendor}\n")
        (device / "class").write_text(f"{kind}\n")
    return tmp_path / "bus"


def without_driver(monkeypatch: pytest.MonkeyPatch, error: int | None) -> None:
    """NVML cannot be opened; None: its package is missing."""
    if error is None:
        monkeypatch.setitem(sys.modules, "pynvml", None)
        return

    def refuse() -> None:
        raise pynvml.NVMLError(error)

    monkeypatch.setattr(pynvml, "nvmlInit", refuse)


@pytest.mark.parametrize("refused", [False, True])
def test_the_driver_is_asked_and_what_it_does_not_say_is_not_available(
    tmp_path: Path, bus: Path, monkeypatch: pytest.MonkeyPatch, refused: bool
) -> None:
    def answer(value: Any) -> Any:
        def ask() -> Any:
            if refused:
                raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
            return value

        return ask

    class Reader(gpu_checks.GpuReader):
        def read(self) -> GpuReading:
            return GpuReading((GPU,), "")

    monkeypatch.setattr(gpu_checks, "GpuReader", Reader)
    monkeypatch.setattr(pynvml, "nvmlInit", lambda: None)
    monkeypatch.setattr(pynvml, "nvmlShutdown", lambda: None)
    monkeypatch.setattr(pynvml, "nvmlSystemGetDriverVersion", answer(b"580.10"))
    monkeypatch.setattr(pynvml, "nvmlSystemGetCudaDriverVersion", answer(13010))
    report = ask_driver(bus)
    assert report.gpus == (GPU,) and report.on_bus == 1 and report.has_gpu
    assert (report.driver, report.cuda) == (("N/A", "N/A") if refused else ("580.10", "13.1"))


@pytest.mark.parametrize(
    ("error", "has_card", "status", "remedy"),
    [
        (None, False, "ok", ""),
        (pynvml.NVML_ERROR_LIBRARY_NOT_FOUND, False, "ok", ""),
        (pynvml.NVML_ERROR_DRIVER_NOT_LOADED, True, "warning", "--gpus all"),
        (None, True, "warning", "pip install nvidia-ml-py"),
        (pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH, False, "failure", "nvidia-smi"),
    ],
)
def test_a_missing_driver_is_a_warning_where_there_is_a_card_and_a_broken_one_a_failure(
    tmp_path: Path,
    bus: Path,
    monkeypatch: pytest.MonkeyPatch,
    error: int | None,
    has_card: bool,
    status: str,
    remedy: str,
) -> None:
    without_driver(monkeypatch, error)
    report = ask_driver(bus if has_card else tmp_path)
    found = only(check_driver(around(tmp_path, driver=report)))
    assert found.status == status and remedy in found.remedy
    assert report.has_gpu == (status != "ok")


@pytest.mark.parametrize(
    ("gpu", "status", "words"),
    [
        (GPU, "ok", "23.5 GiB of 24.0 GiB free"),
        (replace(GPU, name=None, memory_total_bytes=None, processes=None), "ok", "N/A, N/A of N/A free"),
        (replace(GPU, processes=(GpuProcess(1, "x", None),) * 3), "ok", "used by 3 processes"),
        (replace(GPU, memory_used_bytes=4 * GIB), "warning", "4.0 GiB are taken"),
        (replace(GPU, fault="the GPU has fallen off the bus"), "failure", "fallen off the bus"),
    ],
)
def test_each_gpu_has_a_line_and_one_that_somebody_fills_is_a_warning(
    tmp_path: Path, gpu: Any, status: str, words: str
) -> None:
    driver, first, second = check_driver(around(tmp_path, driver=replace(ONE_GPU, gpus=(GPU, gpu))))
    assert (driver.status, first.status, second.status) == ("ok", "ok", status)
    assert words in second.finding
    assert ("train.device=cuda:N" in second.remedy) == (status == "warning")


# torch

CPU_BUILD = {
    "torch": {"version": "2.13.0+cpu", "cuda": None},
    "cuda": {"reason": "a CPU build", "devices": []},
    "pinned memory": {"asked": 0, "registered": 0},
}
GONE = Outcome(problem="its process was ended by signal 11")


def unusable(reason: str) -> dict[str, Any]:
    return {"cuda": {"reason": reason, "devices": []}}


def does_not_compute(problem: str) -> dict[str, Any]:
    return {"cuda": {"devices": [{"name": "Other", "bf16": None, "problem": problem}]}}


def test_a_cuda_build_that_computes_is_ok(tmp_path: Path) -> None:
    machine = around(tmp_path)
    assert only(check_torch(machine)).finding == "2.13.0+cu130, a CUDA 13.0 build"
    assert only(check_cuda(machine)).finding == "0: NVIDIA Forged 24 computes, with bf16"
    assert only(check_pinned_memory(machine)).status == "ok"


def test_a_cpu_build_is_ok_only_where_there_is_no_gpu(tmp_path: Path) -> None:
    without = around(tmp_path, CPU_BUILD, NO_GPU)
    assert only(check_torch(without)).status == only(check_cuda(without)).status == "ok"
    assert not list(check_pinned_memory(without))
    without = around(tmp_path, unusable("Found no NVIDIA driver"), NO_GPU)
    assert only(check_cuda(without)).status == "ok"
    found = only(check_torch(around(tmp_path, CPU_BUILD)))
    assert found.status == "warning" and "pip install --force-reinstall torch" in found.remedy


def test_a_torch_that_cannot_be_imported_fails_once(tmp_path: Path) -> None:
    broken = Outcome(problem="OSError: libcudnn.so.9: cannot open shared object file")
    machine = around(tmp_path, dict.fromkeys(GOOD, broken))
    found = only(check_torch(machine))
    assert found.status == "failure" and "libcudnn" in found.finding and "pip install" in found.remedy
    assert not list(check_cuda(machine)) and not list(check_pinned_memory(machine))
    assert only(check_extension(machine)).status == "ok"


@pytest.mark.parametrize(
    ("trial", "visible", "remedy"),
    [
        (unusable("The NVIDIA driver on your system is too old"), "0", "update NVIDIA's"),
        (unusable("Error 802: system not yet initialized"), None, "systemctl start nvidia-fabricmanager"),
        (unusable("No CUDA GPUs are available"), "", "`unset CUDA_VISIBLE_DEVICES`"),
        (unusable("No CUDA GPUs are available"), None, "`nvidia-smi`"),
        ({"cuda": GONE}, None, "dmesg"),
        (does_not_compute("CUDA error: no kernel image is available"), None, "not built for this GPU"),
        (does_not_compute("OutOfMemoryError: CUDA out of memory"), None, "train.device=cuda:N"),
        (does_not_compute("a small matrix product comes out wrong"), None, "reboot"),
    ],
)
def test_a_gpu_that_torch_cannot_use_is_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trial: dict[str, Any], visible: str | None, remedy: str
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    found = only(check_cuda(around(tmp_path, trial)))
    assert found.status == "failure" and remedy in found.remedy


@pytest.mark.parametrize("change", [{"registered": 0}, GONE])
def test_a_driver_that_registers_no_memory_is_a_warning(tmp_path: Path, change: Any) -> None:
    found = only(check_pinned_memory(around(tmp_path, {"pinned memory": change})))
    assert found.status == "warning" and "--ulimit memlock=-1" in found.remedy


# The native extension


@pytest.mark.parametrize(
    ("extension", "status", "remedy"),
    [
        ({"error": 1e-3}, "failure", "pip install"),
        ({"error": math.nan}, "failure", "pip install"),
        (GONE, "failure", "pip install"),
        (Outcome(problem="ValueError: WORKBENCH_ISA must be ..."), "failure", "`unset WORKBENCH_ISA`"),
        ({"missing": "the extension is missing (No module); build it"}, "warning", "apt install gcc"),
    ],
)
def test_an_extension_that_is_missing_or_wrong_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, extension: Any, status: str, remedy: str
) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    found = only(check_extension(around(tmp_path, {"extension": extension})))
    assert found.status == status and remedy in found.remedy


@pytest.mark.parametrize(
    ("chosen", "best", "machine", "remedy"),
    [
        ("avx2", "avx2", "x86_64", ""),
        ("scalar", "avx512", "x86_64", "`unset WORKBENCH_ISA`"),
        ("scalar", "scalar", "x86_64", "-cpu host"),
        ("neon", "neon", "aarch64", ""),
        ("scalar", "scalar", "riscv64", "offload.device_fraction"),
    ],
)
def test_slow_instructions_are_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chosen: str, best: str, machine: str, remedy: str
) -> None:
    monkeypatch.setattr(platform, "machine", lambda: machine)
    values = {"instruction_set": chosen, "best": best}
    extension, found = check_extension(around(tmp_path, {"extension": values}))
    assert extension.status == "ok" and found.status == ("warning" if remedy else "ok")
    assert remedy in found.remedy
