"""The C library's heap, told to give large blocks back to the system.

glibc maps a large block for itself and unmaps it when it is freed, but each time one is freed it raises the size from
which on it does so, up to 32 MiB. Then the inputs of blocks, which stay, lie in one heap between temporaries that go,
and the holes add up with the depth of the model: 10 MiB a block where half a MiB is kept. The pages of a mapped block
are made anew at each use, which takes a tenth of a step's time on a CPU: worth it where memory is what is short.
"""

from __future__ import annotations

import ctypes
import sys

MAPPED_FROM_BYTES = 2 << 20
TRIMMED_FROM_BYTES = 32 << 20
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # malloc.h


def give_large_blocks_back() -> bool:
    """From now on, in all of this process. False where the C library has no such setting."""
    if sys.platform != "linux":
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    return bool(
        mallopt(M_MMAP_THRESHOLD, MAPPED_FROM_BYTES) and mallopt(M_TRIM_THRESHOLD, TRIMMED_FROM_BYTES)
    )
