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
    """An argument of a command: the name and the options for argparse's `add_argument`, and a name of one letter."""

    name: str
    options: dict[str, Any]
    short: str = ""

    @property
    def names(self) -> list[str]:
        """Return all names, the short one first."""
        return [self.short, self.name] if self.short else [self.name]


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

    def options(self) -> list[str]:
        """Return the names of its options, as they are written."""
        return [name for argument in self.arguments for name in argument.names if name.startswith("-")]


def argument(name: str, metavar: str, help: str, **options: Any) -> Argument:
    """Return the argument that `add_argument` adds with these; a wrong number gets a plain message."""
    kind = options.get("type")
    if kind in _NUMBERS:
        options["type"] = _number(kind)
    return Argument(name, {"metavar": metavar, "help": help, **options})


_NUMBERS: dict[Any, str] = {int: "a whole number", float: "a number"}


def _number(kind: Any) -> Callable[[str], Any]:
    def parse(word: str) -> Any:
        try:
            return kind(word)
        except ValueError:
            raise argparse.ArgumentTypeError(f'"{word}" is not {_NUMBERS[kind]}') from None

    return parse


def flag(name: str, help: str, dest: str | None = None, short: str = "") -> Argument:
    """Return an option that is given or not."""
    return Argument(name, {"action": "store_true", "help": help} | ({"dest": dest} if dest else {}), short)


def repeated(name: str, metavar: str, help: str, dest: str) -> Argument:
    """Return an option that may be given several times."""
    return argument(name, metavar, f"{help}; may be repeated", dest=dest, action="append", default=[])


PRESET = argument("preset", "PRESET", "a preset's name, or the path of a TOML file")
SET = repeated(
    "--set",
    "TABLE.KEY=VALUE",
    "change one value of the preset, for example train.steps=100",
    dest="overrides",
)
SET_OF_RUN = repeated(
    "--set",
    "TABLE.KEY=VALUE",
    "start it again with another value, for example offload.state=disk or train.steps=2000",
    dest="overrides",
)
RUNS = argument("--runs", "DIR", "folder of the runs (default: $WORKBENCH_RUNS, else ./runs)", type=Path)
RUN = argument(
    "run",
    "RUN",
    "the run's name, a part of it, or its folder (default: the run that trains, else the newest)",
    nargs="?",
)
NAMED_RUN = argument("run", "RUN", "the run's name, a part of it, or its folder")
STEP = argument("--step", "N", "the checkpoint of this step (default: the newest)", type=int)
BEST = flag("--best", "the checkpoint with the lowest validation loss")
DEVICE = argument("--device", "DEVICE", "auto, cpu, cuda or cuda:N (default: auto)", default="auto")
CHECK_HELP = "load what was written and compare its logits with the run's (default: yes)"
JSON = flag("--json", "print JSON", dest="as_json")
ASCII = flag("--ascii", "draw with ASCII characters only", dest="plain")

MACHINE_PARTS = (
    argument(
        "--gpu",
        "CARD",
        'describe the machine: its card, such as V100-32GB (`machine list` has them), or "none"',
    ),
    argument("--memory", "SIZE", "with --gpu: the host's memory, such as 64G or 1.5T"),
    argument("--channels", "N", "with --gpu: memory channels of all sockets (default: 2)", type=int),
    argument("--ddr", "MT/S", "with --gpu: their transfers, such as 2666 or 5600 (default: 3200)", type=int),
    argument("--pcie", "GENxLANES", "with --gpu: the card's slot, such as 3x16 (default: the card's own)"),
    argument(
        "--cores", "N", "with --gpu: physical cores (default: as usual with so many channels)", type=int
    ),
    argument(
        "--disk", "SIZE", "with --gpu: free room on an NVMe disk, such as 2T (default: no disk is planned)"
    ),
    argument("--processor", "NAME", "with --gpu none: avx2, avx512, avx512-bf16 or amx (default: avx2)"),
    repeated(
        "--rate",
        "TABLE.KEY=NUMBER",
        "with --gpu: a figure of the profile, such as link.up_bytes_per_s=11e9 or host.read_bytes_per_s=85e9",
        dest="rates",
    ),
)
"""Describe a machine that is not here."""

GROUPS = {
    "config": "show, check and explain configurations",
    "machine": "list the machines and cards that plans know, and describe others",
}
"""Words that are followed by another word, with their help."""

