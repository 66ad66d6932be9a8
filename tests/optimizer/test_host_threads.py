"""The pool behind the host optimizer: named threads, several pools, forks, closing, exit, and how many there are."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch
from torch import Tensor

from workbench.optimizer import candidates, fastest_thread_count, host
from workbench.optimizer.host import AdamW, HostOptimizer, Piece, PieceTable

LARGE = 300_000  # enough elements that all threads get slices

linux_only = pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="reads /proc")


def optimizer_threads(besides: dict[str, str] | None = None) -> dict[str, str]:
    """The names of all pools' threads in this process, by thread id."""
    names = {task.name: (task / "comm").read_text().strip() for task in Path("/proc/self/task").iterdir()}
    return {
        task: name
        for task, name in names.items()
        if name.startswith("host-adam") and task not in (besides or {})
    }


def none_left(besides: dict[str, str]) -> bool:
    """Whether the threads are gone. A joined thread stays listed until the kernel has buried it."""
    deadline = time.monotonic() + 20
    while (left := optimizer_threads(besides)) and time.monotonic() < deadline:
        os.sched_yield()
    return not left


def large_table() -> PieceTable:
    table = PieceTable([Piece(torch.zeros(LARGE), torch.zeros(LARGE), master=torch.zeros(LARGE))])
    table.set_gradient(0, torch.randn(LARGE, generator=torch.Generator().manual_seed(0)))
    table.set_step(0, 1)
    return table


def updated(optimizer: HostOptimizer) -> Tensor:
    table = large_table()
    optimizer.update(table, AdamW())
    master = table._pieces[0].master
    assert master is not None
    return master


def run_python(program: str) -> subprocess.CompletedProcess[str]:
    """A fresh interpreter with three threads in `optimizer` and a table large enough to use them."""
    prelude = (
        "import os, sys, threading, torch\n"
        "from workbench.optimizer.host import *\n"
        "torch.set_num_threads(1)  # torch's own OpenMP threads do not survive a fork\n"
        "optimizer = HostOptimizer(threads=3)\n"
        f"table = PieceTable([Piece(*(torch.zeros({LARGE}) for _ in range(3)))])\n"
        f"table.set_gradient(0, torch.ones({LARGE}))\n"
        "table.set_step(0, 1)\n"
        "optimizer.update(table, AdamW())\n"
    )
    return subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", prelude + program],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=Path(__file__).parents[2],
    )


@linux_only
@pytest.mark.parametrize("end", ["closed", "forgotten"])
def test_threads_are_named_take_no_signals_and_are_gone_in_the_end(end: str) -> None:
    before = optimizer_threads()
    with HostOptimizer(threads=1) as optimizer:
        updated(optimizer)
        assert optimizer_threads(before) == {}, "one thread is the calling thread alone"
    optimizer = HostOptimizer(threads=3)
    updated(optimizer)  # a thread that has worked has named itself
    with HostOptimizer(threads=2) as other:
        updated(other)
        assert sorted(optimizer_threads(before).values()) == ["host-adam/1", "host-adam/1", "host-adam/2"]
    for task in optimizer_threads(before):
        status = (Path("/proc/self/task") / task / "status").read_text()
        blocked = int(status.split("SigBlk:")[1].split()[0], 16)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP):
            assert blocked >> (number - 1) & 1
    if end == "closed":
        optimizer.close()
    del optimizer
    assert none_left(before)


