"""Axes: where a value lies between the ends of an axis, which part is shown, and how figures are written at it.

Places are relative to the axis's origin (`Positions.origin`). Invariant: what is shown lies within the bounds of the
data, and what is not finite is never written as a number.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # numpy would hold up the first picture
    from workbench.tui.charts.series import Axis, Series

_LARGE = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
_TIME_STEPS = (
    1,
    2,
    5,
    10,
    20,
    30,
    60,
    120,
    300,
    600,
    1_200,
    1_800,
    3_600,
    7_200,
    10_800,
    21_600,
    43_200,
    86_400,
)
_GREATEST = 1e300
"""Ends beyond it would overflow when they are subtracted."""
_NEAREST = 1e-6
"""The least share of the bounds that can be zoomed to."""
_WHOLE = 0.99
"""A part of more than this is the whole: zooming in and out again ends where it began."""


def short(value: float, step: float = 0.0) -> str:
    """Return at most about 7 characters: 1.2M, 35k, 0.002, 3e-04. N/A where it is not finite.

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
    """Return a length of time in two units: 45s, 12min, 3h20, 2d5h. N/A where it is not finite."""
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
    """Return a value to be read, in about so many digits: 3.21456, 1.20e-05, 12,345.6, N/A, inf."""
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
    """Return `value` with as many decimals as `step` needs; without a step four digits in all, no zeros at the end."""
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


@dataclass(frozen=True)
class Tick:
    value: float
    label: str


