"""The tables: how far a format's losses are from those of `exact`, beside how far seeds are from each other."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Mapping, Sequence

from benchmarks.state_formats.curves import Curve
from benchmarks.state_formats.falling import EVERY
from benchmarks.state_formats.noise import Comparison, at_same_seed, largest_apart
from benchmarks.state_formats.smoothing import final_loss


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
            training = [final_loss(curve.losses) - final_loss(exact[curve.seed].losses) for curve in group]
            seeds = ", ".join(f"{curve.validation_loss:.4f}" for curve in group)
            lines.append(
                f"| {model}, {len(group[0].losses)} steps | {state_format} | {seeds} | {statistics.fmean(apart):+.4f} "
                f"| {max(apart, key=abs):+.4f} | {statistics.fmean(training):+.4f} | {spread:.4f} |"
            )
    return "\n".join(lines)


def noise_table(comparisons: Sequence[Comparison]) -> str:
    """Markdown: mean differences to `exact` with their standard errors, held against the noise of seeds."""
    lines = [
        "| model | loss | format | mean difference to exact ± standard error | seed noise | within |",
        "|---|---|---|---|---|---|",
    ]
    verdicts = {True: "yes", False: "no", None: "n/a"}
    for c in comparisons:
        error, noise = (
            "n/a" if value is None else f"{value:.5f}" for value in (c.standard_error, c.seed_noise)
        )
        lines.append(
            f"| {c.model} | {c.measure} | {c.state_format} | {c.mean_difference:+.5f} ± {error} | {noise} "
            f"| {verdicts[c.within_noise]} |"
        )
    return "\n".join(lines)


def apart_table(curves: Sequence[Curve]) -> str:
    """Markdown: how far smoothed training curves are apart at most, over all steps and seeds."""
    lines = [
        "| model | pair of curves | largest distance, by seed or pair of seeds |",
        "|---|---|---|",
    ]
    for model in dict.fromkeys(curve.model for curve in curves):
        exact = [curve for curve in curves if curve.model == model and curve.state_format == "exact"]
        for state_format in dict.fromkeys(curve.state_format for curve in curves if curve.model == model):
            same = state_format == "exact"
            pairs = (
                list(itertools.combinations(exact, 2)) if same else at_same_seed(curves, model, state_format)
            )
            name = "exact and exact, two seeds" if same else f"{state_format} and exact, same seed"
            distances = ", ".join(f"{largest_apart(one, other):.5f}" for one, other in pairs)
            lines.append(f"| {model} | {name} | {distances or 'n/a'} |")
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
