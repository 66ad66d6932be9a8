"""The host optimizer's memory traffic in the last step, and what this machine's memory can carry.

Computed from the last step's spans, the plan and the configuration; nothing is measured here, and None means that a
figure is not known. 1 GB is 10^9 bytes, as the threads panel has it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from workbench.errors import ConfigurationError
from workbench.runs import Lanes
from workbench.system.folders import expanded

Table = Mapping[str, Any]

TRAFFIC_BYTES = {"exact": 26, "half": 18, "compact": 14}
"""Memory traffic of an update, bytes a parameter, of bf16 working weights: all of the state and the gradient are read,
all of the state is written, the working weights with it (they are the master's upper half)."""
_TRAFFIC_OF_WHOLE_MASTERS = 28
"""The same of fp32 working weights (4 + 4 + 4 + 4 read, 4 + 4 + 4 written), and of fp16 ones, whose fp32 master is
kept beside them (4 + 4 + 4 + 2 read, 4 + 4 + 4 + 2 written)."""
_MOMENTS_ROW = "exp_avg and exp_avg_sq"
_MOMENTS_OF_EXACT = 8


def update_gb_per_s(lanes: Lanes, plan: Table, config: Table) -> float | None:
    """Return parameters x bytes a parameter / seconds / 10^9; None where the optimizer did not run on the host.

    The parameters are those whose state is not on the device, the seconds those in which an update ran. Small
    parameters that stay `exact` in the other state formats are counted like all the rest.
    """
    parameters, seconds = _parameters_on_host(plan, config), _update_seconds(lanes, plan)
    if not parameters or not seconds:
        return None
    return parameters * traffic_bytes(plan, config) / seconds / 1e9


def traffic_bytes(plan: Table, config: Table) -> int:
    """Return the bytes a parameter that an update moves between memory and processor."""
    state_format = _table(config, "offload").get("state_format", "exact")
    precision = _table(config, "train").get("precision", "auto")
    if precision == "auto":
        parameters = _table(plan, "memory").get("parameters")
        weights = max((_row(tier, "weights") for tier in _tiers(plan)), default=0.0)
        precision = "fp32" if isinstance(parameters, int) and weights > 3 * parameters else "bf16"
    if precision in ("fp32", "fp16") and state_format == "exact":
        return _TRAFFIC_OF_WHOLE_MASTERS
    return TRAFFIC_BYTES.get(state_format, TRAFFIC_BYTES["exact"])


def memory_limit_gb_per_s(config: Table) -> float | None:
    """Return what this machine's memory was measured to carry, 10^9 bytes a second; None where it never was.

    A copy reads and writes, so that its traffic is twice its bytes. Asks which machine this is, which may take long.
    """
    from workbench.profiles.this_machine import cached_profile

    try:
        profile = cached_profile(_table(config, "train").get("device", "auto"))
    except Exception:
        # A driver that answers with nonsense, a device that is not there: then the limit is not known.
        return None
    return None if profile is None else 2 * max(profile.host.copy_bytes_per_s) / 1e9


def disk_folder(config: Table) -> Path | None:
    """Return the folder of the disk tier; None where the run has none, or one that cannot be."""
    offload = _table(config, "offload")
    path = offload.get("disk_path")
    if (
        not isinstance(path, str)
        or not path
        or not {"disk", "auto"} & {*map(offload.get, ("weights", "state"))}
    ):
        return None
    try:
        return expanded(path, "offload.disk_path")
    except ConfigurationError:
        return None


def _parameters_on_host(plan: Table, config: Table) -> float | None:
    parameters = _table(plan, "memory").get("parameters")
    placement = _table(plan, "placement") or _table(config, "offload")
    if not isinstance(parameters, (int, float)) or placement.get("state") not in ("host", "disk"):
        return None
    fraction = placement.get("device_fraction", 0.0)
    found = parameters * (1 - fraction) if isinstance(fraction, (int, float)) else float(parameters)
    if _table(config, "offload").get("state_format", "exact") == "exact":
        # Under an adapter most parameters are not trained: only the moments tell how many are.
        moments = sum(_row(tier, _MOMENTS_ROW) for tier in _tiers(plan) if tier.get("tier") != "device")
        found = min(found, moments / _MOMENTS_OF_EXACT) if moments else found
    return found


def _update_seconds(lanes: Lanes, plan: Table) -> float:
    """Return the seconds of the last step in which an update ran, overlapping ones counted once."""
    # Where the model computes in the host's own memory, small parameters are updated between its own tasks.
    shared = not any(tier.get("tier") == "device" for tier in _tiers(plan))
    seconds = reached = 0.0
    for start, end in sorted(
        (span.start_s, span.end_s)
        for span in lanes.spans
        if span.name == "update" and (span.lane == "update" or shared)
    ):
        seconds += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return seconds


def _table(values: Table, name: str) -> Table:
    found = values.get(name)
    return found if isinstance(found, Mapping) else {}


def _tiers(plan: Table) -> list[Table]:
    tiers = _table(plan, "memory").get("tiers")
    return [tier for tier in tiers if isinstance(tier, Mapping)] if isinstance(tiers, list) else []


def _row(tier: Table, name: str) -> float:
    size = _table(tier, "needs").get(name)
    return float(size) if isinstance(size, (int, float)) else 0.0
