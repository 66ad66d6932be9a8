"""The tokenizer that `data.tokenizer` names: bytes, a pretrained one, or a BPE trained on the source.

Invariant of every tokenizer: `encode` and the tokenizer that `save_pretrained` writes give the same ids for any UTF-8
text, and neither adds a special token.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

END_OF_TEXT = "<|endoftext|>"
BLOCK = 1 << 20
"""Characters in a block. A tokenizer takes some hundred bytes for each token while it works."""


class Tokenizer(Protocol):
    """Text to ids and back. Several threads may encode at once."""

    @property
    def spec(self) -> str:
        """The value of `data.tokenizer`."""

    @property
    def vocabulary_size(self) -> int:
        """One more than the largest id."""

    @property
    def end_of_text(self) -> int:
        """The id that separates documents."""

    @property
    def fingerprint(self) -> str:
        """Equal for tokenizers with the same ids and the same chat template."""

    @property
    def chat_template(self) -> str | None:
        """The Jinja source of the chat template; None without one."""

    @property
    def backend(self) -> Any:
        """The transformers tokenizer with the same ids, for `apply_chat_template`."""

    @property
    def warnings(self) -> tuple[str, ...]:
        """Warnings for the user, one sentence each."""

    def encode(self, text: str) -> list[int]:
        """Return the ids of `text`. Half a surrogate pair becomes U+FFFD."""

    def encode_batch(self, texts: list[str]) -> list[list[int]]:
        """Return the ids of each text; faster than `encode` for each."""

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of `ids`; invalid UTF-8 becomes U+FFFD, the end of text its name."""

    def save_pretrained(self, folder: Path) -> None:
        """Write the files that `AutoTokenizer.from_pretrained(folder)` loads. Raises OSError."""


class ByteTokenizer:
    """Ids 0 to 255 are the bytes of UTF-8, 256 is the end of text. It needs no files and has no chat template."""

    spec = "bytes"
    vocabulary_size = 257
    end_of_text = 256
    fingerprint = "bytes"
    chat_template: str | None = None
    warnings: tuple[str, ...] = ()

    @cached_property
    def backend(self) -> Any:
        """The transformers tokenizer with the same ids."""
        from tokenizers import AddedToken, decoders, models, pre_tokenizers
        from tokenizers import Tokenizer as Backend
        from transformers import PreTrainedTokenizerFast

        backend = Backend(models.BPE(vocab=_byte_alphabet(), merges=[]))
        backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        backend.decoder = decoders.ByteLevel()
        backend.add_special_tokens([AddedToken(END_OF_TEXT, special=True, normalized=False)])
        make: Any = PreTrainedTokenizerFast  # has no annotations
        return make(
            tokenizer_object=backend,
            bos_token=END_OF_TEXT,
            eos_token=END_OF_TEXT,
            pad_token=END_OF_TEXT,
            clean_up_tokenization_spaces=False,
            split_special_tokens=True,
        )

    def encode(self, text: str) -> list[int]:
        return list(without_surrogates(text).encode())

    def encode_batch(self, texts: list[str]) -> list[list[int]]:
        return [self.encode(text) for text in texts]

    def decode(self, ids: Iterable[int]) -> str:
        data = b"".join(bytes([i]) if i < 256 else END_OF_TEXT.encode() for i in ids)
        return data.decode(errors="replace")

    def save_pretrained(self, folder: Path) -> None:
        save_backend(self.backend, folder)


def load_tokenizer(spec: str, *, revision: str = "", trust_remote_code: bool = False) -> Tokenizer:
    """Return the tokenizer that `data.tokenizer = spec` names, except "bpe:SIZE" (see `bpe_training`).

    Args:
        revision: branch, tag or commit of a hub id.
        trust_remote_code: run Python code that comes with the tokenizer.

    Raises:
        ConfigurationError: there is no such tokenizer, or it cannot be loaded.
        WorkbenchError: the hub cannot be reached and its cache does not have the tokenizer.
    """
    if spec == "bytes":
        return ByteTokenizer()
    from workbench.data.tokenizers.pretrained import load_pretrained_tokenizer

    return load_pretrained_tokenizer(spec, revision=revision, trust_remote_code=trust_remote_code)


def save_backend(backend: Any, folder: Path) -> None:
    """Save a transformers tokenizer. Raises OSError."""
    try:
        backend.save_pretrained(str(folder))
    except OSError:
        raise
    except Exception as error:  # the tokenizers library's exception for a full disk
        raise OSError(f"{folder}: {error}") from error


def without_surrogates(text: str) -> str:
    """Return `text` with U+FFFD for each half of a surrogate pair: JSON can hold them, UTF-8 cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def _byte_alphabet() -> dict[str, int]:
    """Return each byte's printable character in byte-level BPE (GPT-2, Radford et al. 2019), mapped to the byte."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    alphabet = {chr(byte): byte for byte in printable}
    alphabet.update({chr(256 + index): byte for index, byte in enumerate(others)})
    return alphabet


def text_blocks(pieces: Iterable[str]) -> Iterator[str]:
    """Join `pieces` (each about a block at most) and yield the text in blocks of at most `BLOCK` characters.

    Long texts are tokenized in blocks, so that memory does not grow with a document. Where the blocks end depends on
    the text alone: with a line where it can be, so that tokenizers that split text into words first give the ids of the
    whole text. One that puts a space before a text does so before every block.
    """
    text = ""
    for piece in pieces:
        text += piece
        while len(text) > BLOCK:
            end = _block_end(text)
            yield text[:end]
            text = text[end:]
    if text:
        yield text


def _block_end(text: str) -> int:
    """Return the length of the first block of `text`, which is longer than one block.

    In the second half of the block it takes the last line break between two characters that are not white space, else
    the last line break, else the last space, else the block is full.
    """
    half, at = BLOCK // 2, BLOCK
    while (at := text.rfind("\n", half, at)) >= 0:
        if not text[at - 1].isspace() and not text[at + 1].isspace():
            return at + 1
    line_break = text.rfind("\n", half, BLOCK)
    if line_break >= 0:
        return line_break + 1
    space = text.rfind(" ", half, BLOCK)  # word-level tokens begin with their space
    return space if space >= 0 else BLOCK
