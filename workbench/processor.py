"""What this machine's processor computes in hardware, by the flags that Linux lists. Imports nothing heavy."""

from __future__ import annotations

from pathlib import Path

_BFLOAT16_FLAGS = frozenset(("avx512_bf16", "amx_bf16"))


def has_bfloat16(cpuinfo: Path = Path("/proc/cpuinfo")) -> bool:
    """Whether the processor multiplies bf16 matrices; False where it does not tell."""
    try:
        with cpuinfo.open(encoding="ascii", errors="replace") as lines:
            flags = next((line for line in lines if line.startswith("flags")), "")
    except OSError:
        return False
    return not _BFLOAT16_FLAGS.isdisjoint(flags.split())
