"""How sizes, times and names in a plan are written. Imports nothing."""

from __future__ import annotations

GIB = 1 << 30
MIB = 1 << 20
_DECIMAL = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"))


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


def decimal_bytes(size: float) -> str:
    """Bytes as disks count them, in the largest unit of which there is a tenth: 1.20 TB, 0.35 GB, 3.10 MB."""
    unit, name = next((known for known in _DECIMAL if size >= known[0] / 10), _DECIMAL[-1])
    return f"{size / unit:,.2f} {name}"


def in_sentence(title: str) -> str:
    """A title as it stands within a sentence: "A desktop" becomes "a desktop"; names keep their capitals."""
    article, blank, rest = title.partition(" ")
    return f"{article.lower()}{blank}{rest}" if article in ("A", "An", "The") and rest else title
