"""`python -m benchmarks.state_formats`: whether `half` and `compact` train what `exact` trains.

Trains two models in all formats with several seeds, follows gradients that fall, prints the tables as Markdown and
draws the chart.
"""

from __future__ import annotations

import argparse
import datetime
import shlex
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.state_formats.chart import Line, Panel, to_svg
from benchmarks.state_formats.curves import MODELS, Curve, Wanted, train_all
from benchmarks.state_formats.falling import EVERY, mean_exp_avg_sq
from benchmarks.state_formats.report import curve_table, falling_table
from workbench.state_formats import StateFormat

FORMATS: tuple[StateFormat, ...] = ("exact", "half", "compact")
COLOURS = {
    "exact": "#1f77b4",
    "half": "#2ca02c",
    "compact": "#d62728",
    "float64": "#000000",
    "bf16 to the nearest": "#ff9900",
}
SMOOTHED_STEPS = 20


def main(words: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.state_formats", description=__doc__)
    parser.add_argument(
        "--runs", type=Path, default=Path("runs/state-formats"), help="where runs are made and found"
    )
    parser.add_argument(
        "--steps", type=int, nargs="+", default=[400, 120], help="of the small and the large model"
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--models", nargs="+", choices=list(MODELS), default=list(MODELS))
    parser.add_argument("--at-once", type=int, default=2, help="runs side by side, a thread each")
    parser.add_argument("--falling-steps", type=int, default=4500)
    parser.add_argument("--chart", type=Path, default=Path("docs/state-formats.svg"))
    options = parser.parse_args(words)
    steps = dict(zip(MODELS, options.steps * len(MODELS), strict=False))
    wanted = [
        Wanted(model, state_format, seed, steps[model])
        for model in options.models
        for seed in options.seeds
        for state_format in FORMATS
    ]
    try:
        curves = train_all(wanted, options.runs, options.at_once)
    except RuntimeError as error:
        sys.exit(f"benchmarks.state_formats: {error}")
    means = mean_exp_avg_sq(options.falling_steps)
    options.chart.write_text(
        to_svg([*(_curve_panel(m, curves) for m in options.models), _falling_panel(means)])
    )
    command = shlex.join(["python", "-m", "benchmarks.state_formats", *words])
    print(f"{datetime.date.today().isoformat()}, `{command}`\n")
    print(curve_table(curves), end="\n\n")
    print(falling_table(means))


def _curve_panel(model: str, curves: Sequence[Curve]) -> Panel:
    lines = []
    for curve in curves:
        if curve.model == model:
            window = min(SMOOTHED_STEPS, len(curve.losses))
            ends = range(window, len(curve.losses) + 1)
            smooth = [statistics.fmean(curve.losses[end - window : end]) for end in ends]
            lines.append(Line(curve.state_format, COLOURS[curve.state_format], list(ends), smooth))
    title = f"GPT-2 of {model} parameters"
    return Panel(title, "step", f"training loss, mean of {SMOOTHED_STEPS} steps (nats)", lines)


def _falling_panel(means: dict[str, list[float]]) -> Panel:
    lines = [
        Line(name, COLOURS[name], [EVERY * (index + 1) for index in range(len(values))], values)
        for name, values in means.items()
    ]
    return Panel("gradients that fall 20 times", "step", "mean exp_avg_sq", lines, log_y=True)


if __name__ == "__main__":
    main(sys.argv[1:])