@dataclass(frozen=True)
class Scale:
    """From `low` to `high`, both shown. Make one with `fit`."""

    low: float
    high: float
    log: bool = False

    @classmethod
    def fit(cls, low: float, high: float, *, log: bool = False, margin: float = 0.0) -> Scale:
        """Return a scale that shows all from low to high and `margin` of its length beyond each end.

        Ends that are equal, not finite or (for a logarithmic one) not positive are mended.
        """
        low, high = (
            min(max(end, -_GREATEST), _GREATEST) if math.isfinite(end) else 0.0 for end in (low, high)
        )
        low, high = min(low, high), max(low, high)
        if log:
            high = high if high > 0 else 1.0
            low = low if low > 0 else high / 10
            low, high = math.log10(max(low, 1 / _GREATEST)), math.log10(max(high, 1 / _GREATEST))
        # Ends nearer than float64 can part would make steps of zero.
        least = max(max(abs(low), abs(high)) * 1e-9, 1e-290)
        if high - low <= least:
            half = 0.5 if log or high == low == 0 else max(abs(high) / 10, least)
            low, high = low - half, high + half
        margin *= high - low
        low, high = low - margin, high + margin
        if log:
            return cls(10 ** max(low, -301.0), 10 ** min(high, 301.0), log=True)
        return cls(low, high)

    def share(self, value: float) -> float:
        """Return 0 at `low`, 1 at `high`; -inf for a value that a logarithmic axis cannot show."""
        if not self.log:
            return (value - self.low) / (self.high - self.low)
        if value <= 0:
            return -math.inf
        low = math.log10(self.low)
        return (math.log10(value) - low) / (math.log10(self.high) - low)

    def value(self, share: float) -> float:
        """Return the value at a share of the axis."""
        if not self.log:
            return self.low + share * (self.high - self.low)
        low = math.log10(self.low)
        return 10 ** min(301.0, low + share * (math.log10(self.high) - low))

    def ticks(self, count: int, unit: str = "") -> list[Tick]:
        """Return about `count` values at 1, 2 or 5 times a power of ten (of time: whole minutes), in order.

        `unit` "s" writes times, "%" shares as per cent; other units are not written.
        """
        if count < 1:
            return []
        values = self._log_ticks(count) if self.log else []
        step = 0.0
        if len(values) < min(2, count):
            step = (
                time_step(self.high - self.low, count)
                if unit == "s"
                else nice_step(self.high - self.low, count)
            )
            first = math.ceil(self.low / step - 1e-9)
            last = math.floor(self.high / step + 1e-9)
            values = [number * step for number in range(first, min(last, first + 10 * count) + 1)]
        ticks: dict[str, Tick] = {}
        for value in values:
            label = label_of(value, step, unit)
            ticks.setdefault(label, Tick(value, label))
        return list(ticks.values())

    def _log_ticks(self, count: int) -> list[float]:
        first, last = math.floor(math.log10(self.low)), math.ceil(math.log10(self.high))
        for factors in ((1, 2, 5), (1, 3), (1,)):
            values = [factor * 10.0**power for power in range(first, last + 1) for factor in factors]
            values = [value for value in values if self.low * (1 - 1e-9) <= value <= self.high * (1 + 1e-9)]
            if len(values) <= count:
                return values
        return values[:: -(-len(values) // count)]


def nice_step(span: float, count: int) -> float:
    """Return the least of 1, 2 or 5 times a power of ten that cuts `span` into at most `count` steps."""
    rough = span / count
    power = 10.0 ** math.floor(math.log10(rough))
    return next((factor * power for factor in (1, 2, 5) if factor * power >= rough * (1 - 1e-9)), 10 * power)


def time_step(span_s: float, count: int) -> float:
    """Return the same as `nice_step`, in whole parts of minutes, hours and days."""
    rough = span_s / count
    if rough <= 1:
        return nice_step(span_s, count)
    step = next((float(step) for step in _TIME_STEPS if step >= rough * (1 - 1e-9)), None)
    return step if step is not None else 86_400 * nice_step(span_s / 86_400, count)


def label_of(value: float, step: float, unit: str) -> str:
    """Return a value as it stands at an axis whose labels lie `step` from one another."""
    if unit == "%":
        return f"{short(100 * value, 100 * step)}%"
    return short_time(value, step) if unit == "s" else short(value, step)


@dataclass
class View:
    """State of one chart's horizontal axis. `bounds`, which the methods take, come from `bounds_of`."""

    axis: Axis = "step"
    log: bool = False
    skip: int = 0
    """Steps at the start that are left out of the whole."""
    part: tuple[float, float] | None = None
    """The places that were zoomed to; None: all."""
    follows: bool = True
    """A part's right end is the newest point."""

    def scale(self, bounds: tuple[float, float]) -> Scale:
        """Return the horizontal axis as it is drawn."""
        whole = Scale.fit(*bounds, log=self.log)
        if self.part is None:
            return whole
        # Steps that are skipped since, or places that a logarithmic axis lacks, may lie in the part.
        low, high = max(self.part[0], whole.low), min(self.part[1], whole.high)
        if not low < high:
            return whole
        part = Scale(low, high, self.log)
        return self._moved(part, part.share(whole.high) - 1) if self.follows else part

    def zoom(self, factor: float, at: float, bounds: tuple[float, float]) -> None:
        """Show `factor` times as much, the place at share `at` (0 left, 1 right) staying where it is."""
        shown = self.scale(bounds)
        self._show(
            Scale(shown.value(at * (1 - factor)), shown.value(at + (1 - at) * factor), self.log), bounds
        )

    def pan(self, shares: float, bounds: tuple[float, float]) -> None:
        """Move by so many of what is shown, to the right where it is positive; as far as there is data."""
        if self.part is not None:
            shown = self.scale(bounds)
            whole = Scale.fit(*bounds, log=self.log)
            to_left, to_right = shown.share(whole.low), shown.share(whole.high) - 1
            self._show(self._moved(shown, min(max(shares, to_left), max(to_right, to_left))), bounds)

    def reset(self) -> None:
        """Show all, and all that comes."""
        self.part = None
        self.follows = True

    def _show(self, shown: Scale, bounds: tuple[float, float]) -> None:
        whole = Scale.fit(*bounds, log=self.log)
        left, right = max(0.0, whole.share(shown.low)), min(1.0, whole.share(shown.high))
        if right - left > _WHOLE:
            self.reset()
            return
        if right - left < _NEAREST:
            return
        low, high = whole.value(left), whole.value(right)
        if low < high:
            self.part = low, high
            self.follows = right > 1 - 1e-9

    def _moved(self, scale: Scale, shares: float) -> Scale:
        return Scale(scale.value(shares), scale.value(1 + shares), self.log)


def bounds_of(series: Iterable[Series], view: View) -> tuple[float, float] | None:
    """Return the first and last place of all series without skipped steps; None where there is no point.

    Where nothing would be left nothing is skipped. A logarithmic axis begins at the first place above zero.
    """
    filled = [one for one in series if len(one)]
    if not filled:
        return None
    first_step = min(float(one.positions.along("step")[0]) for one in filled)
    for skip in (view.skip, 0) if view.skip else (0,):
        lows, highs = [], []
        for one in filled:
            places, origin = one.positions.along(view.axis), one.positions.origin(view.axis)
            start = one.first_at(first_step + skip, "step")
            if view.log:
                start = max(start, one.first_at(math.nextafter(origin, math.inf), view.axis))
            if start < len(one):
                lows.append(float(places[start]) - origin)
                highs.append(float(places[len(one) - 1]) - origin)
        if lows and (skip == 0 or max(highs) > min(lows)):
            return min(lows), max(highs)
    return (0.0, 0.0)
