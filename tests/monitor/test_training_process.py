"""The training process: its rates, its threads by name, and never another process of the same number."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from recorded_nvml import Clock

from workbench.monitor.samples import ThreadSample, TrainerSample
from workbench.monitor.training_process import TrainingProcessReader

TICKS = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")
IO = "rchar: 9\nwchar: 9\nsyscr: 1\nsyscw: 1\nread_bytes: {}\nwrite_bytes: {}\ncancelled_write_bytes: 0\n"
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


def stat(name: str, ticks: int, *, state: str = "S", started: int = 500, core: int = 0) -> str:
    """/proc/PID/stat with so many clock ticks of work, three quarters of them the user's."""
    fields = ["0"] * 50
    fields[0] = state
    fields[11], fields[12] = str(ticks - ticks // 4), str(ticks // 4)
    fields[19], fields[36] = str(started), str(core)
    return f"77 ({name}) {' '.join(fields)}\n"


@pytest.fixture
def proc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """/proc with a process 77."""
    monkeypatch.setattr(psutil, "PROCFS_PATH", str(tmp_path))
    (tmp_path / "77").mkdir()
    (tmp_path / "stat").write_text("btime 1700000000\n")
    put(tmp_path, {"stat": stat("python", 1000)})
    return tmp_path / "77"


def put(root: Path, files: dict[str, str], *, pages: int = 10) -> None:
    folder = root if root.name == "77" else root / "77"
    for name, text in {**files, "statm": f"500 {pages} 1 1 0 1 0\n", "status": "Name:\tpython\n"}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def test_shares_and_rates_are_those_of_the_time_between_two_readings(proc: Path) -> None:
    threads = {
        "task/77/stat": stat("python", 900),
        "task/80/stat": stat("host-adam/0", 100),
        "task/81/stat": stat("idle one", 5),
    }
    put(proc, {"io": IO.format(5000, 100), **threads}, pages=300)
    clock = Clock()
    reader = TrainingProcessReader(77, clock)
    assert reader.read() == TrainerSample(77, memory_bytes=300 * PAGE)
    clock.now += 2.0
    threads = {
        "task/77/stat": stat("python", 900 + TICKS // 2, core=5),
        "task/80/stat": stat("host-adam/0", 100 + 2 * TICKS, core=3),
        "task/82/stat": stat("a (new) one", TICKS // 2, core=1),
    }
    put(proc, {"stat": stat("python", 1000 + 3 * TICKS), "io": IO.format(9000, 100), **threads}, pages=400)
    found = TrainerSample(
        77,
        memory_bytes=400 * PAGE,
        busy=pytest.approx(1.5),
        threads=(
            ThreadSample("host-adam/0", 80, 1.0, 3),
            ThreadSample("a (new) one", 82, 0.25, 1),
            ThreadSample("python", 77, 0.25, 5),
        ),
        read_bytes_per_s=2000.0,
        written_bytes_per_s=0.0,
    )
    assert reader.read() == found
    clock.now += 0.01  # too soon for other rates
    put(proc, {"stat": stat("python", 1000 + 9 * TICKS)}, pages=99)
    sample = reader.read()
    assert (sample.busy, sample.memory_bytes) == (pytest.approx(1.5), 99 * PAGE)


@pytest.mark.parametrize(
    "then",
    [stat("python", 9, state="Z"), stat("python", 9, state="X"), stat("other", 9, started=50_000)],
    ids=["a zombie", "dead", "another process of the same number"],
)
def test_a_process_that_has_ended_is_gone(proc: Path, then: str) -> None:
    clock = Clock()
    reader = TrainingProcessReader(77, clock)
    assert reader.read().alive
    clock.now += 0.5
    put(proc, {"stat": then})
    assert reader.read() == TrainerSample(77, alive=False)


def test_a_process_that_never_was_is_gone() -> None:
    assert TrainingProcessReader(2**22 + 1).read() == TrainerSample(2**22 + 1, alive=False)


def test_a_real_childs_thread_is_found_by_the_name_it_gave_itself_and_its_end_is_seen() -> None:
    clock = Clock()
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert child.stdin is not None and child.stdout is not None
    try:
        reader = TrainingProcessReader(child.pid, clock)
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
        # The kernel rounds the times of a process and of a thread to clock ticks, each by itself.
        assert sample.busy is not None and sample.busy > thread.busy / 2
        assert sample.written_bytes_per_s is not None
    finally:
        child.kill()
        child.communicate()
    assert reader.read() == TrainerSample(child.pid, alive=False)
