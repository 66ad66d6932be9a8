"""A plan beside its outcome: the rows of `workbench runs --plan`, and of a run's last lines.

Read from `plan.json`, where the trainer keeps both. Invariant: what is missing on either side gives no row.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from workbench.formatting import gib, seconds


@dataclass(frozen=True)
class Compared:
    """One planned figure and the measured one, in bytes, seconds or tokens a second."""

    name: str
    unit: str
    planned: float
    measured: float

    @property
    def error(self) -> float:
        """The excess of the planned over the measured, as a share of the measured."""
        return self.planned / self.measured - 1

    def text(self) -> str:
        """ "host memory: planned 3.10 GiB, measured 3.02 GiB (plan off by +3%)" """
        return (
            f"{self.name}: planned {_shown(self.planned, self.unit)}, measured {_shown(self.measured, self.unit)} "
            f"(plan off by {self.error:+.0%})"
        )


def compare(plan: Mapping[str, Any]) -> list[Compared]:
    """Return the figures that a `plan.json` holds both of."""
    measured = plan.get("measured")
    if not isinstance(measured, Mapping):
        return []
    rows: list[tuple[str, str, Any, Any]] = []
    for tier in ("host", "device"):
        planned = _needed(plan, tier)
        rows.append((f"{tier} memory", "bytes", planned, measured.get(f"{tier}_peak_bytes")))
    time = plan.get("time")
    if isinstance(time, Mapping):
        rows.append(("step", "s", time.get("step_s"), measured.get("step_s")))
        rows.append(("speed", "tokens/s", time.get("tokens_per_s"), measured.get("tokens_per_s")))
    return [
        Compared(name, unit, float(planned), float(found))
        for name, unit, planned, found in rows
        if _is_positive(planned) and _is_positive(found)
    ]


def _needed(plan: Mapping[str, Any], tier: str) -> Any:
    memory = plan.get("memory")
    tiers = memory.get("tiers") if isinstance(memory, Mapping) else None
    if not isinstance(tiers, list):
        return None
    return next(
        (t.get("needed_bytes") for t in tiers if isinstance(t, Mapping) and t.get("tier") == tier), None
    )


def _is_positive(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < math.inf


def _shown(value: float, unit: str) -> str:
    if unit == "bytes":
        return gib(int(value))
    return seconds(value) if unit == "s" else f"{value:,.0f} {unit}"
