"""What the driver says of the GPUs, and that its silence is no failure."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from workbench.profiles.this_machine import Gpu, gpu_called, visible_gpus


class NVMLError(Exception):
    pass


class Driver:
    """Stands in for the module `pynvml`."""

    NVMLError = NVMLError

    def __init__(self, names: list[str]) -> None:
        self.names = names
        self.open = 0

    def nvmlInit(self) -> None:  # noqa: N802 - the library's name
        self.open += 1

    def nvmlShutdown(self) -> None:  # noqa: N802 - the library's name
        self.open -= 1

    def nvmlSystemGetDriverVersion(self) -> str:  # noqa: N802 - the library's name
        return "555.1"

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802 - the library's name
        return len(self.names)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:  # noqa: N802 - the library's name
        return index

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> int:  # noqa: N802 - the library's name
        return int(uuid[-1])

    def nvmlDeviceGetName(self, handle: int) -> bytes:  # noqa: N802 - the library's name
        return self.names[handle].encode()

    def nvmlDeviceGetCudaComputeCapability(self, handle: int) -> tuple[int, int]:  # noqa: N802 - the library's name
        return 7 + handle, 5

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> Any:  # noqa: N802 - the library's name
        return SimpleNamespace(total=100 + handle, free=50 + handle)


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    made = Driver(["one", "two", "three"])
    monkeypatch.setitem(sys.modules, "pynvml", made)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return made


def test_every_gpu_is_told_and_the_library_closed(driver: Driver) -> None:
    assert visible_gpus()[:2] == [Gpu("one", 100, 50, "555.1", False), Gpu("two", 101, 51, "555.1", True)]
    assert [gpu.name for gpu in visible_gpus()] == ["one", "two", "three"]
    assert driver.open == 0


@pytest.mark.usefixtures("driver")
@pytest.mark.parametrize(
    ("visible", "names"),
    [
        ("2,0", ["three", "one"]),
        ("GPU-1", ["two"]),
        ("MIG-2", ["three"]),
        ("", []),
        ("-1", []),
        ("1,7,0", ["two"]),
    ],
)
def test_cuda_visible_devices_narrows_and_orders_them(
    visible: str, names: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert [gpu.name for gpu in visible_gpus()] == names


@pytest.mark.parametrize("broken", ["nvmlInit", "nvmlDeviceGetCount", "nvmlDeviceGetMemoryInfo"])
def test_a_driver_that_does_not_answer_is_no_failure(
    driver: Driver, broken: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: object) -> None:
        raise NVMLError("no")

    monkeypatch.setattr(driver, broken, refuse)
    assert visible_gpus() == []
    assert driver.open == 0


def test_without_its_library_there_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert visible_gpus() == []


def test_a_gpu_is_found_by_its_name_where_its_number_is_another_s() -> None:
    gpus = [Gpu("a", 1, 1, ""), Gpu("b", 2, 2, "")]
    assert gpu_called("b", 1, gpus) == gpus[1]
    assert gpu_called("b", 0, gpus) == gpus[1]
    assert gpu_called("c", 0, gpus) is None
