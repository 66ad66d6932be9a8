"""Numbers as panels print them: binary sizes with their unit, shares in per cent, and N/A for what is not known.

Invariant: a value that is None or not finite is printed N/A, never as a zero; nothing here raises.
"""

from __future__ import annotations

import math

NOT_KNOWN = "N/A"
_SIZES = ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))


def known(value: float | None) -> float | None:
    """The value, or None where it is no finite number."""
    return value if value is not None and math.isfinite(value) else None


def percent(share: float | None) -> str:
    """A share between 0 and 1 as "87 %"."""
    value = known(share)
    return NOT_KNOWN if value is None else f"{100 * value:.0f} %"


def amount(size: float | None) -> str:
    """Bytes in a binary unit, the largest of which is the GiB: "81.0 GiB", "3,500 GiB", "512 B"."""
    value = known(size)
    if value is None:
        return NOT_KNOWN
    for unit, name in _SIZES:
        if abs(value) >= unit:
            return f"{_digits(value / unit)} {name}"
    return f"{value:.0f} B"


def rate(bytes_per_s: float | None) -> str:
    """Bytes a second: "24.8 GiB/s"."""
    return NOT_KNOWN if known(bytes_per_s) is None else f"{amount(bytes_per_s)}/s"


def of(used: float | None, total: float | None, between: str = " of ") -> str:
    """Two sizes in the unit of the second: "81.0 of 139.8 GiB"."""
    whole = known(total)
    if whole is None or whole <= 0:
        return amount(used)
    value = known(used)
    unit, name = next((pair for pair in _SIZES if whole >= pair[0]), (1, "B"))
    part = NOT_KNOWN if value is None else _digits(value / unit, whole / unit)
    return f"{part}{between}{_digits(whole / unit)} {name}"


def _digits(value: float, beside: float | None = None) -> str:
    """One digit behind the point; none for thousands, or beside them."""
    return f"{value:,.0f}" if abs(value if beside is None else beside) >= 1000 else f"{value:.1f}"


def number(value: float | None, digits: int = 0, unit: str = "") -> str:
    """A number with its unit: "1,980 MHz"."""
    finite = known(value)
    return NOT_KNOWN if finite is None else f"{finite:,.{digits}f}{' ' if unit else ''}{unit}"


def pair(value: float | None, limit: float | None, unit: str, between: str = " of ") -> str:
    """A number and its limit: "410 of 700 W"; without the limit where that is not known."""
    if known(limit) is None:
        return number(value, 0, unit)
    return f"{number(value)}{between}{number(limit, 0, unit)}"


def share(value: float | None, whole: float | None) -> float | None:
    """`value / whole` between 0 and 1; None where it cannot be told."""
    part, total = known(value), known(whole)
    if part is None or total is None or total <= 0:
        return None
    return min(1.0, max(0.0, part / total))


def duration(seconds: float | None) -> str:
    """ "2d03h", "2h10m", "4m05s", "12s"."""
    value = known(seconds)
    if value is None or value < 0:
        return NOT_KNOWN
    whole = round(value)
    days, hours, minutes = whole // 86400, whole // 3600 % 24, whole // 60 % 60
    if days:
        return f"{days}d{hours:02}h"
    if hours:
        return f"{hours}h{minutes:02}m"
    return f"{minutes}m{whole % 60:02}s" if minutes else f"{whole}s"


def milliseconds(seconds: float) -> str:
    """ "8.21 ms", "1,234.5 ms"."""
    value = 1000 * seconds
    return f"{value:,.{2 if value < 100 else 1}f} ms"


def numbers(values: tuple[int, ...]) -> str:
    """Whole numbers as ranges: "0-31,64-95"."""
    out: list[str] = []
    start = 0
    for i in range(1, len(values) + 1):
        if i == len(values) or values[i] != values[i - 1] + 1:
            first, last = values[start], values[i - 1]
            out.append(str(first) if first == last else f"{first}-{last}")
            start = i
    return ",".join(out)
