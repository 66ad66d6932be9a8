"""`python -m benchmarks.state_formats`: whether `half` and `compact` train what `exact` trains.

Trains two models in all formats with several seeds, follows gradients that fall, prints the tables as Markdown and
draws the chart.
"""

from __future__ import annotations

import argparse
import datetime
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.state_formats.chart import to_svg
from benchmarks.state_formats.curves import MODELS, Wanted, train_all
from benchmarks.state_formats.falling import mean_exp_avg_sq
from benchmarks.state_formats.noise import compare
from benchmarks.state_formats.panels import difference_panel, falling_panel, loss_panel
from benchmarks.state_formats.records import write_records
from benchmarks.state_formats.report import apart_table, curve_table, falling_table, noise_table
from workbench.layout import StateFormat

FORMATS: tuple[StateFormat, ...] = ("exact", "half", "compact")


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
    parser.add_argument(
        "--formats", nargs="+", choices=FORMATS, default=list(FORMATS), help="beside exact, always there"
    )
    parser.add_argument("--at-once", type=int, default=2, help="runs side by side, a thread each")
    parser.add_argument("--falling-steps", type=int, default=4500)
    parser.add_argument("--chart", type=Path, default=Path("docs/state-formats.svg"))
    parser.add_argument("--out", type=Path, help="a JSON file for every loss that was measured")
    options = parser.parse_args(words)
    steps = dict(zip(MODELS, options.steps * len(MODELS), strict=False))
    wanted = [
        Wanted(model, state_format, seed, steps[model])
        for model in options.models
        for seed in options.seeds
        for state_format in FORMATS
        if state_format in ("exact", *options.formats)
    ]
    try:
        curves = train_all(wanted, options.runs, options.at_once)
    except RuntimeError as error:
        sys.exit(f"benchmarks.state_formats: {error}")
    means = mean_exp_avg_sq(options.falling_steps)
    top = [*(loss_panel(model, curves) for model in options.models), falling_panel(means)]
    bottom = [panel for model in options.models if (panel := difference_panel(model, curves)).lines]
    options.chart.write_text(to_svg([row for row in (top, bottom) if row]))
    if options.out is not None:
        write_records(options.out, curves, means)
    command = shlex.join(["python", "-m", "benchmarks.state_formats", *words])
    print(f"{datetime.date.today().isoformat()}, `{command}`\n")
    print(curve_table(curves), end="\n\n")
    print(noise_table(compare(curves)), end="\n\n")
    print(apart_table(curves), end="\n\n")
    print(falling_table(means))


if __name__ == "__main__":
    main(sys.argv[1:])
