"""Results as tables: the figures of each model, its lanes, the goals, and what was not measured and why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.engine.machine import GIB
from benchmarks.gpu.cases import Case
from benchmarks.gpu.goals import exposed_s, goals_of
from benchmarks.host_optimizer.report import NOTHING, Table

FIGURES = (
    *(
        "case",
        "s a step",
        "planned",
        "tokens/s",
        "TFLOP/s",
        "forward",
        "backward",
        "update",
        "exposed",
        "idle",
    ),
    *("device GiB", "allocated", "host GiB", "B a parameter", "free fell GiB"),
)
Entry = Mapping[str, Any]


def tables(entries: Sequence[Entry]) -> list[Table]:
    """Of results as they are kept: one table of figures and one of lanes for each model and setting, then the goals."""
    drawn: list[Table] = []
    checks = [(e["name"], e["status"], e["reason"]) for e in entries if "case" not in e]
    if checks:
        drawn.append(Table("Checks", ("check", "", "last line"), tuple(checks)))
    entries = [e for e in entries if "case" in e]
    done = [e for e in entries if e["status"] == "done"]
    for setting in dict.fromkeys(_setting(e) for e in done):
        group = [e for e in done if _setting(e) == setting]
        drawn.append(Table(setting, FIGURES, tuple(_figures(e) for e in group)))
        lanes = [row for e in group for row in _lanes(e)]
        if lanes:
            columns = ("case", "lane", "busy s", "hidden s", "exposed s")
            drawn.append(Table(f"Lanes of a step: {setting}", columns, tuple(lanes)))
    if goals := [row for e in done for row in _goals(e)]:
        drawn.append(Table("Goals", ("case", "goal", "limit", "is", "met"), tuple(goals)))
    if rest := [(e["name"], e["status"], e["reason"]) for e in entries if e["status"] != "done"]:
        drawn.append(Table("Not measured", ("case", "", "why"), tuple(rest)))
    return drawn


def line_of(entry: Entry) -> str:
    """Return what a case or a check came to, in one line."""
    words = f"{entry['name']}: {entry['status']}"
    if "result" not in entry:
        return f"{words}, {entry['reason']}"
    result = entry["result"]
    exposed = exposed_s(Case(**entry["case"]), result)
    parts = (
        f"{result['median_step_s']:.3f} s a step",
        f"planned {_number(result.get('planned_step_s'), '.3f')}",
        f"{result['tokens_per_s']:,.0f} tokens/s",
        "exposed " + (NOTHING if exposed is None else f"{exposed / result['median_step_s']:.1%}"),
        f"idle {_number(result.get('idle_share'), '.1%')}",
        f"device {_gib(result.get('device_reserved_bytes'))} GiB",
        f"host {_gib(result['host_peak_bytes'])} GiB",
    )
    return f"{words}, {', '.join(parts)}"


def goals_met(entries: Sequence[Entry]) -> bool:
    """Whether every goal of every case that was measured is met."""
    return all(
        goal.met
        for e in entries
        if e["status"] == "done"
        for goal in goals_of(Case(**e["case"]), e["result"], e["micro_batch"])
    )


def _setting(entry: Entry) -> str:
    result = entry["result"]
    return (
        f"{entry['case']['model']}, {result['parameters']:,} parameters, micro-batch {entry['micro_batch']} of "
        f"{entry['sequence']} tokens, {entry['device_label']}"
    )


def _short(entry: Entry) -> str:
    return str(entry["name"]).split("/", 1)[1].split("@", 1)[0]


def _figures(entry: Entry) -> tuple[str, ...]:
    result, case = entry["result"], Case(**entry["case"])
    exposed = exposed_s(case, result)
    own = case.contender == "engine"
    host = result["host_peak_bytes"]
    return (
        _short(entry),
        f"{result['median_step_s']:.3f}",
        _number(result.get("planned_step_s"), ".3f"),
        f"{result['tokens_per_s']:,.0f}",
        f"{result['tflops']:.1f}",
        f"{result['forward_s']:.3f}",
        # An alternative's optimizer runs within its backward or right behind it: they are not told apart.
        f"{result['backward_s']:.3f}" if own else NOTHING,
        f"{result['lane_seconds']['update']:.3f}" if own else NOTHING,
        NOTHING if exposed is None else f"{exposed:.3f} ({exposed / result['median_step_s']:.1%})",
        _number(result.get("idle_share"), ".1%"),
        _gib(result.get("device_reserved_bytes")),
        _gib(result.get("device_allocated_bytes")),
        _gib(host),
        NOTHING if host is None else f"{host / result['parameters']:.2f}",
        _gib(result["host_taken_bytes"]),
    )


def _lanes(entry: Entry) -> list[tuple[str, ...]]:
    result = entry["result"]
    rows: list[tuple[str, ...]] = []
    for lane, busy in result.get("lane_seconds", {}).items():
        if busy and lane != "compute":
            hidden, exposed = (result[f"lane_{kind}_seconds"][lane] for kind in ("hidden", "exposed"))
            rows.append((_short(entry), lane, f"{busy:.3f}", f"{hidden:.3f}", f"{exposed:.3f}"))
    return rows


def _goals(entry: Entry) -> list[tuple[str, ...]]:
    goals = goals_of(Case(**entry["case"]), entry["result"], entry["micro_batch"])
    return [
        (
            entry["name"],
            goal.words,
            f"{goal.limit:.3f} {goal.unit}",
            f"{goal.figure:.3f}",
            "yes" if goal.met else "no",
        )
        for goal in goals
    ]


def _gib(count: int | None) -> str:
    return NOTHING if count is None else f"{count / GIB:.2f}"


def _number(value: float | None, form: str) -> str:
    return NOTHING if value is None else format(value, form)
