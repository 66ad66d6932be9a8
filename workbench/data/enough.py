"""Whether both sides of a source have enough text, and what a user is told of how much of it is held out."""

from __future__ import annotations

from workbench.config import DataConfig
from workbench.data.split import is_near
from workbench.data.token_files import Header
from workbench.errors import ConfigurationError


class TooLittleError(ConfigurationError):
    """A side has fewer tokens than one sequence."""


def check_enough(training: int, validation: int, config: DataConfig) -> None:
    """Refuse text that cannot fill one sequence."""
    length = config.sequence_length
    if training >= length and validation >= length:
        return
    total = training + validation
    if total < 2 * length:
        advice = "add text, or lower data.sequence_length"
    elif validation < length:
        advice = "raise data.validation_fraction, add text, or lower data.sequence_length"
    else:
        advice = "lower data.validation_fraction, add text, or lower data.sequence_length"
    raise TooLittleError(
        f"data.source has too little text: data.sequence_length = {length} needs as many tokens "
        f"on either side, and data.validation_fraction = {config.validation_fraction} gives {training} for training "
        f"and {validation} for validation; {advice}"
    )


def held_share(header: Header) -> float:
    """Which part of the tokens is held out."""
    return header.validation_tokens / (header.train_tokens + header.validation_tokens)


def held_out(header: Header, config: DataConfig, *, whole: bool, begun: bool) -> tuple[str, ...]:
    """A word where whole documents make the validation side much larger than was asked for."""
    fraction, share = config.validation_fraction, held_share(header)
    if is_near(share, fraction) or share < fraction:
        return ()
    told = f"data.validation_fraction = {fraction:g}: "
    if begun:
        told += f"this run was begun with {share:.0%} of the tokens held out, and goes on so; a new run cuts a document"
    elif whole and not header.counted:
        told += (
            f"the end of a document would be too short for a sequence of {config.sequence_length}, so that whole "
            f"ones are held out, {share:.0%} of the tokens; add text, or lower data.sequence_length"
        )
    else:
        told += (
            f"prompts, chats and ready tokens are not cut, and of these {header.documents:,} documents such large ones "
            f"are held out that {share:.0%} of the tokens are not trained on; give more, smaller ones"
        )
    return (told,)
