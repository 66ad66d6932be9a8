"""A measured profile is given out again while the machine is the same, with what is free on it now."""

from __future__ import annotations

from pathlib import Path

import pytest
from tiny_probe import ON_CPU, ON_GPU, disk_at, profile_on

from workbench.errors import ConfigurationError
from workbench.profiles import this_machine
from workbench.profiles.this_machine import Gpu, cache_profile, cached_profile, folder_of, machine_fingerprint
from workbench.system.free_space import Mount


def keep(device: str = "cpu", disk: Path | None = None) -> None:
    profile = profile_on(ON_CPU, machine_fingerprint(device), None if disk is None else disk_at(str(disk)))
    assert cache_profile(profile, device) is not None


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


def test_each_folder_has_the_disk_that_was_measured_there(tmp_path: Path) -> None:
    first, second, third = (tmp_path / name for name in "abc")
    keep(disk=first)
    keep(disk=second)
    assert cached_profile("cpu", str(first)).disk.path == str(first)  # type: ignore[union-attr]
    assert cached_profile("cpu", str(tmp_path / "x" / ".." / "b")).disk.path == str(second)  # type: ignore[union-attr]
    assert cached_profile("cpu", str(third)).disk is None  # type: ignore[union-attr]
    assert cached_profile("cpu").disk is None  # type: ignore[union-attr]


def test_a_disk_under_another_file_system_must_be_measured_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    keep(disk=tmp_path)
    monkeypatch.setattr(this_machine, "mount_of", lambda path: Mount("/dev/other", "/", "xfs"))
    assert cached_profile("cpu", str(tmp_path)).disk is None  # type: ignore[union-attr]


def test_without_a_cache_that_can_be_written_nothing_breaks(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("WORKBENCH_CACHE", str(tmp_path / "file" / "cache"))
    assert cache_profile(profile_on(ON_CPU, machine_fingerprint("cpu")), "cpu") is None
    assert cached_profile("cpu") is None


@pytest.mark.parametrize("name", ["~nobody-of-this-name/x", "circle"])
def test_a_name_that_leads_nowhere_is_one_message(name: str, tmp_path: Path) -> None:
    (tmp_path / "circle").symlink_to(tmp_path / "back")
    (tmp_path / "back").symlink_to(tmp_path / "circle")
    path = Path(name) if name.startswith("~") else tmp_path / name
    with pytest.raises(ConfigurationError, match=f"{name}: names no folder: "):
        cached_profile("cpu", str(path)) or folder_of(path)


class TestWithACard:
    @pytest.fixture(autouse=True)
    def card(self, monkeypatch: pytest.MonkeyPatch) -> None:
        gpus = [Gpu("a card", 24 << 30, 777, "555.1")]
        monkeypatch.setattr(this_machine, "visible_gpus", lambda: gpus)
        monkeypatch.setattr(this_machine, "_torch_version", lambda: "2.13.0+cu126")

    def test_auto_and_its_number_are_the_same_card_and_the_processor_another_device(self) -> None:
        cache_profile(profile_on(ON_GPU, machine_fingerprint("auto")), "auto")
        for device in ("auto", "cuda", "cuda:0"):
            found = cached_profile(device)
            assert found is not None
            assert found.device.free_bytes == 777
        assert cached_profile("cpu") is None
        assert cached_profile("cuda:1") is None

    def test_where_torch_could_not_use_the_card_auto_gives_the_processor_and_the_card_stays_unmeasured(
        self,
    ) -> None:
        cache_profile(profile_on(ON_CPU, machine_fingerprint("auto")), "auto")
        found = cached_profile("auto")
        assert found is not None and found.device.shared_memory
        assert cached_profile("cuda") is None

    def test_what_was_measured_on_the_processor_alone_is_not_auto_s(self) -> None:
        keep("cpu")
        assert cached_profile("cpu") is not None
        assert cached_profile("auto") is None


class TestWithACardThatTheDriversLibraryDoesNotTellOf:
    """As in a container that was given the GPU to compute and no more."""

    @pytest.fixture(autouse=True)
    def card(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(this_machine, "visible_gpus", list)
        monkeypatch.setattr(this_machine, "_torch_version", lambda: "2.13.0+cu126")
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    def test_what_was_measured_on_it_is_autos_and_its_own_and_not_the_processors(self) -> None:
        cache_profile(profile_on(ON_GPU, machine_fingerprint("auto")), "auto")
        for device in ("auto", "cuda", "cuda:0"):
            found = cached_profile(device)
            assert found is not None and found.device == ON_GPU
        assert cached_profile("cpu") is None
        keep("cpu")
        found, on_cpu = cached_profile("auto"), cached_profile("cpu")
        assert found is not None and found.device == ON_GPU
        assert on_cpu is not None and on_cpu.device == ON_CPU

    @pytest.mark.parametrize("visible", ["", "-1"])
    def test_where_gpus_are_hidden_auto_is_the_processor(
        self, visible: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        cache_profile(profile_on(ON_GPU, machine_fingerprint("auto")), "auto")
        keep("cpu")
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        found = cached_profile("auto")
        assert found is not None and found.device == ON_CPU
