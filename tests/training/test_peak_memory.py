"""The peak that a run is told by is that of training, not of what was read before it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from workbench.training.peak_memory import CLEAR, peak_host_bytes

MIB = 1 << 20


def test_the_peak_is_what_the_system_says(tmp_path: Path) -> None:
    (tmp_path / "status").write_text("Name:\tx\nVmPeak:\t  900 kB\nVmHWM:\t  123 kB\n")
    assert peak_host_bytes(tmp_path / "status") == 123 * 1024
    assert peak_host_bytes(tmp_path / "none") > MIB


@pytest.mark.skipif(not CLEAR.exists(), reason="this system does not let a process forget its peak")
def test_what_was_held_before_is_forgotten_and_what_comes_after_counts() -> None:
    program = f"""
from workbench.training.peak_memory import forget_peak, peak_host_bytes
held = bytearray(b"x") * (200 * {MIB})
high = peak_host_bytes()
del held
forget_peak()
low = peak_host_bytes()
held = bytearray(b"x") * (100 * {MIB})
assert low < high - 150 * {MIB}, (low, high)
assert low + 90 * {MIB} < peak_host_bytes() < high
"""
    subprocess.run([sys.executable, "-c", program], check=True)
