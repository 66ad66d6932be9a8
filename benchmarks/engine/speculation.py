"""`speculation`: steps whose updates come ahead of the verdict beside steps whose updates wait, in separate memories.

Compute is simulated: it waits, a quarter of its seconds in forward. The clipping never strikes. Trainings take turns,
each a process of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.engine.processes import run_case, tell
from benchmarks.host_optimizer.report import NOTHING, Table

PARAMETERS = 1_000_000_000
FORMATS = ("compact", "half")
COMPUTE_MS = 1000
THREADS = 2
TURNS = 2
COLUMNS = (
    "updates",
    "step s",
    "waits s",
    "ahead",
    "compute s",
    "download s",
    "update s",
    "upload s",
    "peak GiB",
)


@dataclass(frozen=True)
class Measured:
    """All that was measured. `good`: nothing failed."""

    table: Table
    notes: tuple[str, ...]
    rows: tuple[dict[str, Any], ...]
    good: bool


def measure_speculation(parameters: int, formats: Sequence[str], compute_ms: int, threads: int) -> Measured:
    """Measure each format `TURNS` times, after the verdict and ahead of it in turn."""
    notes = [
        f"24 matrices, {parameters:,} parameters in bf16, clip 1.0 and no step clipped; a compute that waits "
        f"{compute_ms} ms, {threads} threads update; medians of four steps after twelve"
    ]
    cells: list[tuple[str, ...]] = []
    rows: list[dict[str, Any]] = []
    for state_format in formats:
        for turn in range(TURNS):
            for when, share in (("after", 0.0), ("ahead", 1.0)):
                name = f"{state_format}, {when}, {turn + 1}"
                tell(name)
                case = {
                    "verb": "speculation",
                    "parameters": parameters,
                    "state_format": state_format,
                    "speculation": share,
                    "compute_s": compute_ms / 1000,
                    "threads": threads,
                }
                outcome = run_case("benchmarks.engine", case)
                rows.append({"case": name, **(outcome.result or {"failure": outcome.failure})})
                if outcome.result is None:
                    notes.append(f"{name} failed: {outcome.failure}")
                    cells.append((name, *[NOTHING] * (len(COLUMNS) - 1)))
                else:
                    cells.append((name, *_cells(outcome.result)))
    table = Table("Updates ahead of the verdict", COLUMNS, tuple(cells))
    return Measured(table, tuple(notes), tuple(rows), all("failure" not in row for row in rows))


def _cells(found: dict[str, Any]) -> tuple[str, ...]:
    lanes = (f"{found[f'{lane}_s']:.3f}" for lane in ("compute", "download", "update", "upload"))
    waits = f"{found['exposed_s']:.3f} ({found['exposed_s'] / found['step_s']:.1%})"
    return (
        f"{found['step_s']:.3f}",
        waits,
        f"{found['ahead']:.0%}",
        *lanes,
        f"{found['peak_bytes'] / 2**30:.2f}",
    )
