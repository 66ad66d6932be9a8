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
    tiers = _at(plan, "memory", "tiers")
    needed = {_at(t, "tier"): _at(t, "needed_bytes") for t in tiers} if isinstance(tiers, list) else {}
    rows: tuple[tuple[str, str, Any, str], ...] = (
        ("host memory", "bytes", needed.get("host"), "host_peak_bytes"),
        ("device memory", "bytes", needed.get("device"), "device_peak_bytes"),
        ("step", "s", _at(plan, "time", "step_s"), "step_s"),
        ("speed", "tokens/s", _at(plan, "time", "tokens_per_s"), "tokens_per_s"),
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
    if unit == "bytes":
        return gib(int(value))
    return seconds(value) if unit == "s" else f"{value:,.0f} {unit}"
