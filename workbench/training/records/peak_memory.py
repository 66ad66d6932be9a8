"""The most memory that this process ever had, as Linux counts it, and how to count anew.

What reading and preparing the text took before training began is not what a plan speaks of.
"""

from __future__ import annotations

import contextlib
import ctypes
import re
import resource
from pathlib import Path

STATUS = Path("/proc/self/status")
CLEAR = Path("/proc/self/clear_refs")
FORGET_PEAK = "5"
"""To CLEAR: the highest resident size is the present one from now on (proc(5))."""


def peak_host_bytes(status: Path = STATUS) -> int:
    """The highest resident size so far (VmHWM; elsewhere than on Linux what getrusage says)."""
    try:
        found = re.search(r"^VmHWM:\s*(\d+) kB$", status.read_text(), re.MULTILINE)
    except OSError:
        found = None
    return 1024 * (int(found.group(1)) if found else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)


def forget_peak() -> None:
    """Count the peak from now on, as far as the system lets us; what the C library holds unused goes back first."""
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)
    with contextlib.suppress(OSError):
        CLEAR.write_text(FORGET_PEAK)
