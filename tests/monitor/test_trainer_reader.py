"""The training process: its rates, its threads by name, and never another process of the same number."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from proc_trees import Clock, process_stat, write

from workbench.monitor.samples import ThreadSample, TrainerSample
from workbench.monitor.trainer import TrainerReader

TICKS = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")
CHILD = """
import ctypes, sys, threading, time
def work():
    ctypes.CDLL(None).prctl(15, b"host-adam/3", 0, 0, 0)
    print("named", flush=True)
    sys.stdin.readline()
    until = time.thread_time() + 0.15
    while time.thread_time() < until:
        pass
    print("worked", flush=True)
    sys.stdin.readline()
threading.Thread(target=work).start()
"""


def at(root: Path, moment: dict[str, str]) -> None:
    write(root, {f"proc/77/{name}": text for name, text in moment.items()})


def test_shares_and_rates_are_those_of_the_time_between_two_readings(tmp_path: Path) -> None:
    clock = Clock()
    reader = TrainerReader(77, tmp_path, clock)
    io = "rchar: 9\nwchar: 9\nread_bytes: {}\nwrite_bytes: {}\ncancelled_write_bytes: 0\n"
    at(
        tmp_path,
        {
            "stat": process_stat("python", 1000, pages=300),
            "io": io.format(5000, 100),
            "task/77/stat": process_stat("python", 900),
            "task/80/stat": process_stat("host-adam/0", 100),
            "task/81/stat": process_stat("idle one", 5),
        },
    )
    assert reader.read() == TrainerSample(77, memory_bytes=300 * PAGE)
    clock.now += 2.0
    at(
        tmp_path,
        {
            "stat": process_stat("python", 1000 + 3 * TICKS, pages=400),
            "io": io.format(9000, 100),
            "task/77/stat": process_stat("python", 900 + TICKS // 2, core=5),
            "task/80/stat": process_stat("host-adam/0", 100 + 2 * TICKS, core=3),
            "task/82/stat": process_stat("a (new) one", TICKS // 2, core=1),
        },
    )
    assert reader.read() == TrainerSample(
        77,
        memory_bytes=400 * PAGE,
        busy=1.5,
        threads=(
            ThreadSample("host-adam/0", 80, 1.0, 3),
            ThreadSample("a (new) one", 82, 0.25, 1),
            ThreadSample("python", 77, 0.25, 5),
        ),
        read_bytes_per_s=2000.0,
        written_bytes_per_s=0.0,
    )


def test_rates_stand_where_too_little_time_has_passed_to_tell_others(tmp_path: Path) -> None:
    clock = Clock()
    reader = TrainerReader(77, tmp_path, clock)
    at(tmp_path, {"stat": process_stat("python", 0)})
    reader.read()
    clock.now += 0.5
    at(tmp_path, {"stat": process_stat("python", TICKS // 2)})
    assert reader.read().busy == 1.0
    clock.now += 0.01
    at(tmp_path, {"stat": process_stat("python", TICKS // 2 + 4, pages=99)})
    sample = reader.read()
    assert (sample.busy, sample.memory_bytes) == (1.0, 99 * PAGE)


def test_traffic_that_may_not_be_seen_is_none(tmp_path: Path) -> None:
    clock = Clock()
    reader = TrainerReader(77, tmp_path, clock)
    at(tmp_path, {"stat": process_stat("python", 0)})
    reader.read()
    clock.now += 0.5
    sample = reader.read()
    assert (sample.busy, sample.read_bytes_per_s, sample.written_bytes_per_s) == (0.0, None, None)


@pytest.mark.parametrize("state", ["Z", "X"])
def test_a_process_that_has_ended_is_gone_even_before_it_is_collected(tmp_path: Path, state: str) -> None:
    reader = TrainerReader(77, tmp_path)
    at(tmp_path, {"stat": process_stat("python", 9, state=state)})
    assert reader.read() == TrainerSample(77, alive=False)


def test_a_number_that_has_gone_to_another_process_is_a_trainer_that_is_gone(tmp_path: Path) -> None:
    clock = Clock()
    reader = TrainerReader(77, tmp_path, clock)
    at(tmp_path, {"stat": process_stat("python", 9, started=500)})
    assert reader.read().alive
    clock.now += 0.5
    at(tmp_path, {"stat": process_stat("other", 9, started=501)})
    assert reader.read() == TrainerSample(77, alive=False)


def test_a_process_that_never_was_is_gone(tmp_path: Path) -> None:
    assert TrainerReader(77, tmp_path).read() == TrainerSample(77, alive=False)


def test_a_real_childs_thread_is_found_by_the_name_it_gave_itself_and_its_end_is_seen() -> None:
    clock = Clock()
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert child.stdin is not None and child.stdout is not None
    try:
        reader = TrainerReader(child.pid, clock=clock)
        assert child.stdout.readline() == "named\n"
        first = reader.read()
        assert first.alive and first.memory_bytes is not None and first.memory_bytes > 1 << 20
        child.stdin.write("\n")
        child.stdin.flush()
        assert child.stdout.readline() == "worked\n"
        clock.now += 1.0
        sample = reader.read()
        (thread,) = [thread for thread in sample.threads if thread.name == "host-adam/3"]
        assert 0.1 <= thread.busy <= 0.3
        assert thread.thread_id != child.pid
        assert thread.core is not None and 0 <= thread.core < (os.cpu_count() or 1)
        assert sample.busy is not None and sample.busy >= thread.busy
        assert sample.written_bytes_per_s is not None
    finally:
        child.kill()
        child.communicate()
    assert reader.read() == TrainerSample(child.pid, alive=False)
