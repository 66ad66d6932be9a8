"""The command line."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from benchmarks.host_optimizer.variants import NAMES, PACKAGES, VARIANTS
from workbench.system.processor import usable_cpus

SIZES = (1_000_000, 10_000_000, 100_000_000)
REPETITIONS = 11
QUICK_REPETITIONS = 3
UNITS = {"K": 1_000, "M": 1_000_000}
Item = TypeVar("Item")


@dataclass(frozen=True)
class Options:
    """What is to be measured and how it is to be printed."""

    sizes: tuple[int, ...]
    threads: tuple[int, ...]
    repetitions: int
    variants: tuple[str, ...] | None  # None: those that suit the size
    packages: frozenset[str]
    cache: Path
    quick: bool
    small: bool
    json: bool
    markdown: bool


def parse(arguments: Sequence[str]) -> Options:
    """Read the command line; a mistake ends the process with exit code 2 and one line that names it."""
    parser = _parser()
    given = parser.parse_args(arguments)
    if given.small and (given.sizes or given.variants or given.packages):
        parser.error("--small has sizes and variants of its own: leave --sizes, --variants and --with out")
    packages = frozenset(PACKAGES if "all" in given.packages else given.packages)
    for variant in VARIANTS:
        if variant.name in (given.variants or ()) and variant.package not in (None, *packages):
            parser.error(f"--variants {variant.name} needs --with {variant.package}")
    return Options(
        sizes=given.sizes or SIZES,
        threads=given.threads or tuple(sorted({1, usable_cpus()})),
        repetitions=given.repetitions or (QUICK_REPETITIONS if given.quick else REPETITIONS),
        variants=given.variants,
        packages=packages,
        cache=given.cache,
        quick=given.quick,
        small=given.small,
        json=given.json,
        markdown=given.markdown,
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.host_optimizer",
        description="Measure one AdamW step on the host: torch's, other packages', Workbench's, "
        "and the limit that memory sets.",
        epilog="variants: " + "; ".join(f"{variant.name}: {variant.meaning}" for variant in VARIANTS),
    )
    add = parser.add_argument
    add(
        "--sizes",
        type=_list(_count),
        metavar="N,...",
        help="parameters, as in 20000,1M (default: 1M,10M,100M)",
    )
    add("--threads", type=_list(_count), metavar="N,...", help="default: 1 and all that are usable")
    add(
        "--repetitions",
        type=_count,
        metavar="N",
        help=f"default: {REPETITIONS}, {QUICK_REPETITIONS} with --quick",
    )
    add("--variants", type=_list(_variant), metavar="NAME,...", help="measure these only, at every size")
    add(
        "--with",
        dest="packages",
        type=_list(_package),
        default=(),
        metavar="PACKAGE,...",
        help=f"measure {', '.join(PACKAGES)} or all too; what is not installed is put into the cache with pip",
    )
    add("--cache", type=Path, default=_default_cache(), metavar="FOLDER", help="default: %(default)s")
    add("--quick", action="store_true", help="fewer repetitions and variants: under 40 s on two cores")
    add(
        "--small",
        action="store_true",
        help="instead measure small fp32 parameters: 1,000 to 1 M, and 200 of 1,000",
    )
    shown = parser.add_mutually_exclusive_group()
    shown.add_argument("--json", action="store_true", help="print rows as a JSON array, and nothing else")
    shown.add_argument("--markdown", action="store_true", help="print tables as Markdown")
    return parser


def _default_cache() -> Path:
    root = os.environ.get("XDG_CACHE_HOME")
    return Path(root if root else Path.home() / ".cache") / "workbench" / "benchmarks"


def _list(item: Callable[[str], Item]) -> Callable[[str], tuple[Item, ...]]:
    """A comma-separated list without repetitions."""
    return lambda text: tuple(dict.fromkeys(item(part.strip()) for part in text.split(",")))


def _count(text: str) -> int:
    unit = UNITS.get(text[-1:].upper(), 1)
    digits = text[:-1] if unit > 1 else text
    if not digits.isdecimal() or int(digits) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive whole number, such as 20000 or 10M")
    return int(digits) * unit


def _variant(text: str) -> str:
    if text not in NAMES:
        raise argparse.ArgumentTypeError(f"{text!r} is not one of {', '.join(NAMES)}")
    return text


def _package(text: str) -> str:
    if text not in (*PACKAGES, "all"):
        raise argparse.ArgumentTypeError(f"{text!r} is not one of {', '.join(PACKAGES)}, all")
    return text
