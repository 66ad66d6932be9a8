"""`workbench compare` and `workbench metrics`: results, of several runs side by side or of one run step by step."""

from __future__ import annotations

import json
import math
import sys
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from pathlib import Path

from workbench.commands import print_table, report
from workbench.errors import EXIT_DONE, EXIT_ERROR, ConfigurationError
from workbench.formatting import duration
from workbench.runs import Metrics, RunDirectory, find_run, read_run_metrics, runs_root
from workbench.runs.comparing import Curves, Differences, config_differences, read_curves
from workbench.runs.summary import RunSummary, summarize

_POINTS = 10
"""Steps at which losses are printed."""
_COUNTS = ("step", "tokens", "tokens_total", "skipped", "device_bytes", "host_bytes", "loss_scale")
"""Columns of metrics that are written without a decimal point."""
_LINES = 1000
"""Written at once: a million lines are not kept."""
_OUTCOME = (
    *("name", "state", "preset", "step", "total_steps", "loss", "validation_loss", "tokens", "tokens_per_s"),
    *("duration_s", "problem"),
)
"""The fields of `RunSummary` that JSON has of a run."""


def compare(*, run: Sequence[str], runs: Path | None, as_json: bool) -> int:
    """Print the differences of the runs named in `run`, as a table or as JSON.

    Raises ConfigurationError where a name means no run, or fewer than two runs are named.
    """
    found = [find_run(runs_root(runs), name) for name in run]
    if len(set(found)) < 2:
        raise ConfigurationError("compare: name two or more different runs (`workbench runs` lists them)")
    rows = [summarize(each) for each in found]
    curves = [read_curves(each) for each in found]
    differences = config_differences(found)
    steps = shared_steps(curves)
    for problem in (
        *differences.problems,
        *(f"run {row.name}: {row.problem}" for row in rows if row.problem),
    ):
        report(f"warning: {problem}")
    if not as_json:
        _print_comparison(rows, curves, differences, steps)
        return EXIT_DONE
    comparison = {
        "runs": [{"path": str(row.run.path), **{key: getattr(row, key) for key in _OUTCOME}} for row in rows],
        "losses": [{"step": step, "values": [loss_at(curve, step) for curve in curves]} for step in steps],
        "differences": [{"field": each.name, "values": list(each.values)} for each in differences.fields],
        "compared_fields": differences.compared,
    }
    print(json.dumps(comparison, indent=2, allow_nan=False))
    return EXIT_DONE


def shared_steps(curves: Sequence[Curves], points: int = _POINTS) -> list[int]:
    """Return at most `points` steps that all runs have reached, evenly spread, the last of them always among them."""
    last = int(min((curve.step[-1] for curve in curves if len(curve)), default=0))
    first = int(max((curve.step[0] for curve in curves if len(curve)), default=1))
    if any(len(curve) == 0 for curve in curves) or last < first:
        return []
    count = min(points, last - first + 1)
    return sorted({last - round((last - first) * place / max(1, count - 1)) for place in range(count)})


def loss_at(curve: Curves, step: int) -> float | None:
    """Return the loss of this very step; None where it was not recorded."""
    at = bisect_left(curve.step, step)
    if at == len(curve) or curve.step[at] != step or not math.isfinite(curve.loss[at]):
        return None
    return float(curve.loss[at])


def _print_comparison(
    rows: Sequence[RunSummary], curves: Sequence[Curves], differences: Differences, steps: Sequence[int]
) -> None:
    letters = [chr(ord("A") + place) if place < 26 else str(place + 1) for place in range(len(rows))]
    for letter, row in zip(letters, rows, strict=True):
        print(f"{letter}  {row.name}")
    print()
    table: list[tuple[str, ...]] = [
        ("", *letters),
        ("state", *(row.state for row in rows)),
        ("step", *(f"{row.step}/{row.total_steps}" for row in rows)),
        ("loss", *(_number(row.loss) for row in rows)),
        ("validation loss", *(_number(row.validation_loss) for row in rows)),
        ("tokens", *("-" if row.tokens is None else f"{row.tokens:,}" for row in rows)),
        ("tokens/s", *("-" if row.tokens_per_s is None else f"{row.tokens_per_s:,.0f}" for row in rows)),
        ("duration", *(duration(row.duration_s) for row in rows)),
    ]
    table += [(f"loss at step {step}", *(_number(loss_at(c, step)) for c in curves)) for step in steps]
    print_table(table)
    print()
    if differences.fields:
        print_table(
            [("FIELD", *letters)]
            + [(each.name, *(value or "-" for value in each.values)) for each in differences.fields]
        )
    elif len(rows) - len(differences.problems) > 1:
        print(f"All {differences.compared} fields of their configurations are the same")
    else:
        print("Their configurations cannot be compared")


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"


def metrics(*, run: str | None, runs: Path | None, as_json: bool) -> int:
    """Print the metrics of the run that `run` means, as CSV, or as one JSON object with `as_json`.

    Raises ConfigurationError where no run has this name. Gives EXIT_ERROR where nothing could be read.
    """
    directory = find_run(runs_root(runs), run)
    found = read_run_metrics(directory)
    if found.problem and directory.metrics.exists():
        report(found.problem)
        return EXIT_ERROR
    if not len(found):
        print(f"run {directory.name} has recorded no step yet", file=sys.stderr)
    for text in _json(directory, found) if as_json else _csv(found):
        sys.stdout.write(text)
    return EXIT_DONE


def _csv(found: Metrics) -> Iterator[str]:
    """Yield the file in pieces: a line with the names, then a line a record."""
    if not found.columns:
        return
    yield ",".join(column.name for column in found.columns) + "\n"
    yield from _pieces(found, empty="", opening="", closing="\n", between="")


def _json(run: RunDirectory, found: Metrics) -> Iterator[str]:
    """Yield the object in pieces: `run`, `columns` with name and unit, `records` as lists in the columns' order."""
    columns = [{"name": column.name, "unit": column.unit} for column in found.columns]
    yield f'{{"run": {json.dumps(run.name)},\n"columns": {json.dumps(columns)},\n"records": [\n'
    yield from _pieces(found, empty="null", opening="[", closing="]", between=",\n")
    yield "\n]}\n"


def _pieces(found: Metrics, *, empty: str, opening: str, closing: str, between: str) -> Iterator[str]:
    values = [found.column(column.name) for column in found.columns]
    whole = [column.name in _COUNTS for column in found.columns]
    for start in range(0, len(found), _LINES):
        texts = [
            _texts(column[start : start + _LINES].tolist(), count, empty)
            for column, count in zip(values, whole, strict=True)
        ]
        lines = (opening + ",".join(cells) + closing for cells in zip(*texts, strict=True))
        yield (between if start else "") + between.join(lines)


def _texts(values: Sequence[float], whole: bool, empty: str) -> list[str]:
    if whole:
        return [
            empty if not math.isfinite(value) else str(int(value)) if value.is_integer() else repr(value)
            for value in values
        ]
    return [repr(value) if math.isfinite(value) else empty for value in values]
