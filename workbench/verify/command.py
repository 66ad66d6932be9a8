"""`workbench verify`: train a preset's own configuration beside plain torch, and say row by row what holds."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterator, Sequence

import torch
from transformers.utils import logging

from workbench.config import load_config
from workbench.config.references import REFERENCES
from workbench.errors import EXIT_DONE, EXIT_ERROR, ConfigurationError, DoesNotFitError
from workbench.presets import find_preset
from workbench.verify.checks import (
    Check,
    Row,
    check_accumulation,
    check_clipping,
    check_first_step,
    check_overflow,
    check_resume,
    check_ties,
    check_timing,
    check_training,
    check_update,
    guarded,
)
from workbench.verify.ranks import check_ranks
from workbench.verify.trial import open_trial
from workbench.virtual_cuda import Order, VirtualCuda

STEPS = 6
FEWEST_STEPS = 5
HEADINGS = ("", "what was compared", "difference", "allowed", "", "")
LONGEST_NOTE = 150
VIRTUAL = "virtual"
VIRTUAL_BYTES = 16 << 30
"""The memory of the virtual device; of the host's it takes what is used."""

CHECKS: dict[str, Check] = {
    "first step": check_first_step,
    "accumulation": check_accumulation,
    "clipping": check_clipping,
    "overflow": check_overflow,
    "tied weights": check_ties,
    "training": check_training,
    "update": check_update,
    "delayed lanes": check_timing,
    "save and resume": check_resume,
}
"""The checks by name, in the order of their rows."""


def verify(
    *,
    preset: str,
    overrides: Sequence[str] = (),
    full: bool = False,
    steps: int | None = None,
    device: str = "",
    gpus: int | None = None,
    as_json: bool = False,
) -> int:
    """Verify `preset` and print its rows; the exit code is 0 only if every row holds.

    `full`: with the model itself instead of a smaller one. `device`: instead of the configuration's; "virtual" is a
    CUDA device without a GPU, whose operations run in a random order among those that CUDA allows. `gpus`: so many
    ranks, as processes on the CPU, are compared with one that takes all their micro-batches.

    Raises:
        ConfigurationError: the preset, its model, device or disk folder is wrong, something that it names is not there,
            or `steps` are too few.
        DoesNotFitError: memory is too small, with `full` for the model and what it is verified by.
    """
    steps = STEPS if steps is None else steps
    if steps < FEWEST_STEPS:
        raise ConfigurationError(
            f"--steps {steps}: at least {FEWEST_STEPS} are needed to stop and resume in between"
        )
    if gpus is not None and device not in ("", "cpu"):
        raise ConfigurationError(
            f"--device {device}: ranks are verified as processes on the CPU; leave it out"
        )
    path = find_preset(preset)
    virtual = VirtualCuda(Order.RANDOM, device_bytes=VIRTUAL_BYTES) if device == VIRTUAL else None
    if device:
        overrides = [*overrides, f"train.device={'cuda' if virtual is not None else device}"]
    ranks = 1 if gpus is None else gpus
    overrides = [*overrides, f"parallel.gpus={ranks}", *(["train.device=cpu"] if ranks > 1 else [])]
    config = load_config(path, overrides, look_for=REFERENCES)
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        with (
            virtual or contextlib.nullcontext(),
            open_trial(config, steps, full=full, report=_report) as trial,
        ):
            subject = trial.subject
            about = {
                "preset": path.stem,
                "model": str(subject),
                "parameters": subject.parameters,
                "full": not subject.shrunken,
                "steps": steps,
                "device": device or str(trial.device.torch_device),
            }
            _report(f"{path.stem}: {subject}; trainings of {steps} steps on {about['device']}")
            rows: list[Row] = []
            checks = {**CHECKS, **({"ranks": check_ranks} if ranks > 1 else {})}
            for number, (name, check) in enumerate(checks.items(), start=1):
                _report(f"{number}/{len(checks)} {name}")
                rows += guarded(name, check, trial)
    except (MemoryError, torch.OutOfMemoryError) as error:
        raise DoesNotFitError(f"out of memory while verifying: {error}") from error
    if virtual is not None:
        rows += _order_of_the_device(virtual)
    holds = all(row.holds for row in rows)
    if as_json:
        print(json.dumps({**about, "holds": holds, "rows": [row.as_dict() for row in rows]}, indent=2))
    else:
        print("\n".join(table(rows)))
    return EXIT_DONE if holds else EXIT_ERROR


def _order_of_the_device(virtual: VirtualCuda) -> Iterator[Row]:
    """Yield what the virtual device saw of its own use."""
    races = [str(race) for race in virtual.races]
    done = f"{virtual.queues.operations:,} operations"
    yield Row(
        "races", "operations on the same bytes have an order", not races, note=races[0] if races else done
    )
    faults = virtual.faults
    yield Row(
        "host memory",
        "registered while it is mapped, and not after",
        not faults,
        note=faults[0] if faults else "",
    )


def table(rows: Sequence[Row]) -> Iterator[str]:
    """Yield the table line by line, and how many rows hold."""
    cells = [HEADINGS, *map(_cells, rows)]
    widths = [max(len(line[column]) for line in cells) for column in range(len(HEADINGS))]
    for line in cells:
        yield "  ".join(f"{cell:<{width}}" for cell, width in zip(line, widths, strict=True)).rstrip()
    failed = sum(not row.holds for row in rows)
    yield ""
    yield f"{failed} of {len(rows)} rows FAILED" if failed else f"all {len(rows)} rows pass"


def _cells(row: Row) -> tuple[str, ...]:
    worst, allowed = ("" if number is None else f"{number:.1e}" for number in (row.worst, row.allowed))
    note = row.note if len(row.note) <= LONGEST_NOTE else row.note[: LONGEST_NOTE - 1] + "…"
    return row.name, row.compared, worst, allowed, "ok" if row.holds else "FAILED", note


def _report(message: str) -> None:
    with contextlib.suppress(OSError, ValueError):
        print(f"workbench: verify: {message}", file=sys.stderr, flush=True)
