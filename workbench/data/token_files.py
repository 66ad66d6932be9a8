"""The prepared folder: what a source has become, ready to be mapped.

    train.tokens, validation.tokens         uint16 or uint32, little-endian: the documents one after the other
    train.documents, validation.documents   uint64, little-endian: the first token of every document, ascending, first 0
    train.counted, validation.counted       uint8, 0 or 1 for every token: whether it is learnt; absent where all are
    tokens.json                             describes them

Invariant: it appears with a rename, so that a folder that is there is whole.
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from workbench.data.tokenizers import Tokenizer

if TYPE_CHECKING:
    from torch import Tensor

FORMAT_VERSION = 2
SIDES = ("train", "validation")
_DTYPES = {2: "uint16", 4: "uint32"}
_READ_BYTES = 1 << 20


@dataclass(frozen=True)
class Header:
    """What tokens.json says."""

    tokenizer: str
    tokenizer_fingerprint: str
    vocabulary_size: int
    train_tokens: int
    train_documents: int
    validation_tokens: int
    validation_documents: int
    documents: int
    """Of both sides; one that was cut in two counts once."""
    counted: bool
    """Whether there are files that tell which tokens are learnt."""
    fingerprint: str
    notes: list[str] = field(default_factory=list)
    """What the user should know, a sentence each."""
    by_name: bool = True
    """Whether each document's name, or what a record says, alone decided its side."""
    version: int = FORMAT_VERSION
    dtype: str = "uint16"
    byte_order: str = "little"

    @property
    def token_bytes(self) -> int:
        return 2 if self.dtype == "uint16" else 4

    def sizes(self) -> dict[str, int]:
        """The folder's files and how many bytes each has."""
        sizes = {}
        for side in SIDES:
            tokens = getattr(self, f"{side}_tokens")
            sizes[f"{side}.tokens"] = tokens * self.token_bytes
            sizes[f"{side}.documents"] = getattr(self, f"{side}_documents") * 8
            if self.counted:
                sizes[f"{side}.counted"] = tokens
        return sizes


def token_bytes(tokenizer: Tokenizer) -> int:
    """How many bytes hold any id of `tokenizer`."""
    return 2 if tokenizer.vocabulary_size <= 1 << 16 else 4


def write_header(folder: Path, header: Header) -> None:
    """Write tokens.json, with everything in `folder` safe on the disk. Raises OSError."""
    for name in header.sizes():
        descriptor = os.open(folder / name, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    with (folder / "tokens.json").open("w", encoding="utf-8") as text:
        json.dump(asdict(header), text, indent=1)
        text.flush()
        os.fsync(text.fileno())


def read_header(folder: Path) -> Header | None:
    """What a prepared folder says of itself; None where there is none, or one that its files do not fit."""
    try:
        header = Header(**json.loads((folder / "tokens.json").read_bytes()))
        whole = (
            header.version == FORMAT_VERSION
            and header.byte_order == "little"
            and header.dtype in _DTYPES.values()
            and isinstance(header.fingerprint, str)
            and all((folder / name).stat().st_size == size for name, size in header.sizes().items())
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return header if whole else None


def fingerprint(folder: Path, tokenizer: Tokenizer, tokens: dict[str, int], *, counted: bool) -> str:
    """Equal for equal tokens, of which the same are learnt, and a tokenizer with the same ids. Raises OSError."""
    kind = (
        tokenizer.spec
        if tokenizer.spec == "bytes"
        else f"{tokenizer.vocabulary_size} {tokenizer.end_of_text}"
    )
    digest = hashlib.blake2b(f"1 {kind}".encode(), digest_size=16)
    for suffix in ("tokens", "counted") if counted else ("tokens",):
        for side in SIDES:
            with (folder / f"{side}.{suffix}").open("rb") as file:
                while data := file.read(_READ_BYTES):
                    digest.update(data)
            digest.update(tokens[side].to_bytes(8, "little"))
    return digest.hexdigest()


def map_side(folder: Path, header: Header, side: str) -> tuple[Tensor, Tensor, Tensor | None]:
    """Tokens, documents and which tokens are learnt of one side, memory-mapped; not to be written to."""
    import torch

    tokens = getattr(header, f"{side}_tokens")
    documents = getattr(header, f"{side}_documents")

    def mapped(suffix: str, size: int, dtype: torch.dtype) -> Tensor:
        return torch.from_file(str(folder / f"{side}.{suffix}"), shared=False, size=size, dtype=dtype)

    return (
        mapped("tokens", tokens, torch.uint16 if header.token_bytes == 2 else torch.uint32),
        mapped("documents", documents, torch.uint64),
        mapped("counted", tokens, torch.uint8) if header.counted else None,
    )
