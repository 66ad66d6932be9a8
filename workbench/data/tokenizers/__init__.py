"""Which tokenizer `data.tokenizer` names, and what the data and the trainer need of it.

Invariant of every tokenizer: `encode` and the saved tokenizer give the same ids for any UTF-8 text, and no special
token is added to it.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Protocol

from workbench.data.tokenizers.byte_tokenizer import END_OF_TEXT, ByteTokenizer

__all__ = ["END_OF_TEXT", "ByteTokenizer", "Tokenizer", "load_tokenizer"]


class Tokenizer(Protocol):
    """Text to ids and back. Several threads may encode at once."""

    @property
    def spec(self) -> str:
        """What the configuration calls it."""

    @property
    def vocabulary_size(self) -> int:
        """One more than the largest id."""

    @property
    def end_of_text(self) -> int:
        """The id that stands between two documents."""

    @property
    def fingerprint(self) -> str:
        """Equal for tokenizers that give the same ids and have the same chat template."""

    @property
    def chat_template(self) -> str | None:
        """The Jinja source that turns messages into text; None where it has none."""

    @property
    def backend(self) -> Any:
        """The same as a transformers tokenizer, for `apply_chat_template`."""

    @property
    def warnings(self) -> tuple[str, ...]:
        """What the user should know of it, a sentence each."""

    def encode(self, text: bytes | str) -> list[int]:
        """The ids of one text; bytes are UTF-8, and what of them is none becomes U+FFFD where bytes are no tokens."""

    def encode_batch(self, texts: list[str]) -> list[list[int]]:
        """`encode` of each text, faster."""

    def decode(self, ids: Iterable[int]) -> str:
        """The text; what is no UTF-8 becomes U+FFFD, the end of a text its name."""

    def save_pretrained(self, folder: Path) -> None:
        """Write what `AutoTokenizer.from_pretrained(folder)` loads. Raises OSError where the disk refuses."""


def load_tokenizer(spec: str, *, revision: str = "", trust_remote_code: bool = False) -> Tokenizer:
    """The tokenizer that `data.tokenizer` names, but for "bpe:SIZE", which is `bpe_training`'s.

    `revision` is of a hub id. Raises ConfigurationError for one that cannot be had, WorkbenchError where the hub is out
    of reach.
    """
    if spec == "bytes":
        return ByteTokenizer()
    from workbench.data.tokenizers.tokenizer_folders import load_pretrained_tokenizer

    return load_pretrained_tokenizer(spec, revision=revision, trust_remote_code=trust_remote_code)
