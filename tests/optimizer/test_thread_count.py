"""The number of threads is the smallest that is about as fast as any."""

from __future__ import annotations

import pytest

from workbench.optimizer import candidates, fastest_thread_count, host


@pytest.mark.parametrize(
    ("most", "counts"), [(1, [1]), (2, [1, 2]), (3, [1, 2, 3]), (8, [1, 2, 4, 8]), (12, [1, 2, 4, 8, 12])]
)
def test_powers_of_two_and_all_cpus_are_tried(most: int, counts: list[int]) -> None:
    assert candidates(most) == counts


def test_threads_that_memory_cannot_feed_are_not_taken() -> None:
    """Speed grows up to 8 threads and then stays."""
    assert fastest_thread_count(64, lambda threads: 1 / min(threads, 8)) == 8
    assert fastest_thread_count(64, lambda threads: 1 / min(threads, 8) - threads * 1e-5) == 8
    assert fastest_thread_count(64, lambda threads: 1 / threads) == 64
    assert fastest_thread_count(2, lambda threads: float(threads)) == 1


def test_a_machine_that_is_busy_now_and_then_does_not_decide() -> None:
    calls = 0

    def seconds(threads: int) -> float:
        nonlocal calls
        calls += 1
        return 1 / threads + (10 if calls % 3 == 0 else 0)

    assert fastest_thread_count(16, seconds) == 16


def test_one_cpu_is_not_measured() -> None:
    def never(threads: int) -> float:
        raise AssertionError("measured")

    assert fastest_thread_count(1, never) == 1
    assert host.measured_threads(1) == 1


def test_auto_measures_once_and_stays_within_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    host.measured_threads.cache_clear()
    chosen = host.measured_threads(2)
    assert chosen in (1, 2)
    monkeypatch.setattr(host, "fastest_thread_count", None)  # a second measurement would call it
    monkeypatch.setattr(host, "usable_cpus", lambda: 2)
    with host.HostOptimizer() as optimizer:
        assert optimizer.threads == chosen
