"""Learning-rate schedules: WarmupLR, WarmupDecayLR and WarmupCosineLR become [schedule].

DeepSpeed's formulas, as shares of the highest rate, with i the scheduler's own count, W = max(2, warmup_num_steps),
T = total_num_steps and r the share that the warm-up starts from:

- i < W: r + (1 - r) log(i + 1) / log(W), or with warmup_type "linear" r + (1 - r) i / W
- later: 1 (WarmupLR), (T - i) / (T - W) but not below 0 (WarmupDecayLR), or the half cosine of (i - W + 1) / (T - W)
  down to cos_min_ratio (WarmupCosineLR)

With i as the step, Workbench's schedules give the same: exactly for the logarithm and the cosine; a linear warm-up is
one step ahead, 1 / W of the highest rate; WarmupDecayLR's decay is lower by 1 / (T + 1 - W) of the rate itself.
DeepSpeed moves its scheduler after each step and starts it at the lowest rate: its step n has the count n - 1.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from workbench.imports.findings import AUTO, Auto, Findings, Member

_PARAMS = "scheduler.params"
_DEFAULT_WARMUP = 1000


class _Kind(NamedTuple):
    """What a scheduler of DeepSpeed is here, and which keys it takes."""

    shape: str
    ends: bool
    keys: tuple[str, ...]


_WARMUP = ("warmup_num_steps", "warmup_type", "last_batch_iteration")
_RATES = ("warmup_min_lr", "warmup_max_lr")
_KINDS = {
    "WarmupLR": _Kind("constant", False, (*_WARMUP, *_RATES)),
    "WarmupDecayLR": _Kind("linear", True, (*_WARMUP, *_RATES, "total_num_steps")),
    "WarmupCosineLR": _Kind(
        "cosine", True, (*_WARMUP, "warmup_min_ratio", "cos_min_ratio", "total_num_steps")
    ),
}
KEYS = (
    "scheduler.type",
    *(
        f"{_PARAMS}.{key}"
        for key in (*_WARMUP, *_RATES, "total_num_steps", "warmup_min_ratio", "cos_min_ratio")
    ),
)
SECTIONS = ("scheduler", _PARAMS)


def read_scheduler(found: Findings) -> None:
    """Judge the section `scheduler` and set [schedule]; after the optimizer, whose learning rate it may replace."""
    if not found.has_section("scheduler"):
        if not found.is_refused("scheduler"):
            found.fill(
                "schedule.type", "scheduler", "the file has none, so the learning rate stays", "constant"
            )
        return
    name = found.word("scheduler.type")
    found.has_section(_PARAMS)
    if name is None and not found.is_refused("scheduler.type"):
        found.fill(
            "schedule.type", "scheduler.type", "the file names none, so the learning rate stays", "constant"
        )
        for member in _params_of(found):
            found.judge(member, "meaningless here", "there is no scheduler for it")
        return
    kind = _KINDS.get(name) if name is not None else None
    if name is None or kind is None:
        if name is not None:
            found.refuse("scheduler.type", "not a schedule that is built; these are: " + ", ".join(_KINDS))
        _read_what_any_has(found)
        return
    words = {"constant": "stays after the warm-up", "linear": "falls to 0", "cosine": "falls as a cosine"}[
        kind.shape
    ]
    found.put("schedule.type", kind.shape, "scheduler.type", f"the learning rate {words}")
    for member in _params_of(found):
        if member.path[-1] not in kind.keys and member.key in KEYS:
            found.refuse(member, f"{name} does not take it; leave it out")
    _read_warmup(found)
    if kind.shape == "cosine":
        _read_ratio(found, "warmup_min_ratio", "schedule.warmup_ratio", 0.0)
        _read_ratio(found, "cos_min_ratio", "schedule.min_ratio", 1e-4)
    else:
        _read_rates(found, name)
        if kind.shape == "linear":
            found.fill("schedule.min_ratio", "scheduler.type", f"{name} ends at 0", 0.0)
    if kind.ends:
        _read_length(found, name)


def _read_what_any_has(found: Findings) -> None:
    """The keys of a schedule that is refused: those that one in its place would have must be right as well."""
    _read_warmup(found)
    _read_rates(found, "WarmupLR")
    _read_ratio(found, "warmup_min_ratio", "schedule.warmup_ratio", 0.0)
    _read_ratio(found, "cos_min_ratio", "schedule.min_ratio", 1e-4)
    found.whole(f"{_PARAMS}.total_num_steps")
    for key in KEYS:
        if key != "scheduler.type" and not found.is_refused(key):
            found.judge(key, "meaningless here", "the scheduler is refused")


def _params_of(found: Findings) -> list[Member]:
    return [
        member
        for path, member in found.members.items()
        if path[:2] == ("scheduler", "params") and len(path) > 2
    ]


def _read_warmup(found: Findings) -> None:
    steps = _read_warmup_steps(found)
    key, field = f"{_PARAMS}.warmup_type", "schedule.warmup_type"
    written = found.word(key)
    if written == "linear":
        reason = (
            f"the warm-up is one step ahead of DeepSpeed's formula, {_share(1, steps)} of the highest rate"
        )
        found.put(field, "linear", key, reason)
    elif written is None and not found.is_refused(key):
        found.fill(field, key, f"DeepSpeed's default; {_lag(steps)}", "log")
    elif written is not None:
        unknown = "" if written in ("log", "auto") else "DeepSpeed takes log for what it does not know; "
        found.put(field, "log", key, unknown + _lag(steps))
    start = found.whole(f"{_PARAMS}.last_batch_iteration")
    if start == -1 or start is AUTO:
        found.judge(f"{_PARAMS}.last_batch_iteration", "used", "the schedule starts at its beginning")
    elif start is not None:
        found.refuse(f"{_PARAMS}.last_batch_iteration", "a schedule starts at its beginning; leave it out")


def _read_warmup_steps(found: Findings) -> int:
    key, field = f"{_PARAMS}.warmup_num_steps", "schedule.warmup_steps"
    steps = found.whole(key)
    if steps is AUTO:
        found.auto(field, key)
        return int(found.settings[field].value)
    if steps is None or isinstance(steps, Auto):
        if not found.is_refused(key):
            found.fill(field, key, "DeepSpeed's default", _DEFAULT_WARMUP)
        return _DEFAULT_WARMUP
    if steps < 0:
        found.refuse(key, "must be at least 0")
        return _DEFAULT_WARMUP
    taken = max(2, steps)
    if taken == steps:
        found.put(field, taken, key, "steps of the warm-up", "used")
    else:
        found.put(field, taken, key, f"DeepSpeed takes 2 for {steps}")
    return taken


def _lag(steps: int) -> str:
    if steps < 2:
        return "there is no warm-up"
    first = _share(math.log(2), math.log(steps))
    return (
        "DeepSpeed's formula of the step; its own first two steps both have the lowest rate, and it stays one step "
        f"behind: {first} of the highest rate at the second step, less at every later one"
    )


def _share(part: float, whole: float) -> str:
    return f"{100 * part / max(whole, 1e-9):.2g} %"


def _read_ratio(found: Findings, key: str, field: str, default: float) -> None:
    name = f"{_PARAMS}.{key}"
    value = found.number(name)
    if value is AUTO:
        found.auto(field, name, "DeepSpeed's default", default)
    elif value is not None and not isinstance(value, Auto):
        found.put(field, float(value), name, "share of the highest rate", "used")
    elif not found.is_refused(name):
        found.fill(field, name, "DeepSpeed's default", default)


def _read_rates(found: Findings, name: str) -> None:
    """The lowest and the highest rate; the highest replaces the optimizer's."""
    low_key, high_key = (f"{_PARAMS}.{key}" for key in _RATES)
    field = "optimizer.learning_rate"
    high = found.number(high_key)
    if isinstance(high, Auto):
        found.auto(field, high_key, "the optimizer's", _rate(found))
    elif high is not None:
        before = found.settings.get(field)
        found.put(field, float(high), high_key, "the scheduler's highest rate is the learning rate")
        if before is not None and before.value != float(high):
            found.judge("optimizer.params.lr", "meaningless here", f"the scheduler's {high_key} replaces it")
    elif not found.is_refused(high_key):
        older = "; older versions of WarmupDecayLR took 0.001" if name == "WarmupDecayLR" else ""
        found.assume(high_key, f"the optimizer's learning rate{older}: {_rate(found):g}")
    low = found.number(low_key)
    ratio = "schedule.warmup_ratio"
    if isinstance(low, Auto):
        found.auto(ratio, low_key, "DeepSpeed's default", 0.0)
    elif low is None:
        if not found.is_refused(low_key):
            found.fill(ratio, low_key, "DeepSpeed's default", 0.0)
    elif found.is_refused("optimizer.params.lr") and "optimizer.learning_rate" not in found.settings:
        found.judge(low_key, "meaningless here", "not worked out: the learning rate is refused")
    elif low > _rate(found):
        found.refuse(low_key, f"must not be above the highest rate, {_rate(found):g}")
    else:
        found.put(ratio, low / _rate(found), low_key, f"as a share of the highest rate, {_rate(found):g}")


