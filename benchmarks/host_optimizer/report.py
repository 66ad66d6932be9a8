"""Timings as tables and as JSON rows."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.host_optimizer.measure import Timing
from benchmarks.host_optimizer.variants import Variant

NOTHING = "-"


@dataclass(frozen=True)
class Table:
    """Cells as text; the first column is a name, the others are numbers."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def json_rows(timings: Sequence[Timing]) -> str:
    """A JSON array with the median of each timing."""
    rows = [
        {
            "variant": timing.variant,
            "parameters": timing.parameters,
            "threads": timing.threads,
            "ns_per_parameter": float(f"{timing.median_ns:.4g}"),
        }
        for timing in timings
    ]
    return "[\n" + ",\n".join(json.dumps(row) for row in rows) + "\n]"


def table(
    title: str, timings: Sequence[Timing], variants: Sequence[Variant], references: Sequence[str]
) -> Table:
    """One size and number of threads. `references` that were not measured have no column."""
    medians = {timing.variant: timing.median_ns for timing in timings}
    measured = {timing.variant: timing for timing in timings}
    references = [name for name in references if name in medians]
    share = any(variant.limit in medians for variant in variants if variant.name in medians)
    columns = ["variant", "ns a parameter", "quartiles", "us a step", "GB/s", *(f"x {r}" for r in references)]
    rows = []
    for variant in variants:
        if variant.name not in measured:
            continue
        timing = measured[variant.name]
        first, third = timing.quartiles_ns
        row = [
            variant.name,
            _number(timing.median_ns),
            f"{_number(first)} to {_number(third)}",
            f"{timing.median_ns * timing.parameters / 1e3:,.1f}",
            f"{variant.bytes_per_parameter / timing.median_ns:.1f}",
        ]
        is_limit = variant.name.startswith("limit_")
        row += [NOTHING if is_limit else f"{medians[r] / timing.median_ns:.2f}" for r in references]
        if share:
            limit_ns = medians.get(variant.limit or "")
            row.append(f"{limit_ns / timing.median_ns:.0%}" if limit_ns else NOTHING)
        rows.append(tuple(row))
    return Table(title, (*columns, "of the limit") if share else tuple(columns), tuple(rows))


def as_text(table: Table) -> str:
    """Aligned columns for a terminal."""
    lines = ["  ".join(cells).rstrip() for cells in _padded(table)]
    return "\n".join([table.title, "", *lines])


def as_markdown(table: Table) -> str:
    """A table to paste into a document."""
    head, *body = ["| " + " | ".join(cells) + " |" for cells in _padded(table)]
    rule = "|---|" + "---:|" * (len(table.columns) - 1)
    return "\n".join([f"### {table.title}", "", head, rule, *body])


def _padded(table: Table) -> list[list[str]]:
    """All rows, the head first, with cells as wide as their columns."""
    rows = (table.columns, *table.rows)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        [
            row[0].ljust(widths[0]),
            *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)),
        ]
        for row in rows
    ]


def _number(value_ns: float) -> str:
    """Three digits where they mean something."""
    return f"{value_ns:.3f}" if value_ns < 10 else f"{value_ns:.1f}"
