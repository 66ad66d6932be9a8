"""The command line: every verb, and the one place that turns errors into messages and exit codes.

Nothing heavy is imported before a verb needs it: `workbench --help` answers at once. A verb is a row in
`VERBS` with its arguments and its handler; the help is made from the rows. stdout is data, stderr is
diagnostics.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import io
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from workbench import __version__
from workbench.doctor import HELP as HELP_OF_DOCTOR
from workbench.errors import (
    EXIT_DONE,
    EXIT_ERROR,
    EXIT_INTERRUPTED,
    ConfigurationError,
    WorkbenchError,
)


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


def main(argv: Sequence[str] | None = None) -> int:
    """Do what one command line says and return its exit code; no exception leaves."""
    words = list(sys.argv[1:] if argv is None else argv)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a terminal without UTF-8 is no reason to fail
    code = _guarded(words)
    if sys.stdout is None:  # closed by whoever started this
        return code
    try:
        sys.stdout.flush()
    except OSError as error:
        if not isinstance(error, BrokenPipeError) and code == EXIT_DONE:
            _tell(f"workbench: the output could not be written: {error.strerror}")
        # What is left in the buffer goes nowhere, or Python would try again at exit and complain.
        with contextlib.suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return code or EXIT_ERROR
    return code


def build_parser() -> argparse.ArgumentParser:
    """The parser of the whole command line, made from `VERBS`."""
    parser = argparse.ArgumentParser(
        prog="workbench",
        description="Train language models larger than the GPU on one machine.",
        epilog="`workbench VERB --help` explains a verb.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"workbench {__version__}")
    top = parser.add_subparsers(title="verbs", metavar="VERB", required=True)
    groups: dict[str, Any] = {}
    for verb in VERBS:
        *group, word = verb.name.split()
        for name in group:
            if name not in groups:
                outer = _add_parser(top, name, GROUPS[name])
                groups[name] = outer.add_subparsers(title="verbs", metavar="VERB", required=True)
        added = _add_parser(groups[group[0]] if group else top, word, verb.help)
        for argument in verb.arguments:
            added.add_argument(*argument.names, **argument.options)
        added.set_defaults(handle=verb.handle)
    return parser


def _guarded(words: list[str]) -> int:
    """Do what `words` say; whatever goes wrong becomes a message on stderr and an exit code."""
    try:
        return _dispatch(words)
    except WorkbenchError as error:
        _tell(f"workbench: {error}")
        return error.exit_code
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:  # the reader of stdout has seen enough
        return EXIT_ERROR
    except Exception as error:
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            _tell(f"workbench: {error.strerror}: {error.filename or 'the output'}")
        else:
            _tell(_bug_report(error))
        return EXIT_ERROR


def _dispatch(words: list[str]) -> int:
    parser = build_parser()
    if not words:
        parser.print_help()
        print("\nThe screen comes with a later version. To begin now: workbench run quickstart")
        return EXIT_DONE
    try:
        _refuse_unknown_verb(parser, words[0])
        arguments = parser.parse_args(words)
        handle: Callable[[argparse.Namespace], int] = arguments.handle
        return handle(arguments)
    except SystemExit as stop:  # argparse has printed its help, the version or a usage error
        return stop.code if isinstance(stop.code, int) else EXIT_DONE


def _refuse_unknown_verb(parser: argparse.ArgumentParser, word: str) -> None:
    names = list(dict.fromkeys(verb.name.split()[0] for verb in VERBS))
    if word.startswith("-") or word in names:
        return
    import difflib

    near = difflib.get_close_matches(word, names, n=1)
    if near:
        parser.error(f'there is no verb "{word}"; did you mean "{near[0]}"?')
    if word.endswith(".toml"):
        parser.error(f'there is no verb "{word}"; to train this preset: workbench run {word}')
    parser.error(f'there is no verb "{word}"; the verbs are {", ".join(names)}')


def _add_parser(verbs: Any, name: str, help: str) -> argparse.ArgumentParser:
    description = help[0].upper() + help[1:] + "."
    added: argparse.ArgumentParser = verbs.add_parser(
        name, help=help, description=description, allow_abbrev=False
    )
    return added


def _tell(message: str) -> None:
    with contextlib.suppress(OSError, ValueError):  # nobody is left to be told
        print(message, file=sys.stderr, flush=True)


def _bug_report(error: Exception) -> str:
    """One line about an exception that nobody expected; its traceback goes to a file."""
    import tempfile
    import traceback

    try:
        with tempfile.NamedTemporaryFile(
            "w", prefix="workbench-traceback-", suffix=".txt", delete=False, errors="backslashreplace"
        ) as file:
            file.writelines(traceback.format_exception(error))
        place = f"the traceback is in {file.name}"
    except OSError as failure:
        place = f"the traceback could not be written: {failure.strerror}"
    what = f"{type(error).__name__}: {error}".replace("\n", " ")
    return f"workbench: this is a bug in workbench: {what} ({place})"


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
    from workbench.run_verbs import runs

    return runs(arguments.runs, arguments.json, plans=arguments.plan)


def _steer(verb: str) -> Callable[[argparse.Namespace], int]:
    def handle(arguments: argparse.Namespace) -> int:
        from workbench.run_verbs import steer

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
    from workbench.plan_verb import plan

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
    from workbench.config_verbs import show

    return show(arguments.preset, arguments.set)


def _config_check(arguments: argparse.Namespace) -> int:
    from workbench.config_verbs import check

    return check(arguments.preset, arguments.set)


def _config_schema(arguments: argparse.Namespace) -> int:
    from workbench.config_verbs import schema

    return schema(arguments.json)


def _presets(arguments: argparse.Namespace) -> int:
    from workbench.config_verbs import presets

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
