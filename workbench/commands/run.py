"""`workbench run`: train a preset, or resume a run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from workbench.errors import ConfigurationError


def run(
    *,
    preset: str | None,
    overrides: Sequence[str],
    resume: str | None,
    detach: bool,
    runs: Path | None,
    run_directory: Path | None,
) -> int:
    """Train and return the exit code; see `workbench.training.command.run`.

    Raises:
        ConfigurationError: neither a preset nor a run to resume is named.
    """
    if preset is None and resume not in (None, "auto") and not Path(resume).is_dir():
        # In `run --resume PRESET`, argparse takes the preset for the value of --resume.
        preset, resume = _preset_named(resume), "auto"
    if preset is None and resume in (None, "auto") and run_directory is None:
        raise ConfigurationError(
            "run: no preset is named; name one (`workbench presets` lists them), or --resume a run's folder"
        )
    from workbench.training.command import run as train

    return train(
        preset=preset,
        overrides=overrides,
        resume=resume if resume in (None, "auto") else Path(resume),
        detach=detach,
        runs=runs,
        run_directory=run_directory,
    )


def _preset_named(name: str) -> str:
    from workbench.presets import find_preset

    try:
        find_preset(name)
    except ConfigurationError as error:
        raise ConfigurationError(
            f"--resume {name}: there is no such run folder, nor a preset\n{error}"
        ) from None
    return name
