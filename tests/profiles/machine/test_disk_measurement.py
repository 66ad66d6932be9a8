"""A disk is measured with files that are gone afterwards, whatever happens; what is not direct is not called so."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from types import SimpleNamespace

import pytest
from tiny_probe import TINY

from workbench.engine import disk_files as engine_disk
from workbench.engine.disk_files import RecordFile
from workbench.errors import ConfigurationError
from workbench.profiles import disk_speed
from workbench.profiles.disk_speed import RECORD_BYTES, measure_disk
from workbench.system.free_space import Mount


def test_it_measures_and_leaves_a_folder_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("stays")
    measure_disk(tmp_path / "one" / "two", TINY)
    found = measure_disk(tmp_path, TINY)
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]
    assert found.path == str(tmp_path)
    rates = [value for name, value in found.model_dump().items() if name.endswith("per_s")]
    assert len(rates) == 6
    assert all(1e5 < rate < 1e12 for rate in rates)


@pytest.mark.parametrize("raised", [KeyboardInterrupt, RuntimeError])
def test_what_interrupts_it_leaves_nothing_either(
    raised: type[BaseException], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise raised

    monkeypatch.setattr(RecordFile, "read", interrupted)
    with pytest.raises(raised):
        measure_disk(tmp_path / "new", TINY)
    assert list(tmp_path.iterdir()) == []


def test_only_what_was_written_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """A record that never was would come from nowhere, and fast; a slow disk does not come to write all of them."""
    now = 0.0
    written: set[int] = set()
    read: set[int] = set()

    def write(record: int) -> None:
        nonlocal now
        now += 1.0
        written.add(record)

    def come(record: int) -> None:
        nonlocal now
        now += 1e-3
        read.add(record)

    monkeypatch.setattr("time.perf_counter", lambda: now)
    rates, records = disk_speed._rates({"": disk_speed.Way(write, come)}, records=100, limit_s=40.0)
    assert rates == {"write": pytest.approx(RECORD_BYTES), "read": pytest.approx(1e3 * RECORD_BYTES)}
    assert len(written) == records < 100
    assert read == written


@pytest.mark.parametrize("why", ["in memory", "no direct I/O"])
def test_what_is_not_direct_is_not_called_so(
    why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if why == "in memory":
        monkeypatch.setattr(disk_speed, "mount_of", lambda path: Mount("tmpfs", "/", "tmpfs"))
    else:
        monkeypatch.setattr(engine_disk, "_takes_direct", lambda folder: False)
    assert not measure_disk(tmp_path, TINY).direct
    assert list(tmp_path.iterdir()) == []


def test_files_take_no_more_than_a_quarter_of_what_is_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = 8 * 3 * RECORD_BYTES
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=free))
    sizes: list[int] = []
    allocate = os.posix_fallocate

    def note(descriptor: int, start: int, size: int) -> None:
        sizes.append(size)
        allocate(descriptor, start, size)

    monkeypatch.setattr(os, "posix_fallocate", note)
    measure_disk(tmp_path, dataclasses.replace(TINY, disk_bytes=1 << 40))
    assert 0 < sum(sizes) <= free // 4


def test_a_full_disk_is_one_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=RECORD_BYTES))
    with pytest.raises(ConfigurationError, match=r"--disk .*: 16 MiB are free; a measurement needs 192 MiB"):
        measure_disk(tmp_path, TINY)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("where", ["a file", "a file/inside"])
def test_what_is_no_folder_is_one_message(where: str, tmp_path: Path) -> None:
    (tmp_path / "a file").write_text("")
    with pytest.raises(ConfigurationError, match=r"--disk .*a file.*name another disk_path"):
        measure_disk(tmp_path / where, TINY)
    assert [path.name for path in tmp_path.iterdir()] == ["a file"]
