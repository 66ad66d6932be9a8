"""The table of commands: a row each, with its arguments, its help and the function that carries it out.

Reading this table imports nothing heavy. Parser, help and documentation are made from it.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from workbench.errors import EXIT_WARNINGS


class Argument(NamedTuple):
    """An argument of a command: the names and options for argparse's `add_argument`."""

    names: tuple[str, ...]
    options: dict[str, Any]


class Command(NamedTuple):
    """The word after `workbench` (or a group and a word), its arguments, and the function that carries it out.

    `function`: "module:name", imported when the command is given. It takes the parsed arguments as keyword arguments,
    each under its `dest`, and the `constants`, and returns the exit code.
    """

    name: str
    help: str
    arguments: tuple[Argument, ...]
    function: str
    constants: Mapping[str, str] = {}


def argument(*names: str, **options: Any) -> Argument:
    """Return the argument that `add_argument(*names, **options)` adds; a wrong number gets a plain message."""
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
    dest="overrides",
    metavar="TABLE.KEY=VALUE",
    action="append",
    default=[],
    help="change one value of the preset, for example train.steps=100; may be repeated",
)
SET_OF_RUN = argument(
    "--set",
    dest="overrides",
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
JSON = argument("--json", dest="as_json", action="store_true", help="print JSON")
ASCII = argument("--ascii", dest="plain", action="store_true", help="draw with ASCII characters alone")

GROUPS = {"config": "show, check and explain configurations"}
"""Words that are followed by another word, with their help."""

COMMANDS: tuple[Command, ...] = (
    Command(
        "run",
        "train a preset, in this terminal or detached from it",
        (
            argument(
                "preset", metavar="PRESET", nargs="?", help="a preset's name, or the path of a TOML file"
            ),
            SET,
            argument(
                "--resume",
                metavar="auto|RUN",
                nargs="?",
                const="auto",
                help="continue a run from its last good checkpoint: that of this name or in this folder, or with "
                "auto (the default) the latest of this preset",
            ),
            argument("--detach", action="store_true", help="train in the background and return at once"),
            RUNS,
            # The folder that a detached run was given by the process that started it.
            argument("--run-directory", metavar="DIR", type=Path, help=argparse.SUPPRESS),
        ),
        "workbench.commands.run:run",
    ),
    Command(
        "plan",
        "show how much memory a preset needs and how fast it will go, before anything starts",
        (
            PRESET,
            SET,
            argument(
                "--fit",
                dest="search",
                action="store_true",
                help="search for the fastest configuration that fits",
            ),
            argument(
                "--keep",
                metavar="TABLE.KEY",
                action="append",
                default=[],
                help="with --fit: leave this field as it is; may be repeated",
            ),
            argument(
                "--write",
                metavar="FILE",
                type=Path,
                help="with --fit: write the preset with its changes here",
            ),
            argument(
                "--machine",
                metavar="FILE",
                type=Path,
                help="plan for another machine: a profile's file, or one of "
                "desktop-24gb, desktop-32gb, server-80gb, server-h200",
            ),
            RUNS,
            JSON,
        ),
        "workbench.commands.plan:plan",
    ),
    Command(
        "probe",
        "measure how fast this machine is, in under a minute, for the plan",
        (
            DEVICE,
            argument(
                "--disk",
                dest="disk_path",
                metavar="DIR",
                type=Path,
                help="measure the disk of this folder too",
            ),
            argument("--fresh", action="store_true", help="measure again, whatever was measured before"),
            argument("--quick", action="store_true", help="in some ten seconds, less exactly"),
            JSON,
        ),
        "workbench.profiles.probe_command:probe",
    ),
    Command(
        "doctor",
        f"check everything a run needs and how to repair it (exit 0: all ok, {EXIT_WARNINGS}: warnings, 1: failures)",
        (
            argument(
                "--disk",
                dest="disk_path",
                metavar="DIR",
                type=Path,
                help="check this folder for the disk tier too",
            ),
            RUNS,
            JSON,
        ),
        "workbench.doctor.command:doctor",
    ),
    Command(
        "runs",
        "list the runs and their states",
        (
            argument("--plan", action="store_true", help="show the planned figures beside the measured ones"),
            RUNS,
            JSON,
        ),
        "workbench.commands.runs:runs",
    ),
    Command(
        "attach",
        "watch and steer a run on the screen",
        (
            RUN,
            argument(
                "--readonly",
                dest="read_only",
                action="store_true",
                help="only watch: nothing can be steered or deleted",
            ),
            ASCII,
            RUNS,
        ),
        "workbench.commands.screen:attach",
    ),
    Command(
        "compare",
        "show how runs differ: outcomes, losses by step, and fields of their configurations",
        (
            argument("run", metavar="RUN", nargs="+", help="two or more runs, by name or folder"),
            RUNS,
            JSON,
        ),
        "workbench.commands.compare:compare",
    ),
    Command(
        "export",
        "write a run's model into a folder that from_pretrained loads, and check that it gives the same logits",
        (
            NAMED_RUN,
            argument("target", metavar="DIR", type=Path, help="a new or an empty folder"),
            STEP,
            BEST,
            argument(
                "--dtype", metavar="bf16|fp16|fp32", help="round the weights to this (default: as they are)"
            ),
            argument(
                "--merge", action="store_true", help="add an adapter to the weights that it was trained on"
            ),
            argument(
                "--max-shard-size",
                metavar="SIZE",
                help="the largest file of weights, for example 5GB or 500MB",
            ),
            argument(
                "--check",
                action=argparse.BooleanOptionalAction,
                default=True,
                help="load what was written and compare its logits with the run's (default: yes)",
            ),
            RUNS,
            JSON,
        ),
        "workbench.commands.export:export",
    ),
    Command(
        "sample",
        "continue a text with the model of a run's checkpoint",
        (
            RUN,
            argument(
                "--prompt",
                metavar="TEXT",
                help="the text to continue; - reads stdin (default: the run's own)",
            ),
            argument("--tokens", metavar="N", type=int, default=200, help="at most (default: 200)"),
            argument(
                "--temperature",
                metavar="T",
                type=float,
                default=0.8,
                help="0 takes the likeliest (default: 0.8)",
            ),
            argument(
                "--top-p",
                metavar="P",
                type=float,
                default=1.0,
                help="draw among the likeliest that together have this much (default: 1.0)",
            ),
            argument(
                "--top-k",
                metavar="K",
                type=int,
                default=40,
                help="draw among the K likeliest, 0: all (default: 40)",
            ),
            argument("--seed", metavar="S", type=int, default=0, help="of the draws (default: 0)"),
            STEP,
            BEST,
            argument(
                "--chat", action="store_true", help="the prompt is what a user says; print the answer alone"
            ),
            DEVICE,
            RUNS,
        ),
        "workbench.commands.sample:sample",
    ),
    Command(
        "metrics",
        "print the recorded metrics of a run, step by step, as CSV",
        (RUN, RUNS, JSON),
        "workbench.commands.metrics:metrics",
    ),
    Command(
        "top",
        "watch GPU, host and disks on the screen; with --json print one sample",
        (ASCII, RUNS, JSON),
        "workbench.commands.screen:top",
    ),
    Command(
        "stop",
        "finish the step, save a checkpoint and end the run",
        (RUN, RUNS),
        "workbench.commands.runs:steer",
        {"verb": "stop"},
    ),
    Command(
        "save",
        "save a checkpoint now and go on",
        (RUN, RUNS),
        "workbench.commands.runs:steer",
        {"verb": "save"},
    ),
    Command(
        "pause",
        "hold the run after this step until it is resumed",
        (RUN, RUNS),
        "workbench.commands.runs:steer",
        {"verb": "pause"},
    ),
    Command(
        "resume",
        "wake a paused run, or start a stopped one from its last checkpoint in the background; attach watches it",
        (
            RUN,
            SET_OF_RUN,
            RUNS,
        ),
        "workbench.commands.runs:steer",
        {"verb": "resume"},
    ),
    Command(
        "verify",
        "train a shrunken copy of a preset and compare every step with plain PyTorch",
        (
            PRESET,
            SET,
            argument("--full", action="store_true", help="verify the model itself, where memory allows"),
            argument("--steps", metavar="N", type=int, help="optimizer steps of each training (default: 6)"),
            JSON,
        ),
        "workbench.verify.command:verify",
    ),
    Command(
        "import",
        "make a preset of a DeepSpeed configuration, with a verdict on each of its keys",
        (
            argument("file", metavar="FILE", type=Path, help="a DeepSpeed configuration, a JSON file"),
            argument(
                "--out",
                metavar="PRESET.toml",
                type=Path,
                help="write the preset here (default: it is printed, the rest as comments)",
            ),
            argument(
                "--force",
                action="store_true",
                help="with --out: write over a file that is there (a preset that was imported and never edited is "
                "replaced without)",
            ),
            argument(
                "--architecture",
                metavar="NAME",
                default="",
                help="the model, which such a file does not name: an architecture in transformers",
            ),
            argument("--pretrained", metavar="NAME", default="", help="the same: a folder or hub id"),
            SET,
            JSON,
        ),
        "workbench.commands.import_:import_",
    ),
    Command("presets", "list the presets that can be named", (JSON,), "workbench.commands.config:presets"),
    Command(
        "config show",
        "print a preset with every default filled in",
        (PRESET, SET),
        "workbench.commands.config:show",
    ),
    Command(
        "config check",
        "check a preset and list all its mistakes",
        (PRESET, SET),
        "workbench.commands.config:check",
    ),
    Command(
        "config schema",
        "print every field with its default, range and meaning",
        (JSON,),
        "workbench.commands.config:schema",
    ),
)
