"""What a verb is and what it takes, and the arguments that several verbs take."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple


class Argument(NamedTuple):
    """What a verb takes: the names and options that argparse's `add_argument` wants."""

    names: tuple[str, ...]
    options: dict[str, Any]


class Verb(NamedTuple):
    """What follows `workbench` (one word, or a group and a word), what it takes and who does it."""

    name: str
    help: str
    arguments: tuple[Argument, ...]
    handle: Callable[[argparse.Namespace], int]


def argument(*names: str, **options: Any) -> Argument:
    """The argument that `add_argument(*names, **options)` would add; of a number it is said what is none."""
    kind = options.get("type")
    return Argument(names, {**options, "type": _number(kind)} if kind in _NUMBERS else options)


_NUMBERS: dict[Any, str] = {int: "a whole number", float: "a number"}


def _number(kind: Any) -> Callable[[str], Any]:
    def parse(word: str) -> Any:
        try:
            return kind(word)
        except ValueError:
            raise argparse.ArgumentTypeError(f'"{word}" is not {_NUMBERS[kind]}') from None

    return parse


PRESET = argument("preset", metavar="PRESET", help="a preset's name, or the path of a TOML file")
SET = argument(
    "--set",
    metavar="TABLE.KEY=VALUE",
    action="append",
    default=[],
    help="change one value of the preset, for example train.steps=100; may be repeated",
)
SET_OF_RUN = argument(
    "--set",
    metavar="TABLE.KEY=VALUE",
    action="append",
    default=[],
    help="start it again under another value, for example offload.state=disk or train.steps=2000; may be repeated",
)
RUNS = argument(
    "--runs", metavar="DIR", type=Path, help="folder of the runs (default: $WORKBENCH_RUNS, else ./runs)"
)
RUN = argument(
    "run",
    metavar="RUN",
    nargs="?",
    help="the run's name, the start of it, or its folder (default: the latest)",
)
NAMED_RUN = argument("run", metavar="RUN", help="the run's name, the start of it, or its folder")
STEP = argument("--step", metavar="N", type=int, help="the checkpoint of this step (default: the newest)")
BEST = argument("--best", action="store_true", help="the checkpoint with the lowest validation loss")
DEVICE = argument(
    "--device", metavar="DEVICE", default="auto", help="auto, cpu, cuda or cuda:N (default: auto)"
)
JSON = argument("--json", action="store_true", help="print JSON")
ASCII = argument("--ascii", action="store_true", help="draw with ASCII characters alone")
