"""`workbench probe`: measured once, shown from then on, data on stdout and all else on stderr."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tiny_probe import ON_CPU, TINY, profile_on

from workbench.errors import EXIT_DONE, ConfigurationError
from workbench.profiles import probe_command as command
from workbench.profiles.machine_profile import MachineProfile
from workbench.profiles.probe_command import probe
from workbench.profiles.this_machine import cached_profile, machine_fingerprint
from workbench.system.folders import cache_folder, write_cached


@pytest.fixture(autouse=True)
def measurements(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is measured, in order; nothing really is, except disks, on a tiny budget."""
    from workbench.profiles import disk_speed as disk
    from workbench.profiles import probe as run

    done: list[str] = []
    measure_disk = disk.measure_disk

    def machine(device: str, path: Path | None, tell: Any, budget: object, note: str) -> MachineProfile:
        done.append("quick machine" if budget is command.QUICK else "machine")
        tell("memory: fast")
        found = None if path is None else measure_disk(path, TINY)
        return profile_on(ON_CPU, machine_fingerprint(device), found).model_copy(update={"note": note})

    def only_disk(path: Path, budget: object) -> object:
        done.append(f"disk {path.name}")
        return measure_disk(path, TINY)

    monkeypatch.setattr(run, "measure_machine", machine)
    monkeypatch.setattr(disk, "measure_disk", only_disk)
    return done


def ask(disk: Path | None = None, *, fresh: bool = False, quick: bool = False, as_json: bool = False) -> None:
    assert probe(device="cpu", disk_path=disk, as_json=as_json, fresh=fresh, quick=quick) == EXIT_DONE


def test_it_is_measured_once(
    measurements: list[str], capsys: pytest.CaptureFixture[str], cache: Path
) -> None:
    ask()
    first = capsys.readouterr()
    assert "memory: fast" in first.err and f"cached in {cache}" in first.err
    assert "update bfloat16-exact ns" in first.out and "memory: fast" not in first.out
    ask()
    second = capsys.readouterr()
    assert "the machine has not changed; `workbench probe --fresh`" in second.err
    assert ": 16 cores" in second.out
    assert measurements == ["machine"]
    ask(fresh=True)
    assert measurements == ["machine", "machine"]


def test_a_quick_measurement_does_for_a_quick_probe_only(measurements: list[str]) -> None:
    ask(quick=True)
    ask(quick=True)
    ask()
    ask(quick=True)
    assert measurements == ["quick machine", "machine"]
    assert cached_profile("cpu").note == ""  # type: ignore[union-attr]


def test_what_was_measured_on_a_busy_machine_is_measured_again_by_a_probe_alone(
    monkeypatch: pytest.MonkeyPatch,
    measurements: list[str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    from workbench.profiles import probe as run

    idle = run.measure_machine
    monkeypatch.setattr(
        run, "measure_machine", lambda *them: idle(*them).model_copy(update={"busy_cores": 2.0})
    )
    ask()
    assert "used 2.0 of" in capsys.readouterr().out
    assert command.measured_machine("cpu", None).busy_cores == 2.0  # a plan takes it as it is
    monkeypatch.setattr(run, "measure_machine", idle)
    ask()
    assert measurements == ["machine", "machine"]


def test_of_a_known_machine_only_another_disk_is_measured(
    measurements: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ask(tmp_path / "one")
    ask(tmp_path / "other")
    ask(tmp_path / "one")
    assert measurements == ["machine", "disk other"]
    assert f"disk {tmp_path / 'one'}" in capsys.readouterr().out
    assert cached_profile("cpu", str(tmp_path / "one")).disk is not None  # type: ignore[union-attr]


def test_json_is_the_profile_and_nothing_else(capsys: pytest.CaptureFixture[str]) -> None:
    ask()
    capsys.readouterr()
    ask(as_json=True)
    shown = MachineProfile.model_validate(json.loads(capsys.readouterr().out))
    assert shown.host.optimizer_ns == profile_on(ON_CPU).host.optimizer_ns


def test_a_wrong_device_is_refused_before_anything_is_measured(measurements: list[str]) -> None:
    with pytest.raises(ConfigurationError, match="expected auto, cpu, cuda or cuda:N"):
        probe(device="gpu", disk_path=None, as_json=False, fresh=True, quick=True)
    assert measurements == []


def test_a_machine_that_is_measured_anew_forgets_the_times_of_models_pieces(measurements: list[str]) -> None:
    """They may have been taken beside a busy program, and would outlive the probe that is to mend that."""
    times = write_cached("times/of-a-model.json", "{}")
    ask()
    assert times is not None and not times.exists()
    write_cached("times/of-a-model.json", "{}")
    ask()
    assert (cache_folder() / "times/of-a-model.json").exists() and measurements == ["machine"]
