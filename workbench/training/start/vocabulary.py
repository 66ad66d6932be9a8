"""Whether the model has an output for every token that its run will meet.

A tokenizer may well have tokens beyond those, which no text of the run uses. Invariant: an id without an output never
reaches the model; those that occur are looked for, where there can be any.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor

from workbench.config import RunConfig
from workbench.config.rules import rounded_up, vocabulary_warning
from workbench.config.tokenizers import made_size
from workbench.data.prepare import TokenData
from workbench.errors import ConfigurationError

READ_TOKENS = 1 << 24


def check_vocabulary(config: RunConfig, shape: Any, data: TokenData) -> Iterator[str]:
    """What the user should know of how tokenizer and model go together; `shape`: the model's configuration.

    Raises:
        ConfigurationError: a token of the text, of the sample's prompt, or the end of a text has no output.
    """
    outputs: int = shape.get_text_config().vocab_size
    tokens = data.tokenizer.vocabulary_size
    if made_size(config.data.tokenizer) is None:  # else it was told before there were tokens
        yield vocabulary_warning(config, outputs, tokens)
    if tokens <= outputs:
        return
    largest = _largest_id(config, data)
    if largest < outputs:
        yield (
            f"the tokenizer has {tokens:,} tokens and the model {outputs:,} outputs; none of the others is in the text"
        )
        return
    used = f", and id {largest:,} occurs" if largest < tokens - 1 else ""
    way_out = (
        "choose its own in data.tokenizer"
        if config.model.pretrained
        else f"give the model at least as many, such as {rounded_up(tokens)}, or choose another data.tokenizer"
    )
    raise ConfigurationError(
        f"model.config.vocab_size = {outputs}: the tokenizer has {tokens} tokens{used}; {way_out}"
    )


def _largest_id(config: RunConfig, data: TokenData) -> int:
    """The largest id that the model is given in training, evaluation and samples."""
    prompt = data.tokenizer.encode(config.sample.prompt) if config.sample.tokens else []
    parts = [part for side in (data.train, data.validation) for part in _parts(side)]
    return max(data.tokenizer.end_of_text, *prompt, *(int(part.numpy().max()) for part in parts))


def _parts(side: Tensor) -> Iterator[Tensor]:
    return (part for part in side.split(READ_TOKENS) if len(part))
