"""torch and CUDA: what is said of each way in which they do not fit the machine."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from forged_machine import GOOD, NO_GPU, around, only

from workbench.doctor.findings import Outcome
from workbench.doctor.torch_checks import check_cuda, check_pinned_memory, check_torch

CPU_BUILD = {
    "torch": {"version": "2.13.0+cpu", "cuda": None},
    "cuda": {"reason": "a CPU build", "devices": []},
}
GONE = Outcome(problem="the helper process was ended by SIGSEGV")
NOT_REACHED = Outcome(problem="the helper process was ended by SIGILL", reached=False)


def unusable(reason: str) -> dict[str, Any]:
    return {"cuda": {"reason": reason, "devices": []}}


def does_not_compute(problem: str) -> dict[str, Any]:
    return {
        "cuda": {"devices": [*GOOD["cuda"]["devices"], {"name": "Other", "bf16": None, "problem": problem}]}
    }


def test_a_cuda_build_that_computes_is_ok(tmp_path: Path) -> None:
    machine = around(tmp_path)
    assert only(check_torch(machine)).finding == "2.13.0+cu130, a CUDA 13.0 build"
    assert only(check_cuda(machine)).finding == "0: NVIDIA Forged 24 computes, with bf16"
    assert only(check_pinned_memory(machine)).status == "ok"


def test_a_cpu_build_is_ok_only_where_there_is_no_gpu(tmp_path: Path) -> None:
    without = around(tmp_path, trial=CPU_BUILD, nvidia=NO_GPU)
    assert only(check_torch(without)).status == "ok"
    assert only(check_cuda(without)).status == "ok"
    found = only(check_torch(around(tmp_path, trial=CPU_BUILD)))
    assert found.status == "warning" and "pip install --force-reinstall torch" in found.remedy


def test_a_cuda_build_without_a_gpu_is_ok(tmp_path: Path) -> None:
    found = only(check_cuda(around(tmp_path, trial=unusable("Found no NVIDIA driver"), nvidia=NO_GPU)))
    assert found.status == "ok" and "CPU" in found.finding


@pytest.mark.parametrize(
    ("installed", "status"), [(None, "failure"), ("2.9.1", "failure"), ("2.11.0a0", "warning")]
)
def test_a_torch_that_is_missing_or_too_old_is_told_with_its_installation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, installed: str | None, status: str
) -> None:
    def version(name: str) -> str:
        if installed is None:
            raise metadata.PackageNotFoundError(name)
        return installed

    monkeypatch.setattr(metadata, "version", version)
    found = only(check_torch(around(tmp_path)))
    assert found.status == status and '`python -m pip install "torch>=2.11"`' in found.remedy


def test_a_torch_that_cannot_be_imported_fails_once(tmp_path: Path) -> None:
    broken = Outcome(problem="OSError: libcudnn.so.9: cannot open shared object file")
    machine = around(tmp_path, trial={"torch": broken, "cuda": broken, "pinned memory": broken})
    found = only(check_torch(machine))
    assert found.status == "failure" and "libcudnn" in found.finding and "pip install" in found.remedy
    assert not list(check_cuda(machine)) and not list(check_pinned_memory(machine))


@pytest.mark.parametrize(
    ("trial", "environ", "remedy"),
    [
        (
            unusable("The NVIDIA driver on your system is too old"),
            {"CUDA_VISIBLE_DEVICES": "0"},
            "update NVIDIA's",
        ),
        (unusable("Error 802: system not yet initialized"), {}, "systemctl start nvidia-fabricmanager"),
        (
            unusable("No CUDA GPUs are available"),
            {"CUDA_VISIBLE_DEVICES": ""},
            "`unset CUDA_VISIBLE_DEVICES`",
        ),
        (unusable("No CUDA GPUs are available"), {}, "`nvidia-smi`"),
        ({"cuda": GONE}, {}, "dmesg"),
    ],
)
def test_a_gpu_that_torch_cannot_use_is_a_failure(
    tmp_path: Path, trial: dict[str, Any], environ: dict[str, str], remedy: str
) -> None:
    found = only(check_cuda(around(tmp_path, trial=trial, environ=environ)))
    assert found.status == "failure" and remedy in found.remedy


@pytest.mark.parametrize(
    ("problem", "remedy"),
    [
        ("CUDA error: no kernel image is available for execution", "not built for this GPU"),
        ("OutOfMemoryError: CUDA out of memory", "train.device=cuda:N"),
        ("a small matrix product comes out wrong", "reboot"),
    ],
)
def test_each_device_that_does_not_compute_is_a_failure(tmp_path: Path, problem: str, remedy: str) -> None:
    good, bad = check_cuda(around(tmp_path, trial=does_not_compute(problem)))
    assert good.status == "ok"
    assert bad.status == "failure" and bad.finding.startswith("1: Other") and remedy in bad.remedy


def test_what_an_earlier_stage_kept_from_being_tried_is_not_blamed_on_cuda(tmp_path: Path) -> None:
    machine = around(tmp_path, trial={"update": GONE, "cuda": NOT_REACHED, "pinned memory": NOT_REACHED})
    found = only(check_cuda(machine))
    assert found.status == "warning" and "SIGILL" in found.finding and "workbench doctor" in found.remedy
    assert not list(check_pinned_memory(machine))


@pytest.mark.parametrize("change", [{"registered": 0}, Outcome(problem="RuntimeError: no"), GONE])
def test_a_driver_that_registers_no_memory_is_a_warning(tmp_path: Path, change: Any) -> None:
    found = only(check_pinned_memory(around(tmp_path, trial={"pinned memory": change})))
    assert found.status == "warning" and "--ulimit memlock=-1" in found.remedy


def test_without_a_device_nothing_is_said_of_pinned_memory(tmp_path: Path) -> None:
    trial = {**CPU_BUILD, "pinned memory": {"asked": 0, "registered": 0}}
    assert not list(check_pinned_memory(around(tmp_path, trial=trial)))
