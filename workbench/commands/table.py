"""Every verb: its arguments, its help and who does it; one row each.

Reading this table costs nothing: what a verb needs is imported when it is called (`calls.py`).
"""

from __future__ import annotations

import argparse
from pathlib import Path

from workbench.commands import calls
from workbench.commands.arguments import (
    ASCII,
    BEST,
    DEVICE,
    JSON,
    NAMED_RUN,
    PRESET,
    RUN,
    RUNS,
    SET,
    SET_OF_RUN,
    STEP,
    Verb,
    argument,
)
from workbench.doctor import HELP as HELP_OF_DOCTOR

GROUPS = {"config": "show, check and explain configurations"}
"""Words that are followed by another word, and what the verbs behind them have in common."""

VERBS: tuple[Verb, ...] = (
    Verb(
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
        calls.run,
    ),
    Verb(
        "plan",
        "say what a preset needs and how fast it will go, before anything starts",
        (
            PRESET,
            SET,
            argument("--fit", action="store_true", help="search for the fastest configuration that fits"),
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
        calls.plan,
    ),
    Verb(
        "probe",
        "measure how fast this machine is, in under a minute, for the plan",
        (
            DEVICE,
            argument("--disk", metavar="DIR", type=Path, help="measure the disk of this folder too"),
            argument("--fresh", action="store_true", help="measure anew what was measured before"),
            argument("--quick", action="store_true", help="in some ten seconds, less exactly"),
            JSON,
        ),
        calls.probe,
    ),
    Verb(
        "doctor",
        HELP_OF_DOCTOR,
        (
            argument("--disk", metavar="DIR", type=Path, help="check this folder for the disk tier too"),
            RUNS,
            JSON,
        ),
        calls.doctor,
    ),
    Verb(
        "runs",
        "list the runs and how they stand",
        (
            argument("--plan", action="store_true", help="what was planned beside what came of it"),
            RUNS,
            JSON,
        ),
        calls.runs,
    ),
    Verb(
        "attach",
        "watch and steer a run on the screen",
        (
            RUN,
            argument("--readonly", action="store_true", help="only watch: nothing can be steered or deleted"),
            ASCII,
            RUNS,
        ),
        calls.attach,
    ),
    Verb(
        "compare",
        "say how runs differ: outcomes, losses by step, and fields of their configurations",
        (
            argument("run", metavar="RUN", nargs="+", help="two or more runs, by name or folder"),
            RUNS,
            JSON,
        ),
        calls.compare,
    ),
    Verb(
        "export",
        "write a run's model into a folder that from_pretrained loads, and look at it",
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
        calls.export,
    ),
    Verb(
        "sample",
        "let the model of a run's checkpoint continue a text",
        (
            RUN,
            argument(
                "--prompt", metavar="TEXT", help="what it continues; - reads stdin (default: the run's own)"
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
        calls.sample,
    ),
    Verb(
        "metrics",
        "print what a run has recorded, step by step, as CSV",
        (RUN, RUNS, JSON),
        calls.metrics,
    ),
    Verb(
        "top",
        "watch GPU, host and disks on the screen; with --json print one sample",
        (ASCII, RUNS, JSON),
        calls.top,
    ),
    Verb("stop", "finish the step, save a checkpoint and end the run", (RUN, RUNS), calls.steer("stop")),
    Verb("save", "save a checkpoint now and go on", (RUN, RUNS), calls.steer("save")),
    Verb("pause", "hold the run after this step until it is resumed", (RUN, RUNS), calls.steer("pause")),
    Verb(
        "resume",
        "wake a paused run, or start a stopped one from its last checkpoint in the background; attach watches it",
        (
            RUN,
            SET_OF_RUN,
            RUNS,
        ),
        calls.steer("resume"),
    ),
    Verb(
        "verify",
        "train a small model by a preset's own configuration and hold it to plain torch",
        (
            PRESET,
            SET,
            argument("--full", action="store_true", help="verify the model itself, where memory allows"),
            argument("--steps", metavar="N", type=int, help="optimizer steps of each training (default: 6)"),
            JSON,
        ),
        calls.verify,
    ),
    Verb(
        "import",
        "make a preset of a DeepSpeed configuration, and say what becomes of each of its keys",
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
        calls.import_,
    ),
    Verb("presets", "list the presets that can be named", (JSON,), calls.presets),
    Verb("config show", "print a preset with every default filled in", (PRESET, SET), calls.config_show),
    Verb(
        "config check",
        "say whether a preset is right, and what is not",
        (PRESET, SET),
        calls.config_check,
    ),
    Verb(
        "config schema",
        "print every field with its default, range and meaning",
        (JSON,),
        calls.config_schema,
    ),
)
