"""The question before a run goes on: which fields of its configuration change.

Of a stopped run mostly none; one that has done all its steps goes on only with more of them. Changes are written as
`--set` takes them. Invariant: what cannot be read, or makes no configuration, starts nothing; what a checkpoint cannot
go on with is refused by the trainer.
"""

from __future__ import annotations

import shlex
from functools import partial

from workbench.errors import ConfigurationError
from workbench.runs import RESUMABLE, RunDirectory, liveness, read_status
from workbench.tui.dialogs import AskText
from workbench.tui.glyphs import Glyphs

STEPS = "train.steps="
FINISHED = "finished"
GOES_ON = (*RESUMABLE, FINISHED)
"""The states in which a run without a trainer can go on."""


def steps_done(run: RunDirectory) -> int | None:
    """Return the steps of a run that has done all of them; else None. It reads the disk."""
    status = read_status(run)
    return status.step if liveness(status) == FINISHED else None


def ask_changes(run: RunDirectory, done: int | None, glyphs: Glyphs) -> AskText:
    """Return the dialog for a run of which `steps_done` is `done`; its answer is for `overrides_in`."""
    about = "It goes on from its last checkpoint. Changes, if any, as table.key=value, blanks between them:"
    if done is not None:
        about = (
            f"All its {done:,} steps are done. It goes on from its last checkpoint with more of them, and the "
            f"learning rate follows the longer schedule: how many in all, as {STEPS}{2 * done}? Other changes behind "
            "it, as table.key=value."
        )
    return AskText(
        f"Resume {run.name}",
        "" if done is None else STEPS,
        partial(wrong_changes, run, done),
        yes="Resume",
        about=about,
        example="none; or such as train.steps=2000 optimizer.learning_rate=1e-4",
        glyphs=glyphs,
    )


def overrides_in(text: str) -> list[str]:
    """Split what was typed as a shell does. Raises ValueError for a quote without an end."""
    return shlex.split(text)


def wrong_changes(run: RunDirectory, done: int | None, text: str) -> str:
    """Return what is wrong with the changes in `text`, or with the configuration that they make; empty: nothing."""
    from workbench.config import parse_config

    more = "" if done is None else f"all {done:,} steps are done: name more of them, as {STEPS}{2 * done}"
    if more and text.strip() in ("", STEPS):
        return more
    try:
        config = parse_config(run.config.read_text(encoding="utf-8"), str(run.config), overrides_in(text))
    except ConfigurationError as error:
        return str(error)
    except OSError as error:
        return f"{run.config}: cannot be read: {error.strerror or error}"
    except ValueError as error:
        return f"cannot be read: {str(error)[:1].lower()}{str(error)[1:]}"
    # The trainer alone knows how many steps an epoch has.
    return more if done is not None and not config.train.epochs and config.train.steps <= done else ""
