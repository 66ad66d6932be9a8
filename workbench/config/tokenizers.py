"""What `data.tokenizer` says by itself: the size of a tokenizer that is made and not fetched.

Invariant: no tokenizer is looked for here; of a folder or a hub id nothing is known.
"""

from __future__ import annotations

BPE = "bpe:"
SMALLEST, LARGEST = 257, 1 << 20
"""All bytes and the end of text; beyond a million, a word would have to be rarer than the text is long."""


def is_made_here(spec: str) -> bool:
    """Whether it is "bytes" or a BPE to be trained."""
    return spec == "bytes" or spec.startswith(BPE)


def bpe_size(spec: str) -> int | None:
    """The vocabulary that "bpe:SIZE" asks for; None where it is no number or out of range."""
    try:
        size = int(spec.removeprefix(BPE).replace("_", ""))
    except ValueError:
        return None
    return size if SMALLEST <= size <= LARGEST else None


def made_size(spec: str) -> int | None:
    """The tokens of a tokenizer that is made here: at most, of a BPE. None of any other, or a size that cannot be."""
    if spec == "bytes":
        return SMALLEST
    return bpe_size(spec) if spec.startswith(BPE) else None
