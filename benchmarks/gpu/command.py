"""The command line: which cases, one process after the other, into one file; then the tables of all that is in it."""

from __future__ import annotations

import argparse
import datetime
import shlex
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil

from benchmarks.engine.machine import GIB
from benchmarks.engine.processes import Outcome, run_case, serve_case, tell
from benchmarks.gpu.cases import ALTERNATIVES, MODELS, REAL_MODELS, Case, all_cases, chosen
from benchmarks.gpu.checks import CHECKS, run_check
from benchmarks.gpu.needs import forecast
from benchmarks.gpu.report import line_of, tables
from benchmarks.gpu.results import Results, ResultsFileError
from benchmarks.host_optimizer.report import as_markdown, as_text
from workbench.errors import ConfigurationError
from workbench.plan.machine import Free, Machine, planned_machine
from workbench.profiles.named_machines import load_profile
from workbench.profiles.this_machine import cached_profile

PACKAGE = "benchmarks.gpu"
CASE = "case"
LIMIT_S = {"gpt2-10b": 240, "gpt2-4b": 150, "gpt2-1.5b": 90, "gpt2-124m": 60, "tiny": 60}
VIRTUAL_LIMIT_S = 900
BUDGET_S = 570
FREE_SHARE = 0.97
"""Of the free host memory; the rest is left to the system."""
WORDS = (
    "weights normal(0, 0.02), drawn on the device rather than by the architecture's own initialisation; random tokens; "
    "activation checkpointing; TFLOP/s of 6 N T + attention, recompute not counted",
    "device GiB: the most that torch's allocator reserved; host GiB: the process's highest resident size; free fell: "
    "how far the system's free memory fell, pinned memory included",
    *(f"{name}: {words}" for name, words in ALTERNATIVES.items()),
)


def main(arguments: Sequence[str]) -> int:
    """Run what is asked for. Returns 0, also where a case failed or a goal is missed, for that is a result; 2 where
    there is no such device, or the options are wrong."""
    if list(arguments) == [CASE]:
        return serve_case(_serve)
    options = parser().parse_args(arguments)
    _fill_defaults(options)
    cases = chosen(all_cases(options.models), options.cases)
    if options.quick:
        cases = [c for c in cases if c.contender != "engine" or c.state_format == "compact"]
    virtual = None if options.virtual is None else str(options.virtual)
    found: Outcome = run_case(PACKAGE, {"probe": True, "device": options.device, "virtual": virtual})
    has = found.result or {"missing": found.failure}
    try:
        machine = _machine(options, has)
        if options.list:
            for case in cases:
                told = forecast(case, options.micro_batch, options.sequence, machine)
                print(f"{case.name:<55} {told.reason or 'would run'}", flush=True)
            return 0
        if "missing" in has:
            print(f"benchmarks.gpu: {has['missing']}", file=sys.stderr)
            return 2
        results = Results(options.output)
    except (ResultsFileError, ConfigurationError) as error:
        print(f"benchmarks.gpu: {error}", file=sys.stderr)
        return 2
    command = shlex.join(["python", "-m", PACKAGE, *arguments])
    shared = {
        "machine": has["machine"],
        "date": datetime.date.today().isoformat(),
        "command": command,
        "device_label": _label(options),
    }
    begin = time.monotonic()
    if options.device != "cpu" and virtual is None and not options.cases:
        _run_checks(options, results, shared, begin)
        machine = _machine(options, has)  # the probe has measured it
    _run_cases(cases, options, machine, results, shared, begin)
    entries = list(results.cases.values())
    draw = as_markdown if options.markdown else as_text
    head = [*dict.fromkeys(f"{e['machine']}; {e['date']}; `{e['command']}`" for e in entries), *WORDS]
    print("\n\n".join(["\n".join(f"- {line}" for line in head), *map(draw, tables(entries))]))
    return 0


def _run_checks(options: argparse.Namespace, results: Results, shared: dict[str, Any], begin: float) -> None:
    for check in CHECKS:
        if _is_put_off(check.name, check.limit_s, options, results, begin):
            continue
        tell(check.name)
        _keep(results, check.name, {**shared, "name": check.name, **run_check(check)})


def _run_cases(
    cases: Sequence[Case],
    options: argparse.Namespace,
    machine: Machine,
    results: Results,
    shared: dict[str, Any],
    begin: float,
) -> None:
    for case in cases:
        name = f"{case.name}@{options.micro_batch}x{options.sequence},{_label(options)}"
        limit_s = options.limit_s or case_limit_s(case, virtual=options.virtual is not None)
        if _is_put_off(name, limit_s, options, results, begin):
            continue
        entry = {
            **shared,
            "name": name,
            "case": case.fields(),
            "micro_batch": options.micro_batch,
            "sequence": options.sequence,
        }
        told = forecast(case, options.micro_batch, options.sequence, machine)
        if told.reason is not None:
            _keep(results, name, {**entry, "status": "skipped", "reason": told.reason})
            continue
        tell(name)
        given = {
            "case": case.fields(),
            "all_gradients_wait": told.all_gradients_wait,
            "speculation": told.speculation,
            "device": options.device,
            "device_gib": options.device_gib,
            "virtual": None if options.virtual is None else str(options.virtual),
            "micro_batch": options.micro_batch,
            "sequence": options.sequence,
            "steps": options.steps,
            "limit_s": limit_s,
        }
        outcome: Outcome = run_case(PACKAGE, given, limit_s=limit_s)
        if outcome.result is None:
            _keep(results, name, {**entry, "status": "failed", "reason": outcome.failure})
        else:
            result = {**outcome.result, "planned_step_s": told.step_s}
            _keep(results, name, {**entry, "status": "done", "result": result})


