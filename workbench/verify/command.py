"""`workbench verify`: train a preset's own configuration beside plain torch, and say row by row what holds."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Sequence

import torch

from workbench.config import load_config
from workbench.config.references import REFERENCES
from workbench.errors import EXIT_DONE, EXIT_ERROR, ConfigurationError, DoesNotFitError
from workbench.presets import find_preset
from workbench.verify.rows import Check, Row, Trial, guarded
from workbench.verify.table import json_text, lines
from workbench.verify.timing_checks import check_resume, check_timing
from workbench.verify.training_checks import (
    check_accumulation,
    check_clipping,
    check_first_step,
    check_overflow,
    check_ties,
    check_training,
    check_update,
)
from workbench.verify.trial_setup import open_trial

STEPS = 6
FEWEST_STEPS = 5

CHECKS: dict[str, Check] = {
    "first step": check_first_step,
    "accumulation": check_accumulation,
    "clipping": check_clipping,
    "overflow": check_overflow,
    "tied weights": check_ties,
    "training": check_training,
    "update": check_update,
    "lanes held up": check_timing,
    "save and resume": check_resume,
}
"""The checks by name, in the order of their rows."""


def verify(
    *,
    preset: str,
    overrides: Sequence[str] = (),
    full: bool = False,
    steps: int | None = None,
    as_json: bool = False,
) -> int:
    """Verify `preset` and print its rows; the exit code is 0 only if every row holds.

    `full`: with the model itself instead of a smaller one.

    Raises:
        ConfigurationError: the preset, its model, device or disk folder is wrong, something that it names is not there,
            or `steps` are too few.
        DoesNotFitError: memory is too small, with `full` for the model and what it is verified by.
    """
    steps = STEPS if steps is None else steps
    if steps < FEWEST_STEPS:
        raise ConfigurationError(
            f"--steps {steps}: at least {FEWEST_STEPS} are needed to stop and go on in between"
        )
    path = find_preset(preset)
    config = load_config(path, overrides, look_for=REFERENCES)
    _quiet_transformers()
    try:
        with open_trial(config, steps, full=full, tell=_tell) as trial:
            about = _about(path.stem, trial, steps)
            _tell(f"{path.stem}: {about['model']}; trainings of {steps} steps on {about['device']}")
            rows = list(check_all(trial))
    except (MemoryError, torch.OutOfMemoryError) as error:
        raise DoesNotFitError(f"out of memory while verifying: {error}") from error
    print(json_text(rows, about) if as_json else "\n".join(lines(rows)))
    return EXIT_DONE if all(row.holds for row in rows) else EXIT_ERROR


def check_all(trial: Trial) -> Iterator[Row]:
    """The rows of every check."""
    for number, (name, check) in enumerate(CHECKS.items(), start=1):
        _tell(f"{number}/{len(CHECKS)} {name}")
        yield from guarded(name, check, trial)


def _about(preset: str, trial: Trial, steps: int) -> dict[str, object]:
    subject = trial.bench.subject
    return {
        "preset": preset,
        "model": str(subject),
        "parameters": subject.parameters,
        "full": not subject.shrunken,
        "steps": steps,
        "device": str(trial.device),
    }


def _quiet_transformers() -> None:
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()


def _tell(message: str) -> None:
    with contextlib.suppress(OSError, ValueError):
        print(f"workbench: verify: {message}", file=sys.stderr, flush=True)
