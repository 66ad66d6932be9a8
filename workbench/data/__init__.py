"""From text to batches, in the order of the files below.

    sources/        finds the files and datasets that `data.source` names and reads them an item at a time
    records, chats  turn a JSON record or a chat into token ids and a loss mask
    tokenizers      bytes and pretrained tokenizers; bpe_training: those that are trained on the source
    tokenizing      encodes a source on several threads, in order
    split           decides which documents are for validation
    token_files     the prepared folder: token ids, document starts and loss masks, memory-mapped
    prepare         all of the above behind one call, with a cache
    batches/        samplers with an exact cursor, and evaluation batches

Invariant: the tokens follow from the source, the tokenizer and the `[data]` table alone, never from the machine.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class RecordError(Exception):
    """A record cannot be read. The message says what is wrong and what would be right; the reader adds the place."""


def kind_of(value: Any) -> str:
    """Return the name of a JSON value's type, with its article: "a string"."""
    for kind, name in _KINDS:
        if isinstance(value, kind):
            return name
    return f"a {type(value).__name__}"


def names_of(record: Mapping[str, Any]) -> str:
    """Return the names of a record's fields, for a message."""
    return ", ".join(f'"{name}"' for name in record) or "no field"


_KINDS: tuple[tuple[type | tuple[type, ...], str], ...] = (
    (bool, "true or false"),
    (str, "a string"),
    ((int, float), "a number"),
    (Mapping, "an object"),
    ((list, tuple), "a list"),
    (type(None), "null"),
)
