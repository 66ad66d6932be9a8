"""`workbench plan`: what a preset needs and how fast it will go, here or on another machine; and what would fit.

The arithmetic is in `workbench.plan`; here a configuration meets a machine. Nothing is trained and nothing is written
but the preset that is asked for. Exit code 0: it fits, 3: it does not.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from workbench.commands import report
from workbench.config import RunConfig, load_config
from workbench.config.references import OF_THE_PLAN
from workbench.config.rules import warnings
from workbench.errors import EXIT_DOES_NOT_FIT, EXIT_DONE, ConfigurationError, DoesNotFitError
from workbench.plan.fit import Fit, check_keep, fit, remedies
from workbench.plan.machine import MeasuredTimes, planned_machine, this_machine
from workbench.plan.planner import Planner, TimesOf, check_positions
from workbench.plan.report import fit_text, next_gpu_line, plan_text
from workbench.presets import changed_preset, find_preset
from workbench.profiles.described import described_machine
from workbench.profiles.description import describe
from workbench.profiles.model_profile import model_table
from workbench.profiles.named_machines import load_profile
from workbench.profiles.obtain import obtain_model_profile
from workbench.runs import runs_root
from workbench.system.folders import expanded


def plan(
    *,
    preset: str,
    overrides: Sequence[str],
    machine: Path | None,
    search: bool,
    keep: Sequence[str],
    write: Path | None,
    runs: Path | None,
    as_json: bool,
    gpus: str | None = None,
    **parts: Any,
) -> int:
    """Print the plan of `preset` and return the exit code.

    `machine`: a profile's file or a known one's name; None: this machine, measured first where it has not been, or the
    one that `parts` describe (see `workbench.commands.machine`).
    `search`: find what fits (`--fit`), without changing the fields `keep`. `write`: where to put the preset with the
    changes that a search found.

    Raises:
        ConfigurationError: preset, profile or an option are wrong, or the machine has no such device.
    """
    for option, given in (("--write", write is not None), ("--keep", bool(keep))):
        if given and not search:
            raise ConfigurationError(f"{option}: needs --fit")
    path = find_preset(preset)
    overrides = [*overrides, *([] if gpus is None else [f"parallel.gpus={gpus}"])]
    config = load_config(path, overrides, look_for=OF_THE_PLAN)
    if not search:
        _warn(config)
    check_keep(config, frozenset(keep))
    if write is not None:
        _check_target(write)
    described = describe(parts)
    if described is not None and machine is not None:
        raise ConfigurationError(f"--machine {machine}: a machine is described by --gpu too; leave one out")
    profile = (
        described_machine(described) if described else None if machine is None else load_profile(machine)
    )
    if profile is not None:
        target = planned_machine(profile)
        target.check_device(config)
    model_profile = obtain_model_profile(model_table(config), report)
    assert model_profile is not None, "it is made if there is none"
    check_positions(config, model_profile)
    times_of: TimesOf | None = None
    if profile is None:
        may_use_disk = search or {"disk", "auto"} & {config.offload.weights, config.offload.state}
        folder = _disk_folder(config) if may_use_disk else None
        from workbench.profiles.probe_command import measured_machine

        profile = measured_machine(config.train.device, folder)
        target = this_machine(config.train.device, folder, runs_root(runs), profile)
        device = config.train.device
        if device == "auto":
            # As it was measured: the driver may list a GPU that torch cannot use, or not list one that it can.
            device = "cpu" if target.shared_memory else "cuda"
        times_of = MeasuredTimes(model_table(config), model_profile, target, device, report, take=True)
    planner = Planner(model_profile, target, times_of)
    if search:
        found = fit(planner, config, frozenset(keep))
        _warn(found.plan.config)
        if write is not None:
            _write(path, found, write)
        print(json.dumps(_fit_as_dict(found), indent=2) if as_json else fit_text(found))
        return EXIT_DONE if found.fits else EXIT_DOES_NOT_FIT
    config, reading = _with_text(config, planner.ranks(config)[0])
    try:
        made = planner.plan(config)
    except DoesNotFitError:
        # "auto" has nothing to choose from: the plan of what lacks least shows what is missing.
        made = planner.nearest(config)
    ways = [] if made.fits else remedies(planner, made.config)
    if as_json:
        print(json.dumps({**made.as_dict(), "remedies": ways, "reading": reading}, indent=2))
    else:
        print(plan_text(made))
        more = planner.next_gpu(made) if gpus is not None or made.ranks > 1 else None
        if more is not None:
            print(next_gpu_line(made, more))
        if reading:
            print(reading)
        if ways:
            print("it would fit with one of:", *ways, sep="\n  ")
        elif not made.fits:
            print("no single change makes it fit; --fit looks for several together")
    return EXIT_DONE if made.fits else EXIT_DOES_NOT_FIT


def _warn(config: RunConfig) -> None:
    for sentence in warnings(config):
        report(f"warning: {sentence}")


def _with_text(config: RunConfig, ranks: int) -> tuple[RunConfig, str]:
    """Return `config` with the steps that its epochs come to, and how often its steps read the data, in a sentence.

    `ranks`: those that train. Both rest on the tokens of an earlier preparation; without one there is no sentence, and
    epochs stay.
    """
    from workbench.data.prepare import prepared_tokens

    tokens = prepared_tokens(config.data)
    if not tokens:
        return config, ""
    train = config.train
    a_step = ranks * config.data.sequence_length * train.micro_batch_size * train.gradient_accumulation
    if train.epochs:
        steps = max(1, math.ceil(train.epochs * tokens / a_step))
        config = config.model_copy(update={"train": train.model_copy(update={"steps": steps, "epochs": 0.0})})
    epochs = config.train.steps * a_step / tokens
    return (
        config,
        f"{config.train.steps:,} steps read the {tokens:,} tokens of the data about {epochs:,.2g} times",
    )


def _disk_folder(config: RunConfig) -> Path | None:
    """Return the folder of the disk tier; None where none is named. Raises ConfigurationError where it is not there."""
    named = config.offload.disk_path
    if not named:
        return None
    folder = Path(os.path.realpath(expanded(named, "offload.disk_path")))
    if not folder.is_dir():
        raise ConfigurationError(
            f'offload.disk_path = "{named}": there is no such folder; create it, on a fast local disk'
        )
    return folder


def _check_target(target: Path) -> None:
    """Raise ConfigurationError for a file that is there, or cannot be, before anything is searched."""
    if os.path.lexists(target):
        raise ConfigurationError(f"--write {target}: already exists; name a new file")
    if not target.parent.is_dir():
        wrong = f"there is no folder {target.parent}; create it, or name another"
        raise ConfigurationError(f"--write {target}: {wrong}")


def _write(path: Path, found: Fit, target: Path) -> None:
    """Write the preset at `path` with all that differs from it now as the new file `target`; nothing if nothing fits.

    Raises ConfigurationError where `target` is there, or cannot be written.
    """
    if not found.fits:
        report(f"nothing fits, so {target} is not written")
        return
    before = load_config(path)
    text = changed_preset(path.read_bytes().decode("utf-8-sig"), before, found.plan.config)
    try:
        with target.open("x", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise ConfigurationError(f"--write {target}: cannot be written: {error.strerror or error}") from error
    report(f"written: {target}")


def _fit_as_dict(found: Fit) -> dict[str, Any]:
    return {
        "fits": found.fits,
        "changes": [asdict(change) for change in found.changes],
        "advice": list(found.advice),
        "tried": found.tried,
        "plan": found.plan.as_dict(),
    }
