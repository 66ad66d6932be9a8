"""Who else keeps the processor busy is told apart from the probe itself."""

from __future__ import annotations

import pytest
from workbench.profiles.machine import others
from workbench.profiles.machine.others import Others


@pytest.mark.parametrize(
    ("machine_s", "own_s", "cores", "noteworthy"),
    [(20.0, 20.0, 0.0, False), (25.0, 20.0, 0.5, False), (40.0, 20.0, 2.0, True), (19.9, 20.0, 0.0, False)],
)
def test_the_probe_s_own_time_is_not_another_s(
    machine_s: float, own_s: float, cores: float, noteworthy: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = {"wall": 100.0, "machine": 5000.0, "own": 7.0}
    monkeypatch.setattr("time.perf_counter", lambda: now["wall"])
    monkeypatch.setattr("os.cpu_count", lambda: 4)
    monkeypatch.setattr(others, "_busy_s", lambda: now["machine"])
    monkeypatch.setattr(others, "_own_s", lambda: now["own"])
    meanwhile = Others()
    now = {"wall": 110.0, "machine": 5000.0 + machine_s, "own": 7.0 + own_s}
    assert meanwhile.cores() == pytest.approx(cores)
    assert bool(meanwhile.note()) is noteworthy


def test_the_system_is_asked() -> None:
    assert others._own_s() > 0
    assert others._busy_s() >= 0
    assert Others().cores() >= 0
