"""What the chart shows: the curves, how far they are from `exact`, and exp_avg_sq when gradients fall."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from benchmarks.state_formats.chart import Line, Panel
from benchmarks.state_formats.curves import Curve
from benchmarks.state_formats.falling import EVERY
from benchmarks.state_formats.noise import at_same_seed
from benchmarks.state_formats.smoothing import SMOOTHED_STEPS, smoothed, smoothed_steps

COLOURS = {
    "exact": "#9ecae9",
    "half": "#2ca02c",
    "compact": "#d62728",
    "float64": "#444444",
    "bf16 to the nearest": "#ff9900",
}
WIDTHS = {"float64": 6.0, "exact": 4.0, "half": 2.2, "compact": 0.8, "bf16 to the nearest": 2.2}
"""What is drawn later is narrower, so that lines which lie on one another can all be seen."""
SEEDS_COLOUR = "#999999"


def loss_panel(model: str, curves: Sequence[Curve]) -> Panel:
    """Smoothed training losses, a line for each seed."""
    lines = [
        _line(c.state_format, c.state_format, smoothed_steps(c.losses), smoothed(c.losses))
        for c in sorted(curves, key=lambda curve: -WIDTHS[curve.state_format])
        if c.model == model
    ]
    title = f"GPT-2 of {model} parameters"
    return Panel(title, "step", f"training loss, mean of {SMOOTHED_STEPS} steps (nats)", lines)


def difference_panel(model: str, curves: Sequence[Curve]) -> Panel:
    """The formats less `exact` at the same seed; behind them, the seeds of `exact` less their mean."""
    exact = [curve for curve in curves if curve.model == model and curve.state_format == "exact"]
    columns = zip(*(smoothed(curve.losses) for curve in exact), strict=True)
    mean = [statistics.fmean(column) for column in columns]
    lines = [
        Line("seeds of exact, less their mean", SEEDS_COLOUR, smoothed_steps(c.losses), _less(c, mean))
        for c in exact
        if len(exact) > 1
    ]
    for state_format in dict.fromkeys(c.state_format for c in curves if c.model == model):
        if state_format != "exact":
            for curve, base in at_same_seed(curves, model, state_format):
                apart = _less(curve, smoothed(base.losses))
                label = f"{state_format} less exact, same seed"
                lines.append(_line(label, state_format, smoothed_steps(curve.losses), apart))
    title = f"{model} parameters: how far apart"
    return Panel(title, "step", f"difference, mean of {SMOOTHED_STEPS} steps (nats)", lines)


def falling_panel(means: Mapping[str, Sequence[float]]) -> Panel:
    """Mean exp_avg_sq over steps, on a logarithmic scale."""
    lines = [
        _line(name, name, [EVERY * (index + 1) for index in range(len(values))], values)
        for name, values in means.items()
    ]
    return Panel("gradients that fall 20 times", "step", "mean exp_avg_sq", lines, log_y=True)


def _line(label: str, kind: str, x: Sequence[float], y: Sequence[float]) -> Line:
    return Line(label, COLOURS[kind], x, y, WIDTHS[kind])


def _less(curve: Curve, base: Sequence[float]) -> list[float]:
    return [value - other for value, other in zip(smoothed(curve.losses), base, strict=True)]
