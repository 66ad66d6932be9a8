"""Text to token ids and back, and the same as a Hugging Face tokenizer for whoever loads the model later.

Invariant: `encode` and the saved tokenizer give the same ids for any UTF-8 text.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Protocol

from workbench.errors import ConfigurationError

END_OF_TEXT = "<|endoftext|>"


class Tokenizer(Protocol):
    """What the data and the trainer need of a tokenizer. Ids are below 65,536."""

    @property
    def spec(self) -> str:
        """What `load_tokenizer` made it from."""

    @property
    def vocabulary_size(self) -> int: ...

    @property
    def end_of_text(self) -> int:
        """The id that stands between two documents."""

    def encode(self, text: bytes | str) -> list[int]: ...

    def encode_packed(self, text: bytes) -> bytes:
        """`encode`, as little-endian uint16: how token files hold it."""

    def decode(self, ids: Iterable[int]) -> str:
        """The text; what is no UTF-8 becomes U+FFFD, the end of a text its name."""

    def save_pretrained(self, folder: Path) -> None:
        """Write what `AutoTokenizer.from_pretrained(folder)` loads. Raises OSError where the disk refuses."""


def load_tokenizer(spec: str) -> Tokenizer:
    """The tokenizer that `data.tokenizer` names. Raises ConfigurationError for one that is not known."""
    if spec == "bytes":
        return ByteTokenizer()
    raise ConfigurationError(f'data.tokenizer = {spec!r}: only "bytes" can be used so far')


class ByteTokenizer:
    """Ids 0 to 255 are the bytes of UTF-8, 256 is the end of a text."""

    spec = "bytes"
    vocabulary_size = 257
    end_of_text = 256

    def encode(self, text: bytes | str) -> list[int]:
        return list(text.encode() if isinstance(text, str) else text)

    def encode_packed(self, text: bytes) -> bytes:
        packed = bytearray(2 * len(text))
        packed[::2] = text
        return bytes(packed)

    def decode(self, ids: Iterable[int]) -> str:
        data = b"".join(bytes([i]) if i < 256 else END_OF_TEXT.encode() for i in ids)
        return data.decode(errors="replace")

    def save_pretrained(self, folder: Path) -> None:
        from tokenizers import AddedToken, decoders, models, pre_tokenizers
        from tokenizers import Tokenizer as Backend
        from transformers import PreTrainedTokenizerFast

        backend = Backend(models.BPE(vocab=_byte_alphabet(), merges=[]))
        backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        backend.decoder = decoders.ByteLevel()
        backend.add_special_tokens([AddedToken(END_OF_TEXT, special=True, normalized=False)])
        make: Any = PreTrainedTokenizerFast  # has no annotations
        saved = make(
            tokenizer_object=backend,
            bos_token=END_OF_TEXT,
            eos_token=END_OF_TEXT,
            pad_token=END_OF_TEXT,
            clean_up_tokenization_spaces=False,
            split_special_tokens=True,
        )
        try:
            saved.save_pretrained(str(folder))
        except OSError:
            raise
        except Exception as error:  # what the tokenizers library makes of a full disk
            raise OSError(f"{folder}: {error}") from error


def _byte_alphabet() -> dict[str, int]:
    """Each byte's printable stand-in in byte-level BPE (GPT-2, Radford et al. 2019), mapped to the byte."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    alphabet = {chr(byte): byte for byte in printable}
    alphabet.update({chr(256 + index): byte for index, byte in enumerate(others)})
    return alphabet
