"""Axes: where a value lies between the ends of an axis, and which values to write at it.

Linear and logarithmic. Invariant: a scale's ends are finite and apart, so that nothing divides by zero, and the ticks
given lie between them with different labels.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from workbench.tui.charts.short_figures import short, short_time

_TIMES = ((86_400.0, "d"), (3_600.0, "h"), (60.0, "min"), (1.0, "s"))
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
        """A scale that shows all from low to high and `margin` of its length beyond each end.

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
        """0 at `low`, 1 at `high`, beyond them less and more; -inf for what a logarithmic axis cannot show."""
        if not self.log:
            return (value - self.low) / (self.high - self.low)
        if value <= 0:
            return -math.inf
        low = math.log10(self.low)
        return (math.log10(value) - low) / (math.log10(self.high) - low)

    def value(self, share: float) -> float:
        """The value at a share of the axis."""
        if not self.log:
            return self.low + share * (self.high - self.low)
        low = math.log10(self.low)
        return 10 ** min(301.0, low + share * (math.log10(self.high) - low))

    def ticks(self, count: int, unit: str = "") -> list[Tick]:
        """About `count` values at 1, 2 or 5 times a power of ten (of time: whole minutes and hours), in order.

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
            label = _label(value, step, unit)
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
    """1, 2 or 5 times a power of ten, the least that cuts `span` into at most `count` steps."""
    rough = span / count
    power = 10.0 ** math.floor(math.log10(rough))
    return next((factor * power for factor in (1, 2, 5) if factor * power >= rough * (1 - 1e-9)), 10 * power)


def time_step(span_s: float, count: int) -> float:
    """Like `nice_step`, in whole parts of minutes, hours and days."""
    rough = span_s / count
    if rough <= 1:
        return nice_step(span_s, count)
    step = next((float(step) for step in _TIME_STEPS if step >= rough * (1 - 1e-9)), None)
    return step if step is not None else 86_400 * nice_step(span_s / 86_400, count)


def _label(value: float, step: float, unit: str) -> str:
    if unit == "%":
        return f"{short(100 * value, 100 * step)}%"
    return short_time(value, step) if unit == "s" else short(value, step)