COMMANDS: tuple[Command, ...] = (
    Command(
        "run",
        "train a preset, in this terminal or detached from it",
        (
            argument("preset", "PRESET", "a preset's name, or the path of a TOML file", nargs="?"),
            SET,
            argument(
                "--resume",
                "auto|RUN",
                "continue a run from its last good checkpoint: a run's name or folder, or auto (the default): "
                "the latest run of this preset",
                nargs="?",
                const="auto",
            ),
            flag("--detach", "train in the background and return at once"),
            argument(
                "--gpus",
                "N|auto",
                "train on so many GPUs of this machine, a process each; without a GPU, on so many CPU processes",
            ),
            argument(
                "--max-restarts",
                "N",
                "with several GPUs: continue from the last checkpoint, at most N times, when a process fails",
                type=int,
                default=0,
            ),
            argument("--name", "NAME", "a name of your own for the run, by which other commands find it"),
            repeated("--tag", "TAG", "a mark for the run, by which `runs TAG` lists it", dest="tags"),
            RUNS,
            # The folder that a detached run was given by the process that started it.
            argument("--run-directory", "DIR", argparse.SUPPRESS, type=Path),
        ),
        "workbench.commands.runs:run",
    ),
    Command(
        "plan",
        "show how much memory a preset needs and how fast it will go, before anything starts",
        (
            PRESET,
            SET,
            flag("--fit", "search for the fastest configuration that fits", dest="search"),
            repeated("--keep", "TABLE.KEY", "with --fit: leave this field as it is", dest="keep"),
            argument("--write", "FILE", "with --fit: write the preset with its changes here", type=Path),
            argument(
                "--gpus",
                "N|auto",
                "plan so many GPUs, a process each, on as many such machines as that takes; with --fit, auto chooses",
            ),
            argument(
                "--machine",
                "FILE",
                "plan for another machine: a profile's file, or one of "
                "desktop-24gb, desktop-32gb, server-80gb, server-h200, server-v100-32gb",
                type=Path,
            ),
            *MACHINE_PARTS,
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
            argument("--disk", "DIR", "measure the disk of this folder too", dest="disk_path", type=Path),
            flag("--fresh", "measure again, even if nothing has changed"),
            flag("--quick", "take about ten seconds; less accurate"),
            JSON,
        ),
        "workbench.profiles.probe_command:probe",
    ),
    Command(
        "doctor",
        f"check everything a run needs and how to repair it (exit 0: all ok, {EXIT_WARNINGS}: warnings, 1: failures)",
        (
            argument("--disk", "DIR", "check this folder for the disk tier too", dest="disk_path", type=Path),
            RUNS,
            JSON,
        ),
        "workbench.doctor.command:doctor",
    ),
    Command(
        "runs",
        "list the runs and their states, the newest first",
        (
            argument(
                "name", "NAME", "only runs with this in their names: a preset, a name, a tag", nargs="?"
            ),
            flag("--plan", "show the planned figures beside the measured ones"),
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
            flag("--readonly", "only watch: nothing can be steered or deleted", dest="read_only"),
            ASCII,
            RUNS,
        ),
        "workbench.commands.screen:attach",
    ),
    Command(
        "log",
        "print what a run has printed",
        (RUN, flag("--follow", "keep printing until the run ends", short="-f"), RUNS),
        "workbench.commands.runs:log",
    ),
    Command(
        "rm",
        "delete runs with their checkpoints; asks before each",
        (
            argument("run", "RUN", "one or more runs, by name or folder", nargs="+"),
            flag("--yes", "delete without asking"),
            RUNS,
        ),
        "workbench.commands.runs:remove",
    ),
    Command(
        "compare",
        "show how runs differ: outcomes, losses by step, and fields of their configurations",
        (argument("run", "RUN", "two or more runs, by name or folder", nargs="+"), RUNS, JSON),
        "workbench.commands.results:compare",
    ),
    Command(
        "export",
        "write a run's model into a folder that from_pretrained loads, and check that it gives the same logits",
        (
            NAMED_RUN,
            argument("target", "DIR", "a new or an empty folder", type=Path),
            STEP,
            BEST,
            argument("--dtype", "bf16|fp16|fp32", "round the weights to this (default: as they are)"),
            flag("--merge", "merge the adapter into its base weights"),
            argument(
                "--max-shard-size", "SIZE", "the largest size of a weights file, for example 5GB or 500MB"
            ),
            Argument(
                "--check", {"action": argparse.BooleanOptionalAction, "default": True, "help": CHECK_HELP}
            ),
            argument("--push", "USER/NAME", "upload it to the Hugging Face hub too, private if it is new"),
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
            argument("--prompt", "TEXT", "the text to continue; - reads stdin (default: the run's own)"),
            argument("--tokens", "N", "generate at most N tokens (default: 200)", type=int, default=200),
            argument(
                "--temperature", "T", "0 takes the likeliest token (default: 0.8)", type=float, default=0.8
            ),
            argument(
                "--top-p",
                "P",
                "sample from the likeliest tokens that together have probability P (default: 1.0)",
                type=float,
                default=1.0,
            ),
            argument(
                "--top-k",
                "K",
                "sample from the K likeliest tokens, 0: all (default: 40)",
                type=int,
                default=40,
            ),
            argument("--seed", "S", "seed of the sampling (default: 0)", type=int, default=0),
            STEP,
            BEST,
            flag("--chat", "send the prompt as a user's message; print only the answer"),
            DEVICE,
            RUNS,
            JSON,
        ),
        "workbench.commands.export:sample",
    ),
    Command(
        "metrics",
        "print the recorded metrics of a run, step by step, as CSV",
        (RUN, RUNS, JSON),
        "workbench.commands.results:metrics",
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
        (RUN, RUNS, flag("--wait", "return when the run has ended, not when it has answered")),
        "workbench.commands.runs:steer",
        {"verb": "stop"},
    ),
    *(
        Command(verb, help, (RUN, RUNS), "workbench.commands.runs:steer", {"verb": verb})
        for verb, help in (
            ("save", "save a checkpoint now and continue"),
            ("pause", "pause the run after this step until it is resumed"),
        )
    ),
    Command(
        "resume",
        "continue a paused run, or restart a stopped one from its last checkpoint in the background",
        (RUN, SET_OF_RUN, RUNS),
        "workbench.commands.runs:steer",
        {"verb": "resume"},
    ),
    Command(
        "verify",
        "train a shrunken copy of a preset and compare every step with plain PyTorch",
        (
            PRESET,
            SET,
            flag("--full", "verify the model itself, where memory allows"),
            argument("--steps", "N", "optimizer steps of each training (default: 6)", type=int),
            argument("--gpus", "N", "verify so many ranks too, as processes on the CPU", type=int),
            argument(
                "--device",
                "DEVICE",
                'where, instead of train.device; "virtual" is a CUDA device without a GPU: it runs the GPU\'s code on '
                "the CPU, in an order that exposes missing synchronization",
                default="",
            ),
            JSON,
        ),
        "workbench.verify.command:verify",
    ),
    Command(
        "import",
        "convert a configuration of DeepSpeed, LLaMA-Factory, Axolotl, Accelerate or torchtune to a preset",
        (
            argument("file", "FILE", "a configuration, a JSON or YAML file", type=Path),
            argument(
                "--out",
                "PRESET.toml",
                "write the preset here (default: print it, with the rest as comments)",
                type=Path,
            ),
            flag(
                "--force",
                "with --out: overwrite an existing file (an imported preset that was never edited needs no --force)",
            ),
            argument(
                "--architecture",
                "NAME",
                "the model, which a DeepSpeed file does not name: an architecture in transformers",
                default="",
            ),
            argument("--pretrained", "NAME", "the model as a folder or hub id", default=""),
            SET,
            JSON,
        ),
        "workbench.commands.import_:import_",
    ),
    Command(
        "machine list",
        "list the machines and the cards that plans know, with their figures",
        (JSON,),
        "workbench.commands.machine:list_",
    ),
    Command(
        "machine new",
        "write a machine's profile from data sheets, every figure explained, to edit and to plan with",
        (
            argument("file", "FILE", "write it here (default: print it)", nargs="?", type=Path),
            *MACHINE_PARTS,
        ),
        "workbench.commands.machine:new",
    ),
    Command("presets", "list the presets", (JSON,), "workbench.commands.config:presets"),
    Command(
        "completion",
        "print a script that completes commands, options, presets and runs in your shell",
        (argument("shell", "SHELL", "bash, zsh or tcsh"),),
        "workbench.commands.completion:completion",
    ),
    Command(
        "config show",
        "print a preset with every default filled in",
        (PRESET, SET, JSON),
        "workbench.commands.config:show",
    ),
    Command(
        "config check",
        "check a preset and list all its mistakes",
        (PRESET, SET, JSON),
        "workbench.commands.config:check",
    ),
    Command(
        "config schema",
        "print every field with its default, range and meaning",
        (JSON,),
        "workbench.commands.config:schema",
    ),
)
