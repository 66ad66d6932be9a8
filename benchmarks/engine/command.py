"""The command line. stdout gets the tables or the JSON, stderr everything else."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from benchmarks.engine import large, memory, overhead, speculation
from benchmarks.engine.machine import describe
from benchmarks.engine.processes import serve_case
from benchmarks.host_optimizer.output import reserved_stdout
from benchmarks.host_optimizer.report import Table, as_markdown, as_text
from workbench.layout import MOMENTS

PACKAGE = "benchmarks.engine"
CASE = "case"
UNITS = {"K": 1_000, "M": 1_000_000, "B": 1_000_000_000}
Item = TypeVar("Item")


def main(arguments: Sequence[str]) -> int:
    """Do what the arguments ask for. Returns 0; 1 where a case failed or a goal was missed; 3 where it does not fit."""
    if list(arguments) == [CASE]:
        return serve_case(run_case)
    options = parser().parse_args(arguments)
    if options.verb == "large":
        return large.run_large(options.layers, options.disk, options.tokens, arguments)
    head = describe(PACKAGE, arguments)  # first, because the load average would otherwise show this very run
    with reserved_stdout() as data:
        if options.verb == "overhead":
            done = overhead.measure_overhead(
                options.sizes, options.tokens, options.repetitions, options.packages
            )
            notes, tables, rows, good = done.notes, done.tables, done.rows, done.met
        elif options.verb == "speculation":
            ahead = speculation.measure_speculation(
                options.parameters, options.formats, options.compute_ms, options.threads
            )
            notes, tables, rows, good = ahead.notes, (ahead.table,), ahead.rows, ahead.good
        else:
            measured = memory.measure_memory(
                options.parameters, options.tokens, options.cases, options.disk, options.limit_s
            )
            notes, tables, rows, good = measured.notes, (measured.table,), measured.rows, measured.good
        if options.json:
            print(json.dumps(rows, indent=1), file=data)
        else:
            print(_text((*head, *notes), tables, as_markdown if options.markdown else as_text), file=data)
    return 0 if good else 1


def run_case(case: dict[str, object]) -> dict[str, object]:
    """In a process of its own: one case of `memory`, `large` or `speculation`."""
    if case["verb"] == "memory":
        from benchmarks.engine.memory_case import run
    elif case["verb"] == "speculation":
        from benchmarks.engine.speculation_case import run
    else:
        from benchmarks.engine.large_case import run
    return run(case)


def _text(head: Sequence[str], tables: Sequence[Table], draw: Callable[[Table], str]) -> str:
    return "\n\n".join(["\n".join(f"- {line}" for line in head), *map(draw, tables)])


def parser() -> argparse.ArgumentParser:
    """The options of all verbs."""
    whole = argparse.ArgumentParser(
        prog=f"python -m {PACKAGE}",
        description="What the offload engine costs on a CPU, in time and in memory.",
    )
    verbs = whole.add_subparsers(dest="verb", required=True, metavar="VERB")
    _overhead_options(
        verbs.add_parser("overhead", help="tokens/s beside a plain torch loop and the HF Trainer")
    )
    _memory_options(verbs.add_parser("memory", help="peak resident size beside plain torch"))
    _speculation_options(
        verbs.add_parser("speculation", help="updates ahead of the norm beside waiting ones")
    )
    _large_options(verbs.add_parser("large", help="one step of the 10.3-billion GPT-2 from disk"))
    return whole


def _overhead_options(verb: argparse.ArgumentParser) -> None:
    sizes = [name for name in overhead.SHAPES if name != "0.1M"]
    verb.add_argument(
        "--sizes",
        type=_list(_size),
        default=tuple(sizes),
        metavar="SIZE,...",
        help=f"of {', '.join(overhead.SHAPES)} (default: {','.join(sizes)})",
    )
    verb.add_argument(
        "--tokens",
        type=_list(_tokens),
        default=overhead.TOKENS,
        metavar="N,...",
        help="a step (default: 64,256,1024)",
    )
    verb.add_argument("--repetitions", type=_count, default=overhead.REPETITIONS, metavar="N")
    verb.add_argument(
        "--packages",
        type=Path,
        metavar="DIR",
        help="fetch accelerate, which the HF Trainer needs, into this folder",
    )
    _shown(verb)


def _memory_options(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("--parameters", type=_count, default=memory.PARAMETERS, metavar="N", help="default: 1B")
    verb.add_argument(
        "--tokens", type=_tokens, default=memory.TOKENS, metavar="N", help="default: %(default)s"
    )
    verb.add_argument(
        "--cases",
        type=_list(_case),
        default=tuple(memory.CASES),
        metavar="CASE,...",
        help=f"of {', '.join(memory.CASES)} (default: all); {memory.PLAIN} is always measured",
    )
    verb.add_argument(
        "--disk",
        type=Path,
        default=Path(),
        metavar="DIR",
        help="a folder on a disk for the disk tier (default: here)",
    )
    verb.add_argument(
        "--limit-s", type=_count, default=1800, metavar="S", help="for each case (default: 1800)"
    )
    _shown(verb)


def _speculation_options(verb: argparse.ArgumentParser) -> None:
    known = speculation
    verb.add_argument("--parameters", type=_count, default=known.PARAMETERS, metavar="N", help="default: 1B")
    verb.add_argument(
        "--formats",
        type=_list(_state_format),
        default=known.FORMATS,
        metavar="FORMAT,...",
        help=f"of {', '.join(MOMENTS)} (default: {','.join(known.FORMATS)})",
    )
    verb.add_argument(
        "--compute-ms",
        type=_count,
        default=known.COMPUTE_MS,
        metavar="MS",
        help="of a step's forward and backward (default: %(default)s)",
    )
    verb.add_argument(
        "--threads",
        type=_count,
        default=known.THREADS,
        metavar="N",
        help="that update (default: %(default)s)",
    )
    _shown(verb)


def _large_options(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("--disk", type=Path, required=True, metavar="DIR", help="a folder on the disk to use")
    verb.add_argument("--layers", type=_count, default=large.LAYERS, metavar="N", help="blocks (default: 50)")
    verb.add_argument(
        "--tokens", type=_tokens, default=large.TOKENS, metavar="N", help="default: %(default)s"
    )


def _shown(verb: argparse.ArgumentParser) -> None:
    shown = verb.add_mutually_exclusive_group()
    shown.add_argument("--json", action="store_true", help="print rows as a JSON array, and nothing else")
    shown.add_argument("--markdown", action="store_true", help="print tables as Markdown")


def _list(item: Callable[[str], Item]) -> Callable[[str], tuple[Item, ...]]:
    return lambda text: tuple(dict.fromkeys(item(part.strip()) for part in text.split(",")))


def _count(text: str) -> int:
    unit = UNITS.get(text[-1:].upper(), 1)
    digits = text[:-1] if unit > 1 else text
    if not digits.isdecimal() or int(digits) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive whole number, such as 20000 or 10M")
    return int(digits) * unit


def _tokens(text: str) -> int:
    count = _count(text)
    if not 2 <= count <= 1024:
        raise argparse.ArgumentTypeError(f"{text!r} tokens: expected 2 to 1024, the model's positions")
    return count


def _size(text: str) -> str:
    if text not in overhead.SHAPES:
        raise argparse.ArgumentTypeError(f"{text!r} is not one of {', '.join(overhead.SHAPES)}")
    return text


def _state_format(text: str) -> str:
    if text not in MOMENTS:
        raise argparse.ArgumentTypeError(f"{text!r} is not one of {', '.join(MOMENTS)}")
    return text


def _case(text: str) -> str:
    if text not in memory.CASES:
        raise argparse.ArgumentTypeError(f"{text!r} is not one of {', '.join(memory.CASES)}")
    return text
