"""The forms of `data.tokenizer` that name a tokenizer made here, "bytes" and "bpe:SIZE", and their sizes.

Invariant: no tokenizer is looked for here; nothing is known of a folder or a hub id.
"""

from __future__ import annotations

import difflib
import re

BPE = "bpe:"
USUAL = "bpe:32000"
"""The example in messages."""
SMALLEST, LARGEST = 257, 1 << 20
"""All bytes and the end of text; beyond a million, a word would have to be rarer than the text is long."""


def is_made_here(spec: str) -> bool:
    """Return True for "bytes" and for a BPE to be trained."""
    return spec == "bytes" or spec.startswith(BPE)


def bpe_size(spec: str) -> int | None:
    """Return the vocabulary that "bpe:SIZE" asks for; None where it is no number or out of range."""
    try:
        size = int(spec.removeprefix(BPE).replace("_", ""))
    except ValueError:
        return None
    return size if SMALLEST <= size <= LARGEST else None


def made_size(spec: str) -> int | None:
    """Return the tokens of a tokenizer made here, the most that a BPE may have; None for any other, or a wrong size."""
    if spec == "bytes":
        return SMALLEST
    return bpe_size(spec) if spec.startswith(BPE) else None


_WORD_AND_NUMBER = re.compile(r"([a-z]+)[\W_]*([0-9][0-9_,.']*)?(k?)")
_FORMS = {"bytes": "bytes", "byte": "bytes", "bpe": BPE}
"""The word that a form begins with, and the form."""


def meant_form(spec: str) -> str | None:
    """Return the form of a tokenizer made here that `spec` was probably meant to be ("bpe-2k": "bpe:2000").

    None where it looks like something else: a form is one word with at most a number behind it.
    """
    found = _WORD_AND_NUMBER.fullmatch(spec.strip().lower())
    if found is None or is_made_here(spec):
        return None
    word, number, thousands = found.groups()
    near = difflib.get_close_matches(word, _FORMS, n=1, cutoff=0.8)
    if not near:
        return None
    if _FORMS[near[0]] != BPE:
        return _FORMS[near[0]]
    digits = re.sub("[^0-9]", "", number or "")
    size = f"{BPE}{digits}{'000' * bool(thousands)}"
    return size if bpe_size(size) is not None else USUAL
