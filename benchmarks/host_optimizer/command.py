"""From the options to the output: which contenders are made, measured together and put into which table.

stdout gets the tables or the JSON rows, stderr everything else.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import torch

from benchmarks.host_optimizer import contenders, packages, report, small
from benchmarks.host_optimizer.buffers import Buffers
from benchmarks.host_optimizer.contender import Run, UnavailableError
from benchmarks.host_optimizer.machine import describe
from benchmarks.host_optimizer.measure import Timing, Turn, take_turns
from benchmarks.host_optimizer.options import Options, parse
from benchmarks.host_optimizer.output import reserved_stdout, say
from benchmarks.host_optimizer.variants import (
    CHECK_REFERENCES,
    SMALL_REFERENCES,
    SMALL_VARIANTS,
    STEP_REFERENCES,
    VARIANTS,
    Variant,
    chosen,
)


@dataclass
class Results:
    """What a run collects."""

    timings: list[Timing] = field(default_factory=list)
    tables: list[report.Table] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)  # what could not be measured, and the packages' versions

    def note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)
            say(text)


def main(arguments: Sequence[str]) -> None:
    """Measure what the arguments ask for and print it."""
    options = parse(arguments)
    try:
        machine = describe(arguments)  # first, because the load average would otherwise show this very run
    except ValueError as error:  # WORKBENCH_ISA names what this CPU lacks
        sys.exit(str(error))
    with reserved_stdout() as data:
        results = measure_small(options) if options.small else measure(options)
        print(rendered(options, machine, results), file=data)


def rendered(options: Options, machine: Sequence[str], results: Results) -> str:
    """The text for stdout."""
    if options.json:
        return report.json_rows(results.timings)
    draw = report.as_markdown if options.markdown else report.as_text
    head = [f"- {line}" for line in (*machine, *results.notes)]
    return "\n\n".join(["\n".join(head), *map(draw, results.tables)])


def measure(options: Options) -> Results:
    """All sizes, each in its own buffers."""
    results = Results()
    available = load_packages(options, results)
    for parameters in options.sizes:
        variants = [
            variant
            for variant in chosen(options.variants, options.packages, options.quick, parameters)
            if variant.package is None or variant.package in available
        ]
        buffers = Buffers(parameters)
        measured = take(variants, partial(contenders.make, buffers), parameters, options, results)
        for threads in options.threads:
            timings = [timing for timing in measured if timing.threads == threads]
            title = f"{parameters:,} parameters, {count_of_threads(threads)}"
            for is_check, references in ((False, STEP_REFERENCES), (True, CHECK_REFERENCES)):
                group = [variant for variant in VARIANTS if variant.is_check == is_check]
                table = report.table(title + ", checks" * is_check, timings, group, references)
                if table.rows:
                    results.tables.append(table)
        del buffers
        gc.collect()  # the next size needs the memory
    return results


def measure_small(options: Options) -> Results:
    """All small cases."""
    results = Results()
    for case in small.CASES:
        shared = small.tensors(case)
        measured = take(SMALL_VARIANTS, partial(small.make, shared), case.parameters, options, results)
        for threads in options.threads:
            timings = [timing for timing in measured if timing.threads == threads]
            title = f"{case.title}, {count_of_threads(threads)}"
            results.tables.append(report.table(title, timings, SMALL_VARIANTS, SMALL_REFERENCES))
    return results


def take(
    variants: Sequence[Variant],
    make: Callable[[Variant, int], Run],
    parameters: int,
    options: Options,
    results: Results,
) -> list[Timing]:
    """Make the contenders of one size, measure them, and note those that cannot be had."""
    turns: dict[Turn, Run] = {}
    for threads in options.threads:
        torch.set_num_threads(threads)
        for variant in variants:
            try:
                turns[Turn(threads, variant.name)] = make(variant, threads)
            except UnavailableError as error:
                results.note(f"{variant.name} left out: {error}")
    say(f"measuring {parameters:,} parameters: {len(turns)} contenders, {options.repetitions} repetitions")
    timings = take_turns(turns, parameters, options.repetitions)
    results.timings.extend(timings)
    return timings


def load_packages(options: Options, results: Results) -> frozenset[str]:
    """Load the packages that the user asked for; those that can be had."""
    loaded = set()
    for name in sorted(options.packages):
        try:
            results.note(packages.load(name, options.cache, say))
            loaded.add(name)
        except UnavailableError as error:
            results.note(f"{name} left out: {error}")
    return frozenset(loaded)


def count_of_threads(threads: int) -> str:
    return "1 thread" if threads == 1 else f"{threads} threads"