def test_two_pools_at_once_from_two_threads_and_two_threads_on_one_pool_give_the_same_bits() -> None:
    with HostOptimizer(threads=2) as first, HostOptimizer(threads=3) as second:
        expected = updated(first)
        results: list[Tensor] = []

        def work(optimizer: HostOptimizer) -> None:
            for _ in range(20):
                results.append(updated(optimizer))

        threads = [threading.Thread(target=work, args=(used,)) for used in (first, first, second, second)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(results) == 80
    assert all(torch.equal(result, expected) for result in results)


def test_closing_during_a_call_lets_the_call_finish() -> None:
    def work(optimizer: HostOptimizer, started: threading.Event, outcome: list[str]) -> None:
        table = large_table()
        try:
            while True:
                optimizer.sum_of_squares(table)
                started.set()
        except RuntimeError as error:
            outcome.append(str(error))

    for _ in range(20):
        optimizer, started, outcome = HostOptimizer(threads=3), threading.Event(), []
        thread = threading.Thread(target=work, args=(optimizer, started, outcome))
        thread.start()
        started.wait()
        optimizer.close()
        optimizer.close()
        thread.join(timeout=30)
        assert outcome == ["this HostOptimizer is closed"]


@linux_only
def test_a_forked_child_starts_threads_of_its_own_and_the_parent_keeps_its_own() -> None:
    run = run_python(
        "from pathlib import Path\n"
        "def names():\n"
        "    tasks = Path('/proc/self/task').iterdir()\n"
        "    found = [(task / 'comm').read_text().strip() for task in tasks]\n"
        "    return sorted(name for name in found if name.startswith('host-adam'))\n"
        "def moved():\n"
        "    before = table._pieces[0].master.clone()\n"
        "    optimizer.update(table, AdamW())\n"
        "    return bool((table._pieces[0].master != before).all())\n"
        "sys.stdout.flush()\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    good = names() == [] and moved() and names() == ['host-adam/1', 'host-adam/2']\n"
        "    optimizer.close()\n"
        "    with HostOptimizer(threads=2) as another:\n"
        "        another.sum_of_squares(table)\n"
        "    os._exit(0 if good else 7)\n"
        "print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), moved(), names())\n"
    )
    assert run.stdout == "0 True ['host-adam/1', 'host-adam/2']\n", run.stderr


@linux_only
@pytest.mark.slow
def test_a_fork_while_another_thread_is_in_a_call_leaves_a_working_child() -> None:
    run = run_python(
        "stop = threading.Event()\n"
        "def work():\n"
        "    while not stop.is_set():\n"
        "        optimizer.sum_of_squares(table)\n"
        "thread = threading.Thread(target=work)\n"
        "thread.start()\n"
        "codes = []\n"
        "for _ in range(30):\n"
        "    child = os.fork()\n"
        "    if child == 0:\n"
        "        optimizer.sum_of_squares(table)\n"
        f"        os._exit(0 if table.partials.sum() == {LARGE} else 7)\n"
        "    codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n"
        "stop.set()\n"
        "thread.join()\n"
        "print(set(codes))\n"
    )
    assert run.stdout == "{0}\n", run.stderr


def test_the_interpreter_leaves_cleanly_without_close_while_a_daemon_thread_is_in_a_call() -> None:
    run = run_python(
        "import builtins; builtins.kept = kept = [optimizer]; kept.append(kept)\n"
        "started = threading.Event()\n"
        "def work():\n"
        "    try:\n"
        "        while True:\n"
        "            optimizer.sum_of_squares(table)\n"
        "            started.set()\n"
        "    except RuntimeError:\n"
        "        pass\n"
        "threading.Thread(target=work, daemon=True).start()\n"
        "started.wait()\n"
        "print('end')\n"
    )
    assert (run.returncode, run.stdout, run.stderr) == (0, "end\n", "")


# How many


@linux_only
def test_auto_respects_affinity() -> None:
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    try:
        with HostOptimizer() as optimizer:
            assert optimizer.threads == 1
    finally:
        os.sched_setaffinity(0, before)


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


def test_auto_measures_once_and_stays_within_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    host.measured_threads.cache_clear()
    chosen = host.measured_threads(2)
    assert chosen in (1, 2)
    monkeypatch.setattr(host, "fastest_thread_count", None)  # a second measurement would call it
    monkeypatch.setattr(host, "usable_cpus", lambda: 2)
    with HostOptimizer() as optimizer:
        assert optimizer.threads == chosen
    assert host.measured_threads(1) == 1
