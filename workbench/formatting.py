"""Sizes, times, shares and numbers as people read them: in messages, in a plan and on the screen.

Invariant: a value that is None or not finite is written N/A, never as a zero; nothing here raises or imports more
than `math`.
"""

from __future__ import annotations

import math

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
NOT_KNOWN = "N/A"
_BINARY = ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB"))
_DECIMAL = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"))


def known(value: float | None) -> float | None:
    """Return the value, or None where it is not a finite number."""
    return value if value is not None and math.isfinite(value) else None


def amount(size: float | None) -> str:
    """Return bytes in a binary unit, the largest of which is the GiB: "81.0 GiB", "3,500 GiB", "512 B"."""
    value = known(size)
    if value is None:
        return NOT_KNOWN
    for unit, name in _BINARY:
        if abs(value) >= unit:
            return f"{_digits(value / unit)} {name}"
    return f"{value:.0f} B"


def gib(size: float) -> str:
    """Return bytes with two digits, in GiB, or in MiB below a tenth of one: "1.25 GiB", "64.00 MiB"."""
    return f"{size / GIB:,.2f} GiB" if size >= GIB / 10 else f"{size / MIB:,.1f} MiB"


def decimal_bytes(size: float) -> str:
    """Return bytes as disks count them, in the largest unit of which there is a tenth: 1.20 TB, 0.35 GB, 3.10 MB."""
    unit, name = next((known for known in _DECIMAL if size >= known[0] / 10), _DECIMAL[-1])
    return f"{size / unit:,.2f} {name}"


def rate(bytes_per_s: float | None) -> str:
    """Return bytes a second: "24.8 GiB/s"."""
    return NOT_KNOWN if known(bytes_per_s) is None else f"{amount(bytes_per_s)}/s"


def of(used: float | None, total: float | None, between: str = " of ") -> str:
    """Return two sizes in the unit of the second: "81.0 of 139.8 GiB"."""
    whole = known(total)
    if whole is None or whole <= 0:
        return amount(used)
    value = known(used)
    unit, name = next((pair for pair in _BINARY if whole >= pair[0]), (1, "B"))
    part = NOT_KNOWN if value is None else _digits(value / unit, whole / unit)
    return f"{part}{between}{_digits(whole / unit)} {name}"


def duration(seconds: float | None) -> str:
    """Return a time span in its two largest units: "2d03h", "2h10m", "4m05s", "12s"."""
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


def seconds(value: float) -> str:
    """Return a short time in s, in ms below a tenth of one: "1.25 s", "8.21 ms"."""
    return f"{value:,.2f} s" if value >= 0.1 else milliseconds(value)


def perplexity(value: float) -> str:
    """Return a perplexity in words that stay short where it is large or infinite: "perplexity 12.34"."""
    return f"perplexity {value:.2f}" if value < 1e6 else "perplexity above a million"


def milliseconds(value: float) -> str:
    """Return seconds written in ms: "8.21 ms", "1,234.5 ms"."""
    value *= 1000
    return f"{value:,.{2 if value < 100 else 1}f} ms"


def percent(share: float | None) -> str:
    """Return a share between 0 and 1 as "87 %"."""
    value = known(share)
    return NOT_KNOWN if value is None else f"{100 * value:.0f} %"


def share(value: float | None, whole: float | None) -> float | None:
    """Return `value / whole` between 0 and 1; None where it is not known."""
    part, total = known(value), known(whole)
    if part is None or total is None or total <= 0:
        return None
    return min(1.0, max(0.0, part / total))


def number(value: float | None, digits: int = 0, unit: str = "") -> str:
    """Return a number with its unit: "1,980 MHz"."""
    finite = known(value)
    return NOT_KNOWN if finite is None else f"{finite:,.{digits}f}{' ' if unit else ''}{unit}"


def pair(value: float | None, limit: float | None, unit: str, between: str = " of ") -> str:
    """Return a number and its limit: "410 of 700 W"; without the limit where that is not known."""
    if known(limit) is None:
        return number(value, 0, unit)
    return f"{number(value)}{between}{number(limit, 0, unit)}"


def ranges(values: tuple[int, ...]) -> str:
    """Return whole numbers, in order, as ranges: "0-31,64-95"."""
    out: list[str] = []
    start = 0
    for i in range(1, len(values) + 1):
        if i == len(values) or values[i] != values[i - 1] + 1:
            first, last = values[start], values[i - 1]
            out.append(str(first) if first == last else f"{first}-{last}")
            start = i
    return ",".join(out)


def in_sentence(title: str) -> str:
    """Return a title as it stands within a sentence: "A desktop" becomes "a desktop"; names keep their capitals."""
    article, blank, rest = title.partition(" ")
    return f"{article.lower()}{blank}{rest}" if article in ("A", "An", "The") and rest else title


def _digits(value: float, beside: float | None = None) -> str:
    """Return a number with one digit behind the point; none for thousands, or beside them."""
    return f"{value:,.0f}" if abs(value if beside is None else beside) >= 1000 else f"{value:.1f}"
