"""The highest resident memory of this process, as Linux counts it, and a way to count anew.

A plan is about training: the peak of reading and preparing the text before it does not count.
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
    """Return the highest resident size so far, bytes: VmHWM; elsewhere than on Linux that of getrusage."""
    try:
        found = re.search(r"^VmHWM:\s*(\d+) kB$", status.read_text(), re.MULTILINE)
    except OSError:
        found = None
    return 1024 * (int(found.group(1)) if found else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)


def forget_peak() -> None:
    """Count the peak from now on, as far as the system allows; unused memory of the C library goes back first."""
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)
    with contextlib.suppress(OSError):
        CLEAR.write_text(FORGET_PEAK)
