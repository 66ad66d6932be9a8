"""`python -m benchmarks.screen.charts`: how long a chart takes to take in a run and to draw it.

Medians of several repetitions, in ms of this process's own time.
"""

from __future__ import annotations

import argparse
import math
import random
import statistics
import sys
import time
from array import array
from collections.abc import Callable

from rich.style import Style

from workbench.tui.charts.plot import Curve, Frame, Look, Plot, draw
from workbench.tui.charts.scale import View, bounds_of
from workbench.tui.charts.series import Positions, Series
from workbench.tui.glyphs import BLOCKS

SIZES = ((76, 12), (200, 40))
"""Cells: a chart on a terminal of 80x24, and one that fills a large terminal."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.screen.charts", description=__doc__)
    parser.add_argument("--repeats", type=int, default=9, help="how often each is measured (9)")
    repeats = max(1, parser.parse_args().repeats)
    print(f"{'':44}{'median':>9}{'least':>9}  ms")
    for count in (5_000, 1_000_000):
        columns = _columns(count)
        positions, values = _positions(*columns), columns[3]
        series = _looked_at(positions, values, 0.98)
        print(f"{count:,} points")
        _show("take in positions", repeats, _positions, *columns)
        _show("take in values, least and greatest", repeats, _looked_at, positions, values, 0.0)
        _show("take in values, average, spikes", repeats, _looked_at, positions, values, 0.98)
        for width, height in SIZES:
            _show(f"draw {width}x{height}", repeats, _draw, series, width, height)
        _show("100 points more, then draw 200x40", repeats, _grow_and_draw, series)
    return 0


def _columns(count: int) -> tuple[array[float], array[float], array[float], array[float]]:
    """Steps, tokens, times and losses of a run, the same every time."""
    chance = random.Random(1)
    steps = array("d", range(count))
    tokens = array("d", [4096.0 * step for step in steps])
    times = array("d", [1.7e9 + 0.3 * step for step in steps])
    losses = array("d", [3 + 7 * math.exp(-10 * step / count) + chance.gauss(0, 0.1) for step in steps])
    return steps, tokens, times, losses


def _positions(steps: array[float], tokens: array[float], times: array[float], _: array[float]) -> Positions:
    positions = Positions()
    positions.extend(steps, tokens, times)
    positions.along("step")
    return positions


def _looked_at(positions: Positions, values: array[float], smoothing: float) -> Series:
    series = Series(positions, smoothing=smoothing, find_spikes=smoothing > 0)
    series.extend(values)
    series.lowest()
    _ = series.spikes
    return series


def _draw(series: Series, width: int, height: int) -> Plot:
    view = View()
    bounds = bounds_of([series], view)
    assert bounds is not None
    plain = Style()
    look = Look(plain, plain, plain, plain, plain, (Style(color="cyan"),))
    return draw(Frame([Curve("loss", series)], view.scale(bounds), view.axis), look, BLOCKS, width, height)


def _grow_and_draw(series: Series) -> Plot:
    first = len(series)
    series.positions.extend(array("d", range(first, first + 100)))
    series.extend(array("d", [3.0]) * 100)
    return _draw(series, 200, 40)


def _show(what: str, repeats: int, measured: Callable[..., object], *given: object) -> None:
    times_ms = []
    for _ in range(repeats):
        start = time.process_time()
        measured(*given)
        times_ms.append(1e3 * (time.process_time() - start))
    print(f"  {what:42}{statistics.median(times_ms):9.1f}{min(times_ms):9.1f}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
