"""Numbers in few characters: as axes, titles and lists write them.

Invariant: what is not finite is never written as a number.
"""

from __future__ import annotations

import math

_LARGE = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def short(value: float, step: float = 0.0) -> str:
    """At most about 7 characters: 1.2M, 35k, 0.002, 3e-04. N/A where it is not finite.

    As many digits as tell values apart that lie `step` from one another; without a step, three or four.
    """
    if not math.isfinite(value):
        return "N/A"
    size = abs(value)
    if size == 0 or (step and size < step / 1e6):
        return "0"
    if step and size / step > 1e6:
        return f"{value:.7g}"
    for factor, suffix in _LARGE:
        if factor * (1 - 5e-5) <= size < 1e15 and not 0 < step < factor / 1000:
            return _trimmed(value / factor, step / factor) + suffix
    if 1e-3 <= size < 1e15:
        return _trimmed(value, step)
    digits = 0 if step == 0 and _is_round(value) else _digits(size, step)
    mantissa, exponent = f"{value:.{digits}e}".split("e")
    return f"{mantissa}e{int(exponent):+03d}".replace("e+", "e")


def short_time(seconds: float, step: float = 0.0) -> str:
    """A length of time in the two units that matter: 45s, 12min, 3h20, 2d5h. N/A where it is not finite."""
    if not math.isfinite(seconds):
        return "N/A"
    sign, size = ("-" if seconds < 0 else ""), abs(seconds)
    if size < 60:
        return f"{sign}{_trimmed(size, step)}s"
    if size >= 86_400 * 1000:
        return f"{sign}{short(size / 86_400, step / 86_400)}d"
    minutes, whole_seconds = divmod(round(size), 60)
    hours, minutes_left = divmod(minutes, 60)
    days, hours_left = divmod(hours, 24)
    if days:
        rest = f"{minutes_left:02d}" if step and step < 3600 and minutes_left else ""
        return f"{sign}{days}d" + (f"{hours_left}h{rest}" if hours_left or rest else "")
    if hours:
        return f"{sign}{hours}h" + (f"{minutes_left:02d}" if minutes_left else "")
    rest = f"{whole_seconds:02d}" if whole_seconds else ""
    return f"{sign}{minutes}min{rest}"


def readout(value: float, digits: int = 6) -> str:
    """A value to be read, in about so many digits: 3.21456, 1.20e-05, 12,345.6. N/A for NaN, inf as such."""
    if math.isnan(value):
        return "N/A"
    if math.isinf(value):
        return f"{value}"
    size = abs(value)
    if 0 < size < 1e-3:
        return f"{value:.2e}"
    if size >= 1e12:
        return f"{value:.{digits}g}"
    if value == int(value) or size >= 10**digits:
        return f"{value:,.0f}"
    if size >= 1e3:
        return f"{value:,.{max(0, digits - 1 - math.floor(math.log10(size)))}f}"
    return f"{value:.{digits}g}"


def _trimmed(value: float, step: float) -> str:
    """`value` with as many decimals as `step` needs; without a step four digits in all, no zeros at the end."""
    size = abs(value)
    if step:
        return f"{value:.{min(12, max(0, -math.floor(math.log10(step) + 1e-9)))}f}"
    decimals = max(0, 3 - math.floor(math.log10(size))) if size else 0
    text = f"{value:.{min(decimals, 6)}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def _digits(size: float, step: float) -> int:
    if not step:
        return 2
    return min(9, max(0, math.floor(math.log10(size)) - math.floor(math.log10(step) + 1e-9)))


def _is_round(value: float) -> bool:
    mantissa = float(f"{value:.6e}".split("e")[0])
    return mantissa == int(mantissa)
