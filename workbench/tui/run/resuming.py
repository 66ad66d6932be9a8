"""The question before a run goes on: what of its configuration is to be another from here on.

Of a stopped one that is mostly nothing; one that has done all its steps goes on only with more of them.

Changes are written as `--set` takes them, and mean the same. Invariant: what cannot be read, or makes no configuration,
starts nothing; what a checkpoint cannot go on with is refused by the trainer.
"""

from __future__ import annotations

import shlex
from functools import partial

from workbench.errors import ConfigurationError
from workbench.runs import RESUMABLE, RunDirectory, liveness, read_status
from workbench.tui.dialogs import AskText
from workbench.tui.glyphs import Glyphs

ABOUT = "It goes on from its last checkpoint. Changes, if any, as table.key=value, blanks between them:"
EXAMPLE = "none; or such as train.steps=2000 optimizer.learning_rate=1e-4"
STEPS = "train.steps="
FINISHED = "finished"
GOES_ON = (*RESUMABLE, FINISHED)
"""The states in which a run without a trainer can go on."""


def steps_done(run: RunDirectory) -> int | None:
    """How many steps `run` has done where these are all that it was to do; else None. It reads the disk."""
    status = read_status(run)
    return status.step if liveness(status) == FINISHED else None


def ask_changes(run: RunDirectory, done: int | None, glyphs: Glyphs) -> AskText:
    """The dialog for `run`, of which `steps_done` says `done`; what it gives back is for `overrides_in`."""
    about, begun = ABOUT, ""
    if done is not None:
        about = (
            f"All its {done:,} steps are done. It goes on from its last checkpoint with more of them, and the "
            f"learning rate follows the longer schedule: how many in all, as {STEPS}{2 * done}? Other changes behind "
            "it, as table.key=value."
        )
        begun = STEPS
    wrong = partial(wrong_changes, run, done)
    return AskText(
        f"Resume {run.name}", begun, wrong, yes="Resume", about=about, example=EXAMPLE, glyphs=glyphs
    )


def overrides_in(text: str) -> list[str]:
    """The changes in what was typed, split as a shell splits them. Raises ValueError for a quote without an end."""
    return shlex.split(text)


def wrong_changes(run: RunDirectory, done: int | None, text: str) -> str:
    """What is wrong with the changes in `text`, or with the configuration that they are made to; empty: nothing.

    `done`: see `steps_done`.
    """
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
    # What epochs come to, only the tokens tell.
    return more if done is not None and not config.train.epochs and config.train.steps <= done else ""
