"""Files that hold tokens already: one-dimensional .npy arrays of uint16 or uint32.

Their documents are told apart by the tokenizer's end of text. Invariant: the tokens are taken as they are; only an end
of text is added to a file that does not end with one, where a document of another follows.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from workbench.data.parts import TRAINING, VALIDATION, TokensPart
from workbench.data.sources import Document
from workbench.data.tokenizers import Tokenizer
from workbench.errors import ConfigurationError

PART_TOKENS = 1 << 22


def tokens_parts(
    document: Document, tokenizer: Tokenizer, validation_fraction: float
) -> Iterator[TokensPart]:
    """The parts of a file of tokens: its last `validation_fraction` is for validation, from a document's beginning on
    where one is near."""
    tokens = _mapped(document.path)
    at = _border(tokens, tokenizer.end_of_text, validation_fraction)
    for start, stop, share in ((0, at, TRAINING), (at, len(tokens), VALIDATION)):
        for begin in range(start, stop, PART_TOKENS):
            end = min(begin + PART_TOKENS, stop)
            size = (end - begin) * tokens.itemsize
            yield TokensPart(document.path, start, stop, begin, end, share, size)


def documents_of(part: TokensPart, tokenizer: Tokenizer) -> Iterator[tuple[list[int], bool, bool]]:
    """The documents of a part, or what it has of them: ids, whether one begins with them, whether the file's side ends.

    Raises ConfigurationError for an id that the tokenizer does not have.
    """
    ids = np.array(_mapped(part.path)[part.begin : part.end])
    largest = int(ids.max())
    if largest >= tokenizer.vocabulary_size:
        place = part.begin + int(ids.argmax())
        raise ConfigurationError(
            f"data.source: {part.path}: token {place} is {largest:,}, and the vocabulary of data.tokenizer = "
            f'"{tokenizer.spec}" has {tokenizer.vocabulary_size:,}; name the tokenizer that the tokens were made with'
        )
    stops = np.flatnonzero(ids == tokenizer.end_of_text) + 1
    if not len(stops) or stops[-1] != len(ids):
        stops = np.append(stops, len(ids))
    begins = part.begin == part.start or _ends_before(part, tokenizer)
    first = 0
    for stop in stops.tolist():
        yield ids[first:stop].tolist(), begins, part.begin + stop == part.stop
        first, begins = stop, True


def _ends_before(part: TokensPart, tokenizer: Tokenizer) -> bool:
    return int(_mapped(part.path)[part.begin - 1]) == tokenizer.end_of_text


def _border(tokens: Any, end_of_text: int, validation_fraction: float) -> int:
    """Where validation begins: at the document next to the fraction's place that leaves from half to twice of it."""
    count = len(tokens)
    wanted = max(1, round(count * validation_fraction))
    at = count - wanted
    first, last = max(1, at - wanted), min(count - 1, at + wanted // 2)
    begins = first + np.flatnonzero(tokens[first - 1 : last] == end_of_text)
    return int(begins[np.abs(begins - at).argmin()]) if len(begins) else at


def _mapped(path: Path) -> Any:
    try:
        return np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise ConfigurationError(f"data.source: {path} cannot be read: {error}") from error
