"""The question before a stopped run goes on: what of its configuration is to be another from here on, mostly nothing.

Changes are written as `--set` takes them, and mean the same. Invariant: what cannot be read, or makes no configuration,
starts nothing; what a checkpoint cannot go on with is refused by the trainer.
"""

from __future__ import annotations

import shlex
from functools import partial

from workbench.errors import ConfigurationError
from workbench.runs import RunDirectory
from workbench.tui.dialogs import AskText
from workbench.tui.glyphs import Glyphs

ABOUT = "It goes on from its last checkpoint. Changes, if any, as table.key=value, blanks between them:"
EXAMPLE = "none; or such as train.steps=2000 optimizer.learning_rate=1e-4"


def ask_changes(run: RunDirectory, glyphs: Glyphs) -> AskText:
    """The dialog for `run`; what it gives back is for `overrides_in`."""
    wrong = partial(wrong_changes, run)
    return AskText(f"Resume {run.name}", "", wrong, yes="Resume", about=ABOUT, example=EXAMPLE, glyphs=glyphs)


def overrides_in(text: str) -> list[str]:
    """The changes in what was typed, split as a shell splits them. Raises ValueError for a quote without an end."""
    return shlex.split(text)


def wrong_changes(run: RunDirectory, text: str) -> str:
    """What is wrong with the changes in `text`, or with the configuration that they are made to; empty: nothing."""
    from workbench.config import parse_config

    try:
        parse_config(run.config.read_text(encoding="utf-8"), str(run.config), overrides_in(text))
    except ConfigurationError as error:
        return str(error)
    except OSError as error:
        return f"{run.config}: cannot be read: {error.strerror or error}"
    except ValueError as error:
        return f"cannot be read: {str(error)[:1].lower()}{str(error)[1:]}"
    return ""
