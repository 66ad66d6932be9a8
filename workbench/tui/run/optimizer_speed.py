"""How fast the host optimizer moved memory in the last step, and what this machine's memory can do.

Figures of the last step's spans, the plan and the configuration; nothing is measured here, and None is what is not
known. 1 GB is 10^9 bytes, as the threads panel has it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from workbench.errors import ConfigurationError
from workbench.runs import Lanes
from workbench.system.folders import expanded

TRAFFIC_BYTES = {"exact": 26, "half": 18, "compact": 14}
"""Memory traffic of an update, bytes a parameter, of bf16 working weights: all of the state and the gradient are read,
all of the state is written, the working weights with it (they are the master's upper half)."""
_TRAFFIC_OF_WHOLE_MASTERS = 28
"""The same of fp32 working weights (4 + 4 + 4 + 4 read, 4 + 4 + 4 written), and of fp16 ones, whose fp32 master is
kept beside them (4 + 4 + 4 + 2 read, 4 + 4 + 4 + 2 written)."""
_MOMENTS_ROW = "exp_avg and exp_avg_sq"
_MOMENTS_OF_EXACT = 8


def update_gb_per_s(lanes: Lanes, plan: Mapping[str, Any], config: Mapping[str, Any]) -> float | None:
    """The optimizer's memory traffic in the last step, 10^9 bytes a second; None where it did not run on the host.

    parameters x bytes a parameter / seconds: the parameters whose state is not on the device, TRAFFIC_BYTES of the
    state format, and the seconds in which an update ran. Small parameters that stay `exact` in the other formats are
    counted like all the rest.
    """
    parameters = _updated_on_host(plan, config)
    seconds = _update_seconds(lanes, plan)
    if not parameters or not seconds:
        return None
    return parameters * traffic_bytes(plan, config) / seconds / 1e9


def traffic_bytes(plan: Mapping[str, Any], config: Mapping[str, Any]) -> int:
    """Bytes a parameter that an update moves between memory and processor."""
    state_format = _table(config, "offload").get("state_format", "exact")
    whole = _working_bytes(plan, config) == 4 or _table(config, "train").get("precision") == "fp16"
    if whole and state_format == "exact":
        return _TRAFFIC_OF_WHOLE_MASTERS
    return TRAFFIC_BYTES.get(state_format, TRAFFIC_BYTES["exact"])


def memory_limit_gb_per_s(config: Mapping[str, Any]) -> float | None:
    """What this machine's memory was measured to carry, 10^9 bytes a second; None where it was never measured.

    Twice the best speed of a copy, which reads and writes each byte once, as an update nearly does. From the cache of
    `workbench probe`; never measures, but asks what machine this is: not for the thread that draws.
    """
    from workbench.profiles.this_machine import cached_profile

    device = _table(config, "train").get("device", "auto")
    try:
        profile = cached_profile(device)
    except Exception:
        # A driver that answers with nonsense, a device that is not there: then the limit is not known.
        return None
    return None if profile is None else 2 * max(profile.host.copy_bytes_per_s) / 1e9


def disk_folder(config: Mapping[str, Any]) -> Path | None:
    """The folder of the disk tier; None where the run has none, or one that cannot be."""
    offload = _table(config, "offload")
    path = offload.get("disk_path")
    if not isinstance(path, str) or not path or not {"disk", "auto"} & {*map(_tier(offload), _TIERS)}:
        return None
    try:
        return expanded(path, "offload.disk_path")
    except ConfigurationError:
        return None


_TIERS = ("weights", "state")


def _tier(offload: Mapping[str, Any]) -> Any:
    return lambda name: str(offload.get(name))


def _updated_on_host(plan: Mapping[str, Any], config: Mapping[str, Any]) -> float | None:
    """Parameters that the host updates: those with state that is not on the device."""
    parameters = _table(plan, "memory").get("parameters")
    placement = _table(plan, "placement") or _table(config, "offload")
    if not isinstance(parameters, (int, float)) or placement.get("state") not in ("host", "disk"):
        return None
    fraction = placement.get("device_fraction", 0.0)
    found = parameters * (1 - fraction) if isinstance(fraction, (int, float)) else float(parameters)
    if _table(config, "offload").get("state_format", "exact") == "exact":
        # The moments know the parameters that are trained: under an adapter most are not.
        moments = sum(_row(tier, _MOMENTS_ROW) for tier in _tiers(plan) if tier.get("tier") != "device")
        if moments:
            found = min(found, moments / _MOMENTS_OF_EXACT)
    return found


def _update_seconds(lanes: Lanes, plan: Mapping[str, Any]) -> float:
    """Seconds of the last step in which an update ran, overlapping ones once."""
    # Where the model computes in the host's own memory, small parameters are updated between its own tasks.
    shared = not any(tier.get("tier") == "device" for tier in _tiers(plan))
    spans = sorted(
        (span.start_s, span.end_s)
        for span in lanes.spans
        if span.name == "update" and (span.lane == "update" or shared)
    )
    seconds, reached = 0.0, 0.0
    for start, end in spans:
        seconds += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return seconds


def _working_bytes(plan: Mapping[str, Any], config: Mapping[str, Any]) -> int:
    """Bytes of one working weight: 2 or 4."""
    precision = _table(config, "train").get("precision", "auto")
    if precision != "auto":
        return 4 if precision == "fp32" else 2
    parameters = _table(plan, "memory").get("parameters")
    weights = max((_row(tier, "weights") for tier in _tiers(plan)), default=0.0)
    return 4 if isinstance(parameters, int) and parameters and weights / parameters > 3 else 2


def _table(values: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = values.get(name)
    return found if isinstance(found, Mapping) else {}


def _tiers(plan: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    tiers = _table(plan, "memory").get("tiers")
    return [tier for tier in tiers if isinstance(tier, Mapping)] if isinstance(tiers, list) else []


def _row(tier: Mapping[str, Any], name: str) -> float:
    size = _table(tier, "needs").get(name)
    return float(size) if isinstance(size, (int, float)) else 0.0
