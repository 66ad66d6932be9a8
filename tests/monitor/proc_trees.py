"""Small trees of /proc and /sys, written anew for each moment of a test."""

from __future__ import annotations

from pathlib import Path

MEMINFO = """MemTotal:       16000000 kB
MemFree:         4000000 kB
MemAvailable:    9000000 kB
Buffers:          500000 kB
Cached:          6000000 kB
Shmem:            700000 kB
SwapTotal:       2000000 kB
SwapFree:        1500000 kB
SReclaimable:     200000 kB
HugePages_Total:       0
"""
KIB = 1024


class Clock:
    """Seconds that only rise, as far as the test says."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def core_times(*cores: tuple[int, int, int, int]) -> str:
    """/proc/stat of cores with (user, system, idle, iowait) clock ticks."""
    lines = ["cpu  1 1 1 1 1 1 1 1 0 0"]
    lines += [
        f"cpu{i} {user} 0 {system} {idle} {wait} 0 0 0 0 0"
        for i, (user, system, idle, wait) in enumerate(cores)
    ]
    return "\n".join([*lines, "intr 12345 0", "ctxt 5"])


def process_stat(
    name: str, ticks: int, *, state: str = "S", started: int = 500, pages: int = 10, core: int = 0
) -> str:
    """/proc/PID/stat with so many clock ticks of work, three quarters of them the user's."""
    fields = ["0"] * 50
    fields[0] = state
    fields[11], fields[12] = str(ticks - ticks // 4), str(ticks // 4)
    fields[19], fields[21], fields[36] = str(started), str(pages), str(core)
    return f"77 ({name}) {' '.join(fields)}\n"
