"""This machine: its GPUs, a fingerprint that changes with what makes figures stale, and the profile that is cached."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tiny_probe import ON_CPU, ON_GPU, disk_at, profile_on

from workbench.errors import ConfigurationError
from workbench.profiles import this_machine
from workbench.profiles.this_machine import (
    Gpu,
    cache_profile,
    cached_profile,
    cpu_model,
    folder_of,
    gpu_called,
    machine_fingerprint,
    resolved_device,
    visible_gpus,
)
from workbench.system.free_space import Mount

CARD = Gpu("a card", 24 << 30, 777, "555.1")


@pytest.fixture
def one_card(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(this_machine, "visible_gpus", lambda: [CARD])
    monkeypatch.setattr(this_machine, "version_of", lambda package: "2.13.0+cu126")


# GPUs, by the driver's library


class NVMLError(Exception):
    pass


class Driver:
    """Stands in for the module `pynvml`."""

    NVMLError = NVMLError

    def __init__(self) -> None:
        self.open = 0

    def __getattr__(self, name: str) -> Any:
        return {
            "nvmlSystemGetDriverVersion": lambda: "555.1",
            "nvmlDeviceGetCount": lambda: 3,
            "nvmlDeviceGetHandleByIndex": lambda index: index,
            "nvmlDeviceGetHandleByUUID": lambda uuid: int(uuid[-1]),
            "nvmlDeviceGetName": lambda handle: (b"one", b"two", b"three")[handle],
            "nvmlDeviceGetCudaComputeCapability": lambda handle: (7 + handle, 5),
            "nvmlDeviceGetMemoryInfo": lambda handle: SimpleNamespace(total=100 + handle, free=50 + handle),
        }[name]

    def nvmlInit(self) -> None:  # noqa: N802 - the library's name
        self.open += 1

    def nvmlShutdown(self) -> None:  # noqa: N802 - the library's name
        self.open -= 1


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    made = Driver()
    monkeypatch.setitem(sys.modules, "pynvml", made)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return made


def test_every_gpu_is_listed_and_the_library_closed(driver: Driver) -> None:
    assert visible_gpus()[:2] == [Gpu("one", 100, 50, "555.1", False), Gpu("two", 101, 51, "555.1", True)]
    assert driver.open == 0


@pytest.mark.usefixtures("driver")
@pytest.mark.parametrize(
    ("visible", "names"),
    [(None, ["one", "two", "three"]), ("2,0", ["three", "one"]), ("GPU-1", ["two"]), ("MIG-2", ["three"]), ("", []),
     ("-1", []), ("1,7,0", ["two"])],
)  # fmt: skip
def test_cuda_visible_devices_narrows_and_orders_them(
    visible: str | None, names: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert [gpu.name for gpu in visible_gpus()] == names


@pytest.mark.parametrize("broken", ["nvmlInit", "nvmlDeviceGetCount", "nvmlDeviceGetMemoryInfo", "pynvml"])
def test_a_driver_that_does_not_answer_is_no_failure(
    driver: Driver, broken: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: object) -> None:
        raise NVMLError("no")

    if broken == "pynvml":
        monkeypatch.setitem(sys.modules, "pynvml", None)
    else:
        monkeypatch.setattr(driver, broken, refuse, raising=False)
    assert visible_gpus() == []
    assert driver.open == 0


def test_a_gpu_is_found_by_its_name_where_its_number_is_another_s() -> None:
    gpus = [Gpu("a", 1, 1, ""), Gpu("b", 2, 2, "")]
    assert gpu_called("b", 1, gpus) == gpu_called("b", 0, gpus) == gpus[1]
    assert gpu_called("c", 0, gpus) is None


# The fingerprint


@pytest.mark.usefixtures("one_card")
@pytest.mark.parametrize(
    ("name", "other"),
    [
        ("cpu_model", lambda: "another processor"),
        ("usable_cpus", lambda: 1000),
        ("instruction_set", lambda: "another set"),
        ("total_memory_bytes", lambda: 7 << 30),
        ("version_of", lambda package: "2.14.0"),
        ("PROBE_VERSION", 1000),
        ("visible_gpus", lambda: [CARD._replace(name="another card")]),
        ("visible_gpus", lambda: [CARD._replace(memory_bytes=48 << 30)]),
        ("visible_gpus", lambda: [CARD._replace(driver="560.2")]),
        ("visible_gpus", list),
    ],
)
def test_the_fingerprint_changes_with_what_it_names(
    name: str, other: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = machine_fingerprint("cuda:0")
    monkeypatch.setattr(this_machine, name, other)
    assert machine_fingerprint("cuda:0") != before


@pytest.mark.usefixtures("one_card")
def test_the_fingerprint_stays_with_what_is_free_and_a_few_mib_of_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(this_machine, "total_memory_bytes", lambda: 64 << 30)
    before, on_cpu = machine_fingerprint("cuda:0"), machine_fingerprint("cpu")
    assert on_cpu != before == machine_fingerprint("auto") == machine_fingerprint("cuda")
    monkeypatch.setattr(this_machine, "visible_gpus", lambda: [CARD._replace(free_bytes=1)])
    monkeypatch.setattr(this_machine, "total_memory_bytes", lambda: (64 << 30) - (90 << 20))
    assert machine_fingerprint("cuda:0") == before
    monkeypatch.setattr(this_machine, "visible_gpus", list)
    assert machine_fingerprint("cpu") == on_cpu == machine_fingerprint("auto")


@pytest.mark.usefixtures("one_card")
def test_auto_is_the_processor_where_torch_knows_no_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(this_machine, "version_of", lambda package: "2.13.0+cpu")
    assert resolved_device("auto") == "cpu"


@pytest.mark.parametrize("device", ["gpu", "cuda:", "cuda:x", "", "mps"])
def test_a_device_that_cannot_be_is_refused(device: str) -> None:
    with pytest.raises(ConfigurationError, match="expected auto, cpu, cuda or cuda:N"):
        machine_fingerprint(device)


def test_the_processor_s_name_is_found_and_its_lack_survived(tmp_path: Path) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    assert cpu_model(cpuinfo)
    cpuinfo.write_text("processor\t: 0\nmodel name\t: A Fine CPU @ 3 GHz\nflags\t: fpu\n")
    assert cpu_model(cpuinfo) == "A Fine CPU @ 3 GHz"


def test_a_cached_profile_is_read_without_torch() -> None:
    program = (
        "import sys, workbench.profiles.obtain, workbench.profiles.probe_command as command\n"
        "command.cached_profile()\n"
        "sys.exit(bool({'torch', 'transformers'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


# The profile in the cache


def keep(device: str = "cpu", disk: Path | None = None) -> None:
    profile = profile_on(ON_CPU, machine_fingerprint(device), None if disk is None else disk_at(str(disk)))
    assert cache_profile(profile, device) is not None


def disk_of(folder: Path) -> Any:
    found = cached_profile("cpu", str(folder))
    assert found is not None
    return found.disk


def test_what_was_kept_is_found_with_what_is_free_now(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    keep(disk=tmp_path)
    monkeypatch.setattr(this_machine, "free_host_bytes", lambda: 123)
    monkeypatch.setattr(this_machine, "free_disk_bytes", lambda path: 456)
    found = cached_profile("cpu", str(tmp_path))
    assert found is not None and found.disk is not None
    assert (found.host.free_bytes, found.disk.free_bytes) == (123, 456)
    assert found.host.read_bytes_per_s == profile_on(ON_CPU).host.read_bytes_per_s
    assert found.disk.read_bytes_per_s == disk_at("").read_bytes_per_s


def test_a_machine_that_has_changed_must_be_measured_again(monkeypatch: pytest.MonkeyPatch) -> None:
    keep()
    assert cached_profile("cpu") is not None
    monkeypatch.setattr(this_machine, "usable_cpus", lambda: 1000)
    assert cached_profile("cpu") is None


@pytest.mark.parametrize("damage", ["", "no TOML [", "[host]\n", "\0\0"])
def test_a_damaged_profile_is_none(damage: str, cache: Path) -> None:
    keep()
    (path,) = cache.glob("machines/*.toml")
    path.write_text(damage)
    assert cached_profile("cpu") is None


def test_each_folder_has_the_disk_that_was_measured_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = tmp_path / "a", tmp_path / "b"
    keep(disk=first)
    keep(disk=second)
    assert disk_of(first).path == str(first)
    assert disk_of(tmp_path / "x" / ".." / "b").path == str(second)
    assert disk_of(tmp_path / "c") is None
    monkeypatch.setattr(this_machine, "mount_of", lambda path: Mount("/dev/other", "/", "xfs"))
    assert disk_of(first) is None, "under another file system"


def test_without_a_cache_that_can_be_written_nothing_breaks(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("WORKBENCH_CACHE", str(tmp_path / "file" / "cache"))
    assert cache_profile(profile_on(ON_CPU, machine_fingerprint("cpu")), "cpu") is None
    assert cached_profile("cpu") is None


@pytest.mark.parametrize("name", ["~nobody-of-this-name/x", "circle"])
def test_a_name_that_leads_nowhere_is_refused(name: str, tmp_path: Path) -> None:
    (tmp_path / "circle").symlink_to(tmp_path / "back")
    (tmp_path / "back").symlink_to(tmp_path / "circle")
    path = Path(name) if name.startswith("~") else tmp_path / name
    with pytest.raises(ConfigurationError, match=f"{name}: names no folder: "):
        folder_of(path)


@pytest.mark.usefixtures("one_card")
def test_auto_and_its_number_are_the_same_card_and_the_processor_another_device() -> None:
    cache_profile(profile_on(ON_GPU, machine_fingerprint("auto")), "auto")
    for device in ("auto", "cuda", "cuda:0"):
        found = cached_profile(device)
        assert found is not None and found.device.free_bytes == 777
    keep("cpu")
    on_cpu, auto = cached_profile("cpu"), cached_profile("auto")
    assert on_cpu is not None and on_cpu.device.shared_memory
    assert auto is not None and not auto.device.shared_memory
    assert cached_profile("cuda:1") is None


@pytest.mark.usefixtures("one_card")
def test_where_torch_could_not_use_the_card_auto_gives_the_processor_and_the_card_stays_unmeasured() -> None:
    keep("auto")
    found = cached_profile("auto")
    assert found is not None and found.device.shared_memory
    assert cached_profile("cuda") is None


@pytest.mark.usefixtures("one_card")
def test_a_card_that_the_drivers_library_does_not_list_is_autos_and_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As in a container that was given the GPU to compute and no more."""
    monkeypatch.setattr(this_machine, "visible_gpus", list)
    cache_profile(profile_on(ON_GPU, machine_fingerprint("auto")), "auto")
    for device in ("auto", "cuda:0"):
        found = cached_profile(device)
        assert found is not None and found.device == ON_GPU
    assert cached_profile("cpu") is None