def case_limit_s(case: Case, *, virtual: bool) -> int:
    """Return the seconds that a case may take; in virtual time it is the processor that they are of."""
    return VIRTUAL_LIMIT_S if virtual else LIMIT_S[case.model]


def _is_put_off(
    name: str, limit_s: float, options: argparse.Namespace, results: Results, begin: float
) -> bool:
    """Return True where `name` is there already, or could end after the budget."""
    if results.has(name) and not options.again:
        tell(f"{name}: measured already")
        return True
    if options.budget_s and time.monotonic() - begin + limit_s > options.budget_s:
        tell(f"{name}: left for another time, the budget is nearly spent")
        return True
    return False


def _keep(results: Results, name: str, entry: dict[str, Any]) -> None:
    """Write down a result, and print its line at once: a session that is cut off has lost nothing."""
    results.put(name, entry)
    print(line_of(entry), flush=True)


def _serve(given: dict[str, Any]) -> dict[str, Any]:
    if given.get("probe"):
        from benchmarks.gpu.probe import probe

        return probe(given)
    from benchmarks.gpu.case import run

    return run(given)


def _machine(options: argparse.Namespace, has: dict[str, Any]) -> Machine:
    """Return the machine that cases are planned on. A list without a device takes the cap."""
    cap = int(options.device_gib * GIB)
    if options.virtual is not None:
        planned = planned_machine(load_profile(options.virtual))
        return replace(planned, free=replace(planned.free, device=min(cap, planned.free.device or cap)))
    device = None if options.device == "cpu" else min(cap, has.get("device_free_bytes") or cap)
    free = Free(int(FREE_SHARE * psutil.virtual_memory().available), device, None)
    profile = None if "missing" in has else cached_profile(options.device)
    return Machine("this machine", free, has.get("has_bfloat16", device is not None), profile)


def _label(options: argparse.Namespace) -> str:
    if options.device == "cpu":
        return "cpu"
    return f"{options.device_gib:g}GiB" + (f",virtual {options.virtual}" if options.virtual else "")


def _fill_defaults(options: argparse.Namespace) -> None:
    """A CPU only tries the benchmark out: a tiny model, short sequences."""
    cpu = options.device == "cpu"
    quick_models = ("gpt2-1.5b",) if options.quick else REAL_MODELS
    options.models = options.models or (("tiny",) if cpu else quick_models)
    options.micro_batch = options.micro_batch or (2 if cpu else 10)
    options.sequence = options.sequence or (32 if cpu else 1024)
    options.steps = options.steps or (2 if cpu or options.virtual or options.quick else 6)
    options.budget_s = 0 if options.virtual or cpu else options.budget_s


def parser() -> argparse.ArgumentParser:
    """The options."""
    it = argparse.ArgumentParser(
        prog=f"python -m {PACKAGE}",
        description="Check the machine, run the engine's own tests on its GPU, then train GPT-2 of 0.1 to 10 billion "
        "parameters there, with the engine in every placement, overlap and format, and with what there is beside it. "
        "Each case is a process of its own, prints a line when it is done and is kept in the output file; a case that "
        "is there is not measured again.",
    )
    add = it.add_argument
    add("--device-gib", type=float, default=32.0, metavar="GIB", help="device memory to use (default: 32)")
    add("--models", type=_models, default=(), metavar="MODEL,...", help=f"of {', '.join(MODELS)}")
    add(
        "--cases",
        type=lambda text: tuple(p.strip() for p in text.split(",")),
        default=(),
        metavar="PATTERN,...",
        help="names, parts of names, or patterns with * and ?; see --list",
    )
    add(
        "--output",
        type=Path,
        default=Path("gpu-benchmark.json"),
        metavar="FILE",
        help="default: %(default)s",
    )
    add(
        "--limit-s", type=int, default=0, metavar="S", help="for each case (default: by its model, 60 to 240)"
    )
    add(
        "--budget-s",
        type=int,
        default=BUDGET_S,
        metavar="S",
        help="start no case that could end later than this, so that a command ends within ten minutes and the same "
        f"command goes on from there; 0: no end (default: {BUDGET_S})",
    )
    add("--micro-batch", type=int, default=0, metavar="N", help="sequences a step (default: 10)")
    add("--sequence", type=int, default=0, metavar="N", help="tokens a sequence (default: 1024)")
    add("--steps", type=int, default=0, metavar="N", help="timed, after the warm-up (default: 6)")
    add("--quick", action="store_true", help="gpt2-1.5b in compact and the alternatives, 2 timed steps")
    add("--again", action="store_true", help="measure cases again that the output file has already")
    add("--list", action="store_true", help="print the cases and what would be skipped, and measure nothing")
    add(
        "--virtual",
        type=Path,
        metavar="MACHINE",
        help="rehearse on a virtual device: a machine profile's name or file, as of `workbench plan --machine`; no "
        "figure is of a GPU",
    )
    add("--device", default="cuda", help="cuda, cuda:N, or cpu to try the benchmark out on a tiny model")
    add("--markdown", action="store_true", help="print tables as Markdown")
    return it


def _models(text: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(part.strip() for part in text.split(",")))
    for name in names:
        if name not in MODELS:
            raise argparse.ArgumentTypeError(f"{name!r} is not one of {', '.join(MODELS)}")
    return names
