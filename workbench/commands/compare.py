"""`workbench compare RUN RUN`: outcomes, losses by step and differing fields of runs, side by side."""

from __future__ import annotations

import json
import math
import sys
from bisect import bisect_left
from collections.abc import Sequence
from pathlib import Path

from workbench.errors import EXIT_DONE, ConfigurationError
from workbench.formatting import duration
from workbench.runs import RunDirectory, runs_root
from workbench.runs.comparing import Curves, Differences, config_differences, read_curves
from workbench.runs.summary import RunSummary, summarize

_POINTS = 10
"""Steps at which losses are printed."""


def compare(*, run: Sequence[str], runs: Path | None, as_json: bool) -> int:
    """Print the differences of the runs named in `run`, as a table or as JSON.

    Raises ConfigurationError where a name means no run, or fewer than two runs are named.
    """
    found = [RunDirectory.find(runs_root(runs), name) for name in run]
    if len(set(found)) < 2:
        raise ConfigurationError("compare: name two or more different runs (`workbench runs` lists them)")
    rows = [summarize(each) for each in found]
    curves = [read_curves(each) for each in found]
    differences = config_differences(found)
    steps = shared_steps(curves)
    for problem in [
        *differences.problems,
        *(f"run {row.name}: {row.problem}" for row in rows if row.problem),
    ]:
        print(f"workbench: warning: {problem}", file=sys.stderr)
    if as_json:
        print(json.dumps(_as_json(rows, curves, differences, steps), indent=2, allow_nan=False))
    else:
        _print(rows, curves, differences, steps)
    return EXIT_DONE


def shared_steps(curves: Sequence[Curves], points: int = _POINTS) -> list[int]:
    """At most `points` steps that all runs have got to, evenly spread, the last of them always among them."""
    last = int(min((curve.step[-1] for curve in curves if len(curve)), default=0))
    first = int(max((curve.step[0] for curve in curves if len(curve)), default=1))
    if any(len(curve) == 0 for curve in curves) or last < first:
        return []
    count = min(points, last - first + 1)
    return sorted({last - round((last - first) * place / max(1, count - 1)) for place in range(count)})


def loss_at(curve: Curves, step: int) -> float | None:
    """The loss of this very step; None where it was not recorded."""
    at = bisect_left(curve.step, step)
    if at == len(curve) or curve.step[at] != step or not math.isfinite(curve.loss[at]):
        return None
    return float(curve.loss[at])


def _print(
    rows: Sequence[RunSummary], curves: Sequence[Curves], differences: Differences, steps: Sequence[int]
) -> None:
    letters = [chr(ord("A") + place) if place < 26 else str(place + 1) for place in range(len(rows))]
    for letter, row in zip(letters, rows, strict=True):
        print(f"{letter}  {row.name}")
    print()
    table = [("", *letters)]
    table += [
        ("state", *(row.state for row in rows)),
        ("step", *(f"{row.step}/{row.total_steps}" for row in rows)),
        ("loss", *(_number(row.loss) for row in rows)),
        ("validation loss", *(_number(row.validation_loss) for row in rows)),
        ("tokens", *("-" if row.tokens is None else f"{row.tokens:,}" for row in rows)),
        ("tokens/s", *("-" if row.tokens_per_s is None else f"{row.tokens_per_s:,.0f}" for row in rows)),
        ("duration", *(duration(row.duration_s) for row in rows)),
    ]
    table += [
        (f"loss at step {step}", *(_number(loss_at(curve, step)) for curve in curves)) for step in steps
    ]
    _print_table(table)
    print()
    if not differences.fields:
        compared = len(rows) - len(differences.problems)
        print(
            f"All {differences.compared} fields of their configurations are the same"
            if compared > 1
            else "Their configurations cannot be compared"
        )
        return
    _print_table(
        [
            ("FIELD", *letters),
            *(
                (each.name, *("-" if value is None else value for value in each.values))
                for each in differences.fields
            ),
        ]
    )


def _print_table(table: Sequence[tuple[str, ...]]) -> None:
    widths = [max(len(cell) for cell in column) for column in zip(*table, strict=True)]
    for cells in table:
        padded = (cell.ljust(width) for cell, width in zip(cells, widths, strict=True))
        print("  ".join(padded).rstrip())


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"


def _as_json(
    rows: Sequence[RunSummary], curves: Sequence[Curves], differences: Differences, steps: Sequence[int]
) -> dict[str, object]:
    return {
        "runs": [
            {
                "name": row.name,
                "path": str(row.run.path),
                "state": row.state,
                "preset": row.preset,
                "step": row.step,
                "total_steps": row.total_steps,
                "loss": row.loss,
                "validation_loss": row.validation_loss,
                "tokens": row.tokens,
                "tokens_per_s": row.tokens_per_s,
                "duration_s": row.duration_s,
                "problem": row.problem,
            }
            for row in rows
        ],
        "losses": [{"step": step, "values": [loss_at(curve, step) for curve in curves]} for step in steps],
        "differences": [{"field": each.name, "values": list(each.values)} for each in differences.fields],
        "compared_fields": differences.compared,
    }
