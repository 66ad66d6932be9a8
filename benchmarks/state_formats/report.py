"""The tables: how far a format's losses are from those of `exact`, beside how far seeds are from each other."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from benchmarks.state_formats.curves import Curve
from benchmarks.state_formats.falling import EVERY

TAIL = 20
"""Steps over which a final training loss is averaged."""


def final_loss(curve: Curve) -> float:
    """Mean training loss of the last steps."""
    return statistics.fmean(curve.losses[-TAIL:])


def curve_table(curves: Sequence[Curve]) -> str:
    """Markdown: for each model and format the losses, and their differences to `exact` at the same seed."""
    lines = [
        "| model | format | validation loss by seed | mean difference to exact, same seed | largest | final training "
        "loss, mean difference | seeds of exact are apart by |",
        "|---|---|---|---|---|---|---|",
    ]
    for model in dict.fromkeys(curve.model for curve in curves):
        ours = [curve for curve in curves if curve.model == model]
        exact = {curve.seed: curve for curve in ours if curve.state_format == "exact"}
        validation = [curve.validation_loss for curve in exact.values()]
        spread = max(validation) - min(validation)
        for state_format in dict.fromkeys(curve.state_format for curve in ours):
            group = [curve for curve in ours if curve.state_format == state_format]
            apart = [curve.validation_loss - exact[curve.seed].validation_loss for curve in group]
            training = [final_loss(curve) - final_loss(exact[curve.seed]) for curve in group]
            seeds = ", ".join(f"{curve.validation_loss:.4f}" for curve in group)
            lines.append(
                f"| {model}, {len(group[0].losses)} steps | {state_format} | {seeds} | {statistics.fmean(apart):+.4f} "
                f"| {max(apart, key=abs):+.4f} | {statistics.fmean(training):+.4f} | {spread:.4f} |"
            )
    return "\n".join(lines)


def falling_table(means: Mapping[str, Sequence[float]]) -> str:
    """Markdown: exp_avg_sq as a multiple of its float64 value at a few steps."""
    truth = means["float64"]
    rows = sorted({len(truth) * share // 8 for share in (1, 2, 4, 6, 8)} - {0})
    lines = [
        "| mean exp_avg_sq over float64's after | "
        + " | ".join(f"{row * EVERY:,} steps" for row in rows)
        + " |",
        "|---" * (len(rows) + 1) + "|",
    ]
    for name, values in means.items():
        if name != "float64":
            ratios = " | ".join(f"{values[row - 1] / truth[row - 1]:.3f}" for row in rows)
            lines.append(f"| {name} | {ratios} |")
    return "\n".join(lines)
