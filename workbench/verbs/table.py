"""Every verb: its arguments, its help and who does it; one row each.

A handler imports what it needs when it is called, so that reading this table costs nothing.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from workbench.doctor import HELP as HELP_OF_DOCTOR
from workbench.errors import ConfigurationError


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


def _run(arguments: argparse.Namespace) -> int:
    preset: str | None = arguments.preset
    resume: str | None = arguments.resume
    if preset is None and resume not in (None, "auto") and not Path(resume).is_dir():
        # In `run --resume PRESET`, argparse takes the preset for the value of --resume.
        preset, resume = _preset_after_resume(resume), "auto"
    if preset is None and resume in (None, "auto") and arguments.run_directory is None:
        raise ConfigurationError(
            "run: no preset is named; name one (`workbench presets` lists them), or --resume a run's folder"
        )
    from workbench.training.command import run

    return run(
        preset=preset,
        overrides=arguments.set,
        resume=resume if resume in (None, "auto") else Path(resume),
        detach=arguments.detach,
        runs=arguments.runs,
        run_directory=arguments.run_directory,
    )


def _preset_after_resume(name: str) -> str:
    from workbench.presets import find_preset

    try:
        find_preset(name)
    except ConfigurationError as error:
        raise ConfigurationError(
            f"--resume {name}: there is no such run folder, nor a preset\n{error}"
        ) from None
    return name


def _runs(arguments: argparse.Namespace) -> int:
    from workbench.verbs.runs import runs

    return runs(arguments.runs, arguments.json, plans=arguments.plan)


def _attach(arguments: argparse.Namespace) -> int:
    from workbench.verbs.screen import attach

    return attach(arguments.run, arguments.runs, read_only=arguments.readonly, plain=arguments.ascii)


def _top(arguments: argparse.Namespace) -> int:
    from workbench.verbs.screen import top

    return top(arguments.runs, as_json=arguments.json, plain=arguments.ascii)


def _compare(arguments: argparse.Namespace) -> int:
    from workbench.verbs.compare import compare

    return compare(arguments.run, arguments.runs, arguments.json)


def _export(arguments: argparse.Namespace) -> int:
    from workbench.verbs.export import export

    return export(
        arguments.run, arguments.target, arguments.runs, step=arguments.step, as_json=arguments.json
    )


def _metrics(arguments: argparse.Namespace) -> int:
    from workbench.verbs.metrics import metrics

    return metrics(arguments.run, arguments.runs, arguments.json)


def _steer(verb: str) -> Callable[[argparse.Namespace], int]:
    def handle(arguments: argparse.Namespace) -> int:
        from workbench.verbs.runs import steer

        return steer(verb, arguments.run, arguments.runs)

    return handle


def _verify(arguments: argparse.Namespace) -> int:
    from workbench.verify.command import STEPS, verify

    return verify(
        preset=arguments.preset,
        overrides=arguments.set,
        full=arguments.full,
        steps=STEPS if arguments.steps is None else arguments.steps,
        json=arguments.json,
    )


def _plan(arguments: argparse.Namespace) -> int:
    from workbench.verbs.plan import plan

    return plan(
        preset=arguments.preset,
        overrides=arguments.set,
        machine=arguments.machine,
        search=arguments.fit,
        keep=arguments.keep,
        write=arguments.write,
        runs=arguments.runs,
        as_json=arguments.json,
    )


def _probe(arguments: argparse.Namespace) -> int:
    from workbench.probe.command import probe

    return probe(
        device=arguments.device,
        disk_path=arguments.disk,
        json=arguments.json,
        fresh=arguments.fresh,
        quick=arguments.quick,
    )


def _doctor(arguments: argparse.Namespace) -> int:
    from workbench.doctor.command import doctor

    return doctor(disk_path=arguments.disk, runs=arguments.runs, json=arguments.json)


def _config_show(arguments: argparse.Namespace) -> int:
    from workbench.verbs.config import show

    return show(arguments.preset, arguments.set)


def _config_check(arguments: argparse.Namespace) -> int:
    from workbench.verbs.config import check

    return check(arguments.preset, arguments.set)


def _config_schema(arguments: argparse.Namespace) -> int:
    from workbench.verbs.config import schema

    return schema(arguments.json)


def _presets(arguments: argparse.Namespace) -> int:
    from workbench.verbs.config import presets

    return presets(arguments.json)


def _argument(*names: str, **options: Any) -> Argument:
    return Argument(names, options)


_PRESET = _argument("preset", metavar="PRESET", help="a preset's name, or the path of a TOML file")
_SET = _argument(
    "--set",
    metavar="TABLE.KEY=VALUE",
    action="append",
    default=[],
    help="change one value of the preset, for example train.steps=100; may be repeated",
)
_RUNS = _argument(
    "--runs", metavar="DIR", type=Path, help="folder of the runs (default: $WORKBENCH_RUNS, else ./runs)"
)
_RUN = _argument(
    "run",
    metavar="RUN",
    nargs="?",
    help="the run's name, the start of it, or its folder (default: the latest)",
)
_JSON = _argument("--json", action="store_true", help="print JSON")
_ASCII = _argument("--ascii", action="store_true", help="draw with ASCII characters alone")

GROUPS = {"config": "show, check and explain configurations"}
"""Words that are followed by another word, and what the verbs behind them have in common."""

VERBS: tuple[Verb, ...] = (
    Verb(
        "run",
        "train a preset, in this terminal or detached from it",
        (
            _argument(
                "preset", metavar="PRESET", nargs="?", help="a preset's name, or the path of a TOML file"
            ),
            _SET,
            _argument(
                "--resume",
                metavar="auto|PATH",
                nargs="?",
                const="auto",
                help="continue a run from its last good checkpoint: the run in the folder PATH, or with auto "
                "(the default) the latest run of this preset",
            ),
            _argument("--detach", action="store_true", help="train in the background and return at once"),
            _RUNS,
            # The folder that a detached run was given by the process that started it.
            _argument("--run-directory", metavar="DIR", type=Path, help=argparse.SUPPRESS),
        ),
        _run,
    ),
    Verb(
        "plan",
        "say what a preset needs and how fast it will go, before anything starts",
        (
            _PRESET,
            _SET,
            _argument("--fit", action="store_true", help="search for the fastest configuration that fits"),
            _argument(
                "--keep",
                metavar="TABLE.KEY",
                action="append",
                default=[],
                help="with --fit: leave this field as it is; may be repeated",
            ),
            _argument(
                "--write",
                metavar="FILE",
                type=Path,
                help="with --fit: write the preset with its changes here",
            ),
            _argument(
                "--machine",
                metavar="FILE",
                type=Path,
                help="plan for another machine: a profile's file, or one of "
                "desktop-24gb, desktop-32gb, server-80gb, server-h200",
            ),
            _RUNS,
            _JSON,
        ),
        _plan,
    ),
    Verb(
        "probe",
        "measure how fast this machine is, in under a minute, for the plan",
        (
            _argument(
                "--device", metavar="DEVICE", default="auto", help="auto, cpu, cuda or cuda:N (default: auto)"
            ),
            _argument("--disk", metavar="DIR", type=Path, help="measure the disk of this folder too"),
            _argument("--fresh", action="store_true", help="measure anew what was measured before"),
            _argument("--quick", action="store_true", help="in some ten seconds, less exactly"),
            _JSON,
        ),
        _probe,
    ),
    Verb(
        "doctor",
        HELP_OF_DOCTOR,
        (
            _argument("--disk", metavar="DIR", type=Path, help="check this folder for the disk tier too"),
            _RUNS,
            _JSON,
        ),
        _doctor,
    ),
    Verb(
        "runs",
        "list the runs and how they stand",
        (
            _argument("--plan", action="store_true", help="what was planned beside what came of it"),
            _RUNS,
            _JSON,
        ),
        _runs,
    ),
    Verb(
        "attach",
        "watch and steer a run on the screen",
        (
            _RUN,
            _argument(
                "--readonly", action="store_true", help="only watch: nothing can be steered or deleted"
            ),
            _ASCII,
            _RUNS,
        ),
        _attach,
    ),
    Verb(
        "compare",
        "say how runs differ: outcomes, losses by step, and fields of their configurations",
        (
            _argument("run", metavar="RUN", nargs="+", help="two or more runs, by name or folder"),
            _RUNS,
            _JSON,
        ),
        _compare,
    ),
    Verb(
        "export",
        "copy a run's model into a folder that from_pretrained loads",
        (
            _argument("run", metavar="RUN", help="the run's name, the start of it, or its folder"),
            _argument("target", metavar="DIR", type=Path, help="a new or an empty folder"),
            _argument(
                "--step", metavar="N", type=int, help="the checkpoint of this step (default: the newest)"
            ),
            _RUNS,
            _JSON,
        ),
        _export,
    ),
    Verb("metrics", "print what a run has recorded, step by step, as CSV", (_RUN, _RUNS, _JSON), _metrics),
    Verb(
        "top",
        "watch GPU, host and disks on the screen; with --json print one sample",
        (_ASCII, _RUNS, _JSON),
        _top,
    ),
    Verb("stop", "finish the step, save a checkpoint and end the run", (_RUN, _RUNS), _steer("stop")),
    Verb("save", "save a checkpoint now and go on", (_RUN, _RUNS), _steer("save")),
    Verb("pause", "hold the run after this step until it is resumed", (_RUN, _RUNS), _steer("pause")),
    Verb(
        "resume",
        "wake a paused run, or start a stopped one from its last checkpoint",
        (_argument("run", metavar="RUN", help="the run's name, the start of it, or its folder"), _RUNS),
        _steer("resume"),
    ),
    Verb(
        "verify",
        "train a small model by a preset's own configuration and hold it to plain torch",
        (
            _PRESET,
            _SET,
            _argument("--full", action="store_true", help="verify the model itself, where memory allows"),
            _argument("--steps", metavar="N", type=int, help="optimizer steps of each training (default: 6)"),
            _JSON,
        ),
        _verify,
    ),
    Verb("presets", "list the presets that can be named", (_JSON,), _presets),
    Verb("config show", "print a preset with every default filled in", (_PRESET, _SET), _config_show),
    Verb("config check", "say whether a preset is right, and what is not", (_PRESET, _SET), _config_check),
    Verb("config schema", "print every field with its default, range and meaning", (_JSON,), _config_schema),
)
