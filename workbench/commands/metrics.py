"""`workbench metrics RUN`: what a run has recorded, a line a step, as CSV or JSON on stdout.

Steps that a resumption did again are there once. What was not recorded is an empty field, or null.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from workbench.errors import EXIT_DONE, EXIT_ERROR
from workbench.runs import Metrics, RunDirectory, read_run_metrics, runs_root

_WHOLE = ("step", "tokens", "tokens_total", "skipped", "device_bytes", "host_bytes", "loss_scale")
"""Columns of counts, written without a decimal point."""
_LINES = 1000
"""Written at once: a million lines are not kept."""


def metrics(*, run: str | None, runs: Path | None, as_json: bool) -> int:
    """Print the metrics of the run that `run` means, as CSV, or as one JSON object with `as_json`.

    Raises ConfigurationError where no run has this name. Gives EXIT_ERROR where nothing could be read.
    """
    directory = RunDirectory.find(runs_root(runs), run)
    found = read_run_metrics(directory)
    if found.problem and directory.metrics.exists():
        print(f"workbench: {found.problem}", file=sys.stderr)
        return EXIT_ERROR
    if not len(found):
        print(f"run {directory.name} has recorded no step yet", file=sys.stderr)
    for text in _json(directory, found) if as_json else _csv(found):
        sys.stdout.write(text)
    return EXIT_DONE


def _csv(found: Metrics) -> Iterator[str]:
    """The file in pieces: a line with the names, then a line a record."""
    if not found.columns:
        return
    yield ",".join(column.name for column in found.columns) + "\n"
    yield from _pieces(found, empty="", opening="", closing="\n", between="")


def _json(run: RunDirectory, found: Metrics) -> Iterator[str]:
    """The object in pieces: `run`, `columns` with name and unit, `records` as lists in the columns' order."""
    columns = [{"name": column.name, "unit": column.unit} for column in found.columns]
    yield f'{{"run": {json.dumps(run.name)},\n"columns": {json.dumps(columns)},\n"records": [\n'
    yield from _pieces(found, empty="null", opening="[", closing="]", between=",\n")
    yield "\n]}\n"


def _pieces(found: Metrics, *, empty: str, opening: str, closing: str, between: str) -> Iterator[str]:
    values = [found.column(column.name) for column in found.columns]
    whole = [column.name in _WHOLE for column in found.columns]
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
