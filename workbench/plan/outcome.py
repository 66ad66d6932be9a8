"""A plan beside its outcome: the rows of `workbench runs --plan`, and of a run's last lines.

Read from `plan.json`, where the trainer keeps both. Invariant: what is missing on either side gives no row.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from workbench.formatting import gib, seconds

_AS_PLANNED = 1.05
"""A step that is slower or faster by less than this factor took the time that was planned."""


@dataclass(frozen=True)
class Compared:
    """One planned figure and the measured one, in bytes or seconds."""

    name: str
    unit: str
    planned: float
    measured: float

    @property
    def factor(self) -> float:
        """The measured as a multiple of the planned."""
        return self.measured / self.planned

    def text(self) -> str:
        """ "step: 0.56 s, 2.4 times slower than planned (0.23 s)" """
        planned, measured = _shown(self.planned, self.unit), _shown(self.measured, self.unit)
        if self.unit != "s":
            return f"{self.name}: {measured}, {self.factor:.2f} times the planned {planned}"
        times = max(self.factor, 1 / self.factor)
        how = f"{times:.1f} times {'slower' if self.factor > 1 else 'faster'} than planned"
        return f"{self.name}: {measured}, {'as planned' if times < _AS_PLANNED else how} ({planned})"


def compare(plan: Mapping[str, Any]) -> list[Compared]:
    """Return the figures that a `plan.json` holds both of."""
    tiers = _at(plan, "memory", "tiers")
    needed = {_at(t, "tier"): _at(t, "needed_bytes") for t in tiers} if isinstance(tiers, list) else {}
    ranks = _at(plan, "local_ranks")
    host = needed.get("host")
    if _is_positive(ranks) and _is_positive(host):  # of one rank, as the measured one
        host = host / ranks
    rows: tuple[tuple[str, str, Any, str], ...] = (
        ("host memory", "bytes", host, "host_peak_bytes"),
        ("device memory", "bytes", needed.get("device"), "device_peak_bytes"),
        ("step", "s", _at(plan, "time", "step_s"), "step_s"),
    )
    return [
        Compared(name, unit, float(planned), float(found))
        for name, unit, planned, key in rows
        if _is_positive(planned) and _is_positive(found := _at(plan, "measured", key))
    ]


def _at(value: Any, *keys: str) -> Any:
    """Return the value under `keys` in nested tables; None where there is none."""
    for key in keys:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def _is_positive(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < math.inf


def _shown(value: float, unit: str) -> str:
    return gib(int(value)) if unit == "bytes" else seconds(value)
