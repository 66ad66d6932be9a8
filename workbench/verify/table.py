"""The rows as people read them and as programs do."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from workbench.verify.rows import Row

HEADINGS = ("", "what was compared", "difference", "allowed", "", "")
LONGEST_NOTE = 150


def lines(rows: Sequence[Row]) -> Iterator[str]:
    """The table, line by line, and what it comes to."""
    cells = [HEADINGS, *map(_cells, rows)]
    widths = [max(len(line[column]) for line in cells) for column in range(len(HEADINGS))]
    for line in cells:
        padded = [f"{cell:<{width}}" for cell, width in zip(line, widths, strict=True)]
        yield "  ".join(padded).rstrip()
    failed = sum(not row.holds for row in rows)
    yield ""
    yield f"{failed} of {len(rows)} rows FAILED" if failed else f"all {len(rows)} rows hold"


def json_text(rows: Sequence[Row], about: dict[str, Any]) -> str:
    """`about` and the rows as one object; "holds" is true only if every row holds."""
    holds = all(row.holds for row in rows)
    return json.dumps({**about, "holds": holds, "rows": [row.as_dict() for row in rows]}, indent=2)


def _cells(row: Row) -> tuple[str, ...]:
    note = row.note if len(row.note) <= LONGEST_NOTE else row.note[: LONGEST_NOTE - 1] + "…"
    return (row.name, row.compared, _number(row.worst), _number(row.allowed), _word(row), note)


def _word(row: Row) -> str:
    return "ok" if row.holds else "FAILED"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.1e}"
