"""Large blocks that are freed go back to the system, whatever stays beside them."""

from __future__ import annotations

import subprocess
import sys

import pytest

from workbench.engine.devices.buffers import MAPPED_FROM_BYTES

SCRIPT = """
import sys
import psutil, torch
from workbench.engine.devices.buffers import give_large_blocks_back

def resident():
    return psutil.Process().memory_info().rss

del (first := [torch.ones(24 << 18)])[:]  # glibc takes this for a sign that such blocks belong in the heap
if sys.argv[1] == "told":
    assert give_large_blocks_back()
before = resident()
kept = []
for _ in range(20):
    large = [torch.ones(int(sys.argv[2]) >> 2) for _ in range(4)]
    kept.append(torch.ones(1 << 17))
    del large[::2]
    kept.append(large)
for large in kept[1::2]:
    large.clear()
print(resident() - before - sum(t.nbytes for t in kept[::2]))
"""


def left_over(*arguments: str) -> int:
    """Bytes that stay resident though nothing holds them."""
    run = subprocess.run(
        [sys.executable, "-c", SCRIPT, *arguments], capture_output=True, text=True, check=True
    )
    return int(run.stdout)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="glibc's heap")
def test_freed_blocks_leave_the_process_once_the_heap_is_told() -> None:
    size = 2 * MAPPED_FROM_BYTES
    told = left_over("told", str(size))
    assert told < 16 << 20
    # Else this test would see nothing.
    assert left_over("as it is", str(size)) > told + (32 << 20)