def _rate(found: Findings) -> float:
    setting = found.settings.get("optimizer.learning_rate")
    if setting is None:
        from workbench.imports.findings import DOCUMENTED

        return float(DOCUMENTED["optimizer.learning_rate"].default)
    return float(setting.value)


def _read_length(found: Findings, name: str) -> None:
    key = f"{_PARAMS}.total_num_steps"
    steps = found.whole(key)
    if steps is AUTO:
        found.auto("schedule.total_steps", key, "the last step of the run, whatever train.steps says", 0)
    elif steps is not None and not isinstance(steps, Auto):
        found.put("train.steps", steps, key, "the steps of the run")
        if found.is_refused(key):
            return
        field, warmup = "schedule.total_steps", found.settings.get("schedule.warmup_steps")
        if name == "WarmupCosineLR":
            found.put(field, steps, key, "the steps of the run, at whose end the rate has its last value")
            return
        away = _share(1, max(1, steps + 1 - (warmup.value if warmup else 0)))
        reason = (
            f"the rate would be 0 at the step after the last; within {away} of DeepSpeed's formula all along"
        )
        found.put(field, steps + 1, key, reason)
    elif not found.is_refused(key) and not found.is_refused("scheduler.type"):
        found.refuse("scheduler.type", f'{name} needs "total_num_steps" in its params')
