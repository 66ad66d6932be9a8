"""A plan as text for a terminal: a bar and a table a tier, a table of lanes, and sentences.

Only characters that every terminal has. Invariant: every number comes from the plan; nothing is computed again.
"""

from __future__ import annotations

import string

from workbench.formatting import decimal_bytes, duration, gib, in_sentence, seconds
from workbench.plan.fit import Fit, why_not
from workbench.plan.memory import TierNeed
from workbench.plan.planner import Plan
from workbench.timeline import Lane

BAR = 60
LEAST_WRITTEN = 10_000
"""Bytes a day: below them it says nothing."""
LEAST_SECONDS = 3600
"""Shorter runs give no rate for a day."""


def plan_text(plan: Plan) -> str:
    """Return the whole plan."""
    offload = plan.config.offload
    verdict = "it fits" if plan.fits else "IT DOES NOT FIT"
    stored = plan.precision.storage
    computed = plan.precision.computed_in.get(stored, stored)
    lines = [
        f"{plan.memory.parameters:,} parameters on {in_sentence(plan.machine)}: {verdict}",
        f"weights on {offload.weights}, state on {offload.state} ({offload.state_format})"
        + (f", the first {offload.device_fraction:.0%} on the device" if offload.device_fraction else "")
        + (", gradients summed on the device" if offload.gradient_sums == "device" else "")
        + f"; stored in {stored}, computed in {computed}",
    ]
    lines += ranks_lines(plan)
    for tier in plan.memory.tiers:
        lines += ["", *tier_lines(tier)]
    if not any(tier.tier == "disk" for tier in plan.memory.tiers):
        lines += ["", "disk: not known: the machine's profile has no [disk] table"]
    if not plan.fits:
        lines += ["", *why_not(plan)]
    lines += ["", *time_lines(plan)]
    return "\n".join(lines)


def ranks_lines(plan: Plan) -> list[str]:
    """Return what each of several ranks needs; no line for one."""
    if plan.ranks == 1:
        return []
    tiers = {tier.tier: tier.needed_bytes for tier in plan.memory.tiers}
    where = (
        "it"
        if plan.local_ranks == plan.ranks
        else f"each of {-(-plan.ranks // plan.local_ranks)} such machines"
    )
    each = f"{gib(tiers['host'] // plan.local_ranks)} of host memory"
    if "device" in tiers:
        each += f" and {gib(tiers['device'])} of its GPU's"
    return [f"{plan.ranks} ranks, {plan.local_ranks} on {where}; a rank needs {each}"]


def next_gpu_line(plan: Plan, more: Plan) -> str:
    """Return what one GPU more brings: `more` is `plan` with it."""
    assert plan.time is not None and more.time is not None
    elsewhere = plan.local_ranks == more.local_ranks and plan.ranks % plan.local_ranks == 0
    gain = more.time.tokens_per_s / plan.time.tokens_per_s - 1
    return (
        f"one {'GPU more' if 'device' in {t.tier for t in plan.memory.tiers} else 'process more'}"
        f"{', on another machine' if elsewhere else ''}: {more.time.tokens_per_s:,.0f} tokens a second ({gain:+.0%})"
        f"{'' if more.fits else ', which does not fit'}"
    )


def tier_lines(tier: TierNeed) -> list[str]:
    """Return the lines of one tier: its share of what is free, a stacked bar, and the rows by their letters."""
    rows = sorted(tier.needs.items(), key=lambda row: -row[1])
    verdict = "" if tier.fits else f", {gib(tier.missing_bytes)} too much"
    lines = [
        f"{tier.tier}: {gib(tier.needed_bytes)} of {gib(tier.free_bytes)} free{verdict}",
        f"  {bar(tier)}",
    ]
    letters = string.ascii_lowercase
    lines += [
        f"  {letters[number % 26]} {name:<28}{gib(size):>14}" for number, (name, size) in enumerate(rows)
    ]
    return lines


def bar(tier: TierNeed, width: int = BAR) -> str:
    """Return a bar of needs, each row by its letter, the largest first; dots are free, and "|" is where free ends."""
    whole = max(tier.needed_bytes, tier.free_bytes, 1)
    rows = sorted(tier.needs.items(), key=lambda row: -row[1])
    cells, passed = "", 0
    for number, (_, size) in enumerate(rows):
        passed += size
        cells += string.ascii_lowercase[number % 26] * (round(passed * width / whole) - len(cells))
    cells = cells.ljust(width, ".")
    if tier.fits:
        return f"[{cells}]"
    limit = int(tier.free_bytes * width / whole)
    return f"[{cells[:limit]}|{cells[limit:]}]"


def time_lines(plan: Plan) -> list[str]:
    """Return the lines of the step, its lanes, and the run; or why they are not known."""
    time, run = plan.time, plan.run
    if time is None:
        return [f"time: not known: {plan.no_time}"]
    width = 10 if plan.ranks == 1 else 11
    basis = "measured on this machine" if time.measured else "from the machine's speeds"
    lines = [
        f"a step: {seconds(time.step_s)}, {time.tokens_per_s:,.0f} tokens a second (compute {basis})",
        f"  {'lane':<{width}}{'busy':>12}{'hidden':>12}{'exposed':>12}",
    ]
    for lane, each in time.lanes.items():
        if each.busy_s > 0:
            hidden = "" if lane is Lane.COMPUTE else seconds(each.hidden_s)
            exposed = "" if lane is Lane.COMPUTE else seconds(each.exposed_s)
            lines.append(f"  {lane.value:<{width}}{seconds(each.busy_s):>12}{hidden:>12}{exposed:>12}")
    lines.append(time.bottleneck)
    if plan.busy:
        lines.append(plan.busy)
    if run is not None:
        saves = "not measured" if run.checkpoints_s is None else duration(run.checkpoints_s)
        train = plan.config.train
        if train.epochs:
            lines.append(
                f"train.epochs = {train.epochs:g}: the number of steps depends on the text; "
                "the run prints it at its start"
            )
            return lines
        lines.append(
            f"{train.steps:,} steps: {duration(run.total_s)} (steps {duration(run.steps_s)}, evaluations "
            f"at most {duration(run.evaluations_s)}, checkpoints {saves})"
        )
        if run.written_per_day_bytes >= LEAST_WRITTEN and run.total_s >= LEAST_SECONDS:
            lines.append(f"disks: {decimal_bytes(run.written_per_day_bytes)} written a day")
    return lines


def fit_text(found: Fit) -> str:
    """Return the changes that a fit found field by field, then the plan."""
    if found.fits and not found.changes:
        head = ["the preset is already the fastest that fits"]
    elif found.fits:
        head = ["the fastest that fits changes:"]
    else:
        head = [
            "nothing fits; the nearest changes:"
            if found.changes
            else "nothing fits; the preset is the nearest"
        ]
    for change in found.changes:
        note = f"  ({change.note})" if change.note else ""
        head.append(f"  {change.field}: {change.before} -> {change.after}{note}")
    head += list(found.advice)
    return "\n".join([*head, "", plan_text(found.plan)])
