"""The commands of the command line, a file a family; `table.py` lists them all with their arguments.

Data goes to stdout, everything else to stderr. Each command returns its exit code.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence


def report(message: str) -> None:
    """Print a sentence of progress, a warning or an error to stderr."""
    print(f"workbench: {message}", file=sys.stderr, flush=True)


def print_table(rows: Sequence[Sequence[str]], left: int | None = None) -> None:
    """Print rows of cells in columns, the first `left` of them (all: None) to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for cells in rows:
        padded = [
            cell.ljust(width) if left is None or place < left else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(cells, widths, strict=True))
        ]
        print("  ".join(padded).rstrip())
