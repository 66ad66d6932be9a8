"""From a parsed command line to the call that does what it says: one function a verb, one for all that steer a run.

Each imports what it needs when it is called, so that importing this module costs nothing.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

from workbench.errors import ConfigurationError


def run(arguments: argparse.Namespace) -> int:
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


def runs(arguments: argparse.Namespace) -> int:
    from workbench.commands.runs import runs

    return runs(arguments.runs, arguments.json, plans=arguments.plan)


def attach(arguments: argparse.Namespace) -> int:
    from workbench.commands.screen import attach

    return attach(arguments.run, arguments.runs, read_only=arguments.readonly, plain=arguments.ascii)


def top(arguments: argparse.Namespace) -> int:
    from workbench.commands.screen import top

    return top(arguments.runs, as_json=arguments.json, plain=arguments.ascii)


def compare(arguments: argparse.Namespace) -> int:
    from workbench.commands.compare import compare

    return compare(arguments.run, arguments.runs, arguments.json)


def export(arguments: argparse.Namespace) -> int:
    from workbench.commands.export import export
    from workbench.export.export import ExportOptions, parse_size

    largest = arguments.max_shard_size
    options = ExportOptions(
        dtype=arguments.dtype,
        merge=arguments.merge,
        largest_file_bytes=None if largest is None else parse_size(largest),
        check=arguments.check,
    )
    return export(
        arguments.run,
        arguments.target,
        arguments.runs,
        step=arguments.step,
        best=arguments.best,
        options=options,
        as_json=arguments.json,
    )


def sample(arguments: argparse.Namespace) -> int:
    from workbench.commands.sample import sample
    from workbench.export.generate import SamplingParams

    params = SamplingParams(
        arguments.tokens, arguments.temperature, arguments.top_p, arguments.top_k, arguments.seed
    )
    return sample(
        arguments.run,
        arguments.runs,
        prompt=arguments.prompt,
        params=params,
        step=arguments.step,
        best=arguments.best,
        chat=arguments.chat,
        device=arguments.device,
    )


def metrics(arguments: argparse.Namespace) -> int:
    from workbench.commands.metrics import metrics

    return metrics(arguments.run, arguments.runs, arguments.json)


def steer(verb: str) -> Callable[[argparse.Namespace], int]:
    """What does `verb`, one of those that send a run a command."""

    def handle(arguments: argparse.Namespace) -> int:
        from workbench.commands.runs import steer

        return steer(verb, arguments.run, arguments.runs, overrides=getattr(arguments, "set", ()))

    return handle


def verify(arguments: argparse.Namespace) -> int:
    from workbench.verify.command import STEPS, verify

    return verify(
        preset=arguments.preset,
        overrides=arguments.set,
        full=arguments.full,
        steps=STEPS if arguments.steps is None else arguments.steps,
        json=arguments.json,
    )


def plan(arguments: argparse.Namespace) -> int:
    from workbench.commands.plan import plan

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


def probe(arguments: argparse.Namespace) -> int:
    from workbench.profiles.probe_command import probe

    return probe(
        device=arguments.device,
        disk_path=arguments.disk,
        json=arguments.json,
        fresh=arguments.fresh,
        quick=arguments.quick,
    )


def doctor(arguments: argparse.Namespace) -> int:
    from workbench.doctor.command import doctor

    return doctor(disk_path=arguments.disk, runs=arguments.runs, as_json=arguments.json)


def config_show(arguments: argparse.Namespace) -> int:
    from workbench.commands.config import show

    return show(arguments.preset, arguments.set)


def config_check(arguments: argparse.Namespace) -> int:
    from workbench.commands.config import check

    return check(arguments.preset, arguments.set)


def config_schema(arguments: argparse.Namespace) -> int:
    from workbench.commands.config import schema

    return schema(arguments.json)


def presets(arguments: argparse.Namespace) -> int:
    from workbench.commands.config import presets

    return presets(arguments.json)


def import_(arguments: argparse.Namespace) -> int:
    from workbench.commands.import_ import import_

    return import_(
        file=arguments.file,
        out=arguments.out,
        architecture=arguments.architecture,
        pretrained=arguments.pretrained,
        overrides=arguments.set,
        force=arguments.force,
        as_json=arguments.json,
    )
