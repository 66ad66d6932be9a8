"""How sizes and times of a plan are written. Imports nothing."""

from __future__ import annotations

GIB = 1 << 30
MIB = 1 << 20


def gib(size: int) -> str:
    """A size in GiB, in MiB below a tenth of one."""
    return f"{size / GIB:,.2f} GiB" if size >= GIB / 10 else f"{size / MIB:,.1f} MiB"


def seconds(value: float) -> str:
    """A time in s, in ms below a tenth of one."""
    return f"{value:,.2f} s" if value >= 0.1 else f"{1000 * value:,.2f} ms"


def duration(value: float) -> str:
    """A long time: 45s, 12m05s, 22h10m, 3d04h."""
    whole = round(value)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02}s"
    if whole < 86_400:
        return f"{whole // 3600}h{whole % 3600 // 60:02}m"
    return f"{whole // 86_400}d{whole % 86_400 // 3600:02}h"
