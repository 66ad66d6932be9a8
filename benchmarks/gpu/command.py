"""The command line: which cases, one process after the other, into one file; then the tables of all that is in it."""

from __future__ import annotations

import argparse
import datetime
import shlex
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil

from benchmarks.engine.machine import GIB
from benchmarks.engine.processes import run_case, serve_case, tell
from benchmarks.gpu.cases import ALTERNATIVES, MODELS, REAL_MODELS, Case, all_cases, chosen
from benchmarks.gpu.needs import reason_to_skip
from benchmarks.gpu.report import goals_met, tables
from benchmarks.gpu.results import Results, ResultsFileError
from benchmarks.host_optimizer.report import as_markdown, as_text

PACKAGE = "benchmarks.gpu"
CASE = "case"
LIMIT_S = 460
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
    """Run what is asked for. Returns 0; 1 where a case failed or a goal is missed; 2 where there is no such device."""
    if list(arguments) == [CASE]:
        return serve_case(_serve)
    options = parser().parse_args(arguments)
    _fill_defaults(options)
    cases = chosen(all_cases(options.models), options.cases)
    if options.quick:
        cases = [c for c in cases if c.contender != "engine" or c.state_format == "compact"]
    found = run_case(PACKAGE, {"probe": True, "device": options.device})
    has = found.result or {"missing": found.failure}
    device_bytes = _usable_device_bytes(options, has)
    if options.list:
        for case in cases:
            print(f"{case.name:<55} {_reason(case, options, device_bytes) or 'would run'}")
        return 0
    if "missing" in has:
        print(f"benchmarks.gpu: {has['missing']}", file=sys.stderr)
        return 2
    try:
        results = Results(options.output)
    except ResultsFileError as error:
        print(f"benchmarks.gpu: {error}", file=sys.stderr)
        return 2
    command = shlex.join(["python", "-m", PACKAGE, *arguments])
    shared = {
        "machine": has["machine"],
        "date": datetime.date.today().isoformat(),
        "command": command,
    }
    _run_all(cases, options, device_bytes, results, shared)
    entries = list(results.cases.values())
    draw = as_markdown if options.markdown else as_text
    head = [*dict.fromkeys(f"{e['machine']}; {e['date']}; `{e['command']}`" for e in entries), *WORDS]
    print("\n\n".join(["\n".join(f"- {line}" for line in head), *map(draw, tables(entries))]))
    failed = any(e["status"] == "failed" for e in entries)
    return 1 if failed or not goals_met(entries) else 0


def _run_all(
    cases: Sequence[Case],
    options: argparse.Namespace,
    device_bytes: int | None,
    results: Results,
    shared: dict[str, Any],
) -> None:
    begin = time.monotonic()
    for number, case in enumerate(cases, 1):
        name = f"{case.name}@{options.micro_batch}x{options.sequence},{_label(options)}"
        if results.has(name) and not options.again:
            tell(f"[{number}/{len(cases)}] {name}: measured already")
            continue
        if options.budget_s and time.monotonic() - begin + options.limit_s > options.budget_s:
            tell(f"[{number}/{len(cases)}] {name}: left for another time, the budget is spent")
            continue
        entry = {
            **shared,
            "name": name,
            "case": case.fields(),
            "micro_batch": options.micro_batch,
            "sequence": options.sequence,
            "device_label": _label(options),
        }
        reason = _reason(case, options, device_bytes)
        if reason is not None:
            tell(f"[{number}/{len(cases)}] {name}: skipped, {reason}")
            results.put(name, {**entry, "status": "skipped", "reason": reason})
            continue
        tell(f"[{number}/{len(cases)}] {name}")
        given = {
            "case": case.fields(),
            "device": options.device,
            "device_gib": options.device_gib,
            "micro_batch": options.micro_batch,
            "sequence": options.sequence,
            "steps": options.steps,
            "limit_s": options.limit_s,
        }
        outcome = run_case(PACKAGE, given, limit_s=options.limit_s)
        if outcome.result is None:
            tell(f"  failed: {outcome.failure}")
            results.put(name, {**entry, "status": "failed", "reason": outcome.failure})
        else:
            results.put(name, {**entry, "status": "done", "result": outcome.result})


def _serve(given: dict[str, Any]) -> dict[str, Any]:
    if given.get("probe"):
        from benchmarks.gpu.probe import probe

        return probe(given)
    from benchmarks.gpu.case import run

    return run(given)


def _reason(case: Case, options: argparse.Namespace, device_bytes: int | None) -> str | None:
    free = int(FREE_SHARE * psutil.virtual_memory().available)
    return reason_to_skip(case, options.micro_batch, options.sequence, device_bytes, free)


def _usable_device_bytes(options: argparse.Namespace, has: dict[str, Any]) -> int | None:
    """What a case may have on the device; None on a CPU. A list without a device takes the cap."""
    if options.device == "cpu":
        return None
    cap = int(options.device_gib * GIB)
    return min(cap, has.get("device_free_bytes") or cap)


def _label(options: argparse.Namespace) -> str:
    return "cpu" if options.device == "cpu" else f"{options.device_gib:g}GiB"


def _fill_defaults(options: argparse.Namespace) -> None:
    """A CPU only tries the benchmark out: a tiny model, short sequences."""
    cpu = options.device == "cpu"
    quick_models = ("gpt2-1.5b",) if options.quick else REAL_MODELS
    options.models = options.models or (("tiny",) if cpu else quick_models)
    options.micro_batch = options.micro_batch or (2 if cpu else 10)
    options.sequence = options.sequence or (32 if cpu else 1024)
    options.steps = options.steps or (2 if cpu or options.quick else 6)


def parser() -> argparse.ArgumentParser:
    """The options."""
    it = argparse.ArgumentParser(
        prog=f"python -m {PACKAGE}",
        description="Train GPT-2 of 1.5, 4 and 10 billion parameters on a GPU, with the engine in every placement, "
        "overlap and format, and with what there is beside it. Each case is a process of its own and is kept in the "
        "output file; a case that is there is not measured again.",
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
    add("--limit-s", type=int, default=LIMIT_S, metavar="S", help=f"for each case (default: {LIMIT_S})")
    add(
        "--budget-s",
        type=int,
        default=0,
        metavar="S",
        help="start no case that could end later than this (default: none)",
    )
    add("--micro-batch", type=int, default=0, metavar="N", help="sequences a step (default: 10)")
    add("--sequence", type=int, default=0, metavar="N", help="tokens a sequence (default: 1024)")
    add("--steps", type=int, default=0, metavar="N", help="timed, after the warm-up (default: 6)")
    add("--quick", action="store_true", help="gpt2-1.5b in compact and the alternatives, 2 timed steps")
    add("--again", action="store_true", help="measure cases again that the output file has already")
    add("--list", action="store_true", help="print the cases and what would be skipped, and measure nothing")
    add("--device", default="cuda", help="cuda, cuda:N, or cpu to try the benchmark out on a tiny model")
    add("--markdown", action="store_true", help="print tables as Markdown")
    return it


def _models(text: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(part.strip() for part in text.split(",")))
    for name in names:
        if name not in MODELS:
            raise argparse.ArgumentTypeError(f"{name!r} is not one of {', '.join(MODELS)}")
    return names
