"""The command line. stdout gets the table or the JSON, stderr everything else.

For each configuration, one after the other: the machine's speeds, the model's pieces, the plan, then the training,
then speeds and plan once more. A machine that is shared changes its speed within minutes: what is held against the
training is the mean of the plans before and after it, and how far these two are apart is told.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.engine.machine import GIB, describe
from benchmarks.engine.processes import run_case, serve_case, tell
from benchmarks.host_optimizer.output import reserved_stdout
from benchmarks.host_optimizer.report import Table, as_markdown, as_text
from benchmarks.plan_accuracy.cases import CASES, Case
from workbench.config import RunConfig, to_toml

PACKAGE = "benchmarks.plan_accuracy"
CASE = "case"
MEMORY_GOAL, LEAST_BYTES = 0.05, 64 << 20
TIME_GOAL = 0.15
SKIPPED = 1
"""Steps at the start, which touch memory for the first time."""


@dataclass(frozen=True)
class Row:
    """One configuration: bytes and seconds, planned and measured."""

    name: str
    parameters: int
    planned_bytes: int
    grown_bytes: int
    planned_s: float
    measured_s: float
    between: float
    """How far the plans before and after are apart, as a share of their mean: the machine's own unrest."""

    @property
    def memory_error(self) -> float:
        return self.planned_bytes / self.grown_bytes - 1

    @property
    def time_error(self) -> float:
        return self.planned_s / self.measured_s - 1

    @property
    def memory_good(self) -> bool:
        allowed = max(LEAST_BYTES, MEMORY_GOAL * self.grown_bytes)
        return abs(self.planned_bytes - self.grown_bytes) <= allowed

    @property
    def time_good(self) -> bool:
        return abs(self.time_error) <= TIME_GOAL


def main(arguments: Sequence[str]) -> int:
    """Do what the arguments ask for. Returns 0; 1 where a configuration failed or a goal was missed."""
    if list(arguments) == [CASE]:
        from benchmarks.plan_accuracy.training import run

        return serve_case(run)
    options = parser().parse_args(arguments)
    head = describe(PACKAGE, arguments)
    chosen = [case for case in CASES if options.only in case.name]
    rows, failures = [], []
    with reserved_stdout() as data, tempfile.TemporaryDirectory(dir=options.disk) as folder:
        for case in chosen:
            row = measure(case, Path(folder))
            if isinstance(row, Row):
                rows.append(row)
                tell(
                    f"{row.name}: memory {row.memory_error:+.1%}, time {row.time_error:+.1%} "
                    f"(plans {row.between:.0%} apart)"
                )
            else:
                failures.append(f"{case.name}: {row}")
                tell(failures[-1])
        if options.json:
            print(json.dumps([vars(row) for row in rows], indent=1), file=data)
        else:
            draw = as_markdown if options.markdown else as_text
            print(_text(head, rows, failures, draw), file=data)
    return 0 if not failures and all(r.memory_good and r.time_good for r in rows) else 1


def measure(case: Case, folder: Path) -> Row | str:
    """Plan and train one configuration; a sentence where that failed."""
    config = case.config(str(folder))
    needed, step_s = predict(config)
    outcome = run_case(PACKAGE, {"config": to_toml(config)}, limit_s=1800)
    if outcome.result is None:
        return outcome.failure
    result = outcome.result
    _, after_s = predict(config)
    mean_s = (step_s + after_s) / 2
    return Row(
        case.name,
        result["parameters"],
        needed,
        result["grown_bytes"],
        mean_s,
        statistics.median(result["seconds"][SKIPPED:]),
        abs(after_s - step_s) / mean_s,
    )


def predict(config: RunConfig) -> tuple[int, float]:
    """Bytes of the host beside the runtime, and seconds of a step, by the machine as it is now."""
    from workbench.plan.machine import planned_machine
    from workbench.plan.planner import Planner
    from workbench.profiles.model_profile import ModelTimes
    from workbench.profiles.obtain import ask_once, essential, obtain_model_profile

    machine = probed(config.offload.disk_path)
    table = config.model.model_dump()
    model_profile = obtain_model_profile(table, tell)
    assert model_profile is not None

    def times_of(sequences: int, tokens: int, dtype: str) -> ModelTimes:
        question = {
            "ask": "times",
            "model": essential(table),
            "model_profile": model_profile.model_dump(mode="json"),
            "sequences": sequences,
            "tokens": tokens,
            "dtype": dtype,
            "device": "cpu",
            "fingerprint": "",
            "budget_s": 20.0,
        }
        return ModelTimes.model_validate(ask_once(question, tell))

    plan = Planner(model_profile, planned_machine(machine), times_of).plan(config)
    host = next(tier for tier in plan.memory.tiers if tier.tier == "host")
    assert plan.time is not None
    if not plan.time.measured:
        why = "other kinds were timed" if plan.fits else "the plan does not fit"
        tell(f"this plan's time comes from the machine's speeds, not from the model's pieces: {why}")
    return host.needed_bytes - host.needs["runtime"], plan.time.step_s


def probed(disk_path: str) -> Any:
    """This machine, measured now."""
    from workbench.profiles.machine_profile import parse_profile

    outcome = run_case("benchmarks.plan_accuracy.probing", {"disk": disk_path})
    assert outcome.result is not None, outcome.failure
    return parse_profile(outcome.result["profile"], "this machine")


def parser() -> argparse.ArgumentParser:
    """The options."""
    made = argparse.ArgumentParser(prog=f"python -m {PACKAGE}", description=__doc__)
    made.add_argument(
        "--only", default="", metavar="TEXT", help="configurations with this text in their name"
    )
    made.add_argument("--disk", type=Path, default=None, metavar="DIR", help="where the disk tier lies")
    made.add_argument("--markdown", action="store_true", help="print the table as Markdown")
    made.add_argument("--json", action="store_true", help="print JSON")
    return made


def _text(head: Sequence[str], rows: Sequence[Row], failures: Sequence[str], draw: Any) -> str:
    columns = (
        "configuration",
        "parameters",
        "planned",
        "measured",
        "",
        "planned step",
        "measured step",
        "",
        "plans apart",
    )
    table = Table(
        "Planned and measured: growth of resident memory, seconds of a step (median)",
        columns,
        tuple(
            (
                row.name,
                f"{row.parameters:,}",
                f"{row.planned_bytes / GIB:.2f} GiB",
                f"{row.grown_bytes / GIB:.2f} GiB",
                f"{row.memory_error:+.1%}{'' if row.memory_good else ' MISSED'}",
                f"{row.planned_s:.3f} s",
                f"{row.measured_s:.3f} s",
                f"{row.time_error:+.1%}{'' if row.time_good else ' MISSED'}",
                f"{row.between:.0%}",
            )
            for row in rows
        ),
    )
    notes = []
    if rows:
        memory = max(rows, key=lambda row: abs(row.memory_error) * (not row.memory_good or 0.1))
        time = max(rows, key=lambda row: abs(row.time_error))
        notes = [
            f"Goals: memory within {MEMORY_GOAL:.0%} or {LEAST_BYTES >> 20} MiB, time within {TIME_GOAL:.0%}.",
            f"Worst in memory: {memory.name}, {memory.memory_error:+.1%}. "
            f"Worst in time: {time.name}, {time.time_error:+.1%}.",
        ]
    notes += [f"FAILED: {failure}" for failure in failures]
    return "\n\n".join(["\n".join(f"- {line}" for line in (*head, *notes)), draw(table)])
