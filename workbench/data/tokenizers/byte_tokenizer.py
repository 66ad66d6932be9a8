"""The tokenizer that needs no training and no files: a byte is a token.

Invariant: `encode` and what `save_pretrained` writes give the same ids for any UTF-8 text.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from pathlib import Path
from typing import Any

END_OF_TEXT = "<|endoftext|>"


class ByteTokenizer:
    """Ids 0 to 255 are the bytes of UTF-8, 256 is the end of a text. It has no chat template."""

    spec = "bytes"
    vocabulary_size = 257
    end_of_text = 256
    fingerprint = "bytes"
    chat_template: str | None = None
    warnings: tuple[str, ...] = ()

    @cached_property
    def backend(self) -> Any:
        """The same as a transformers tokenizer."""
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

    def encode(self, text: bytes | str) -> list[int]:
        return list(sound(text).encode() if isinstance(text, str) else text)

    def encode_batch(self, texts: list[str]) -> list[list[int]]:
        return [list(sound(text).encode()) for text in texts]

    def encode_packed(self, text: bytes) -> bytes:
        """`encode`, as little-endian uint16: how token files hold it."""
        packed = bytearray(2 * len(text))
        packed[::2] = text
        return bytes(packed)

    def decode(self, ids: Iterable[int]) -> str:
        data = b"".join(bytes([i]) if i < 256 else END_OF_TEXT.encode() for i in ids)
        return data.decode(errors="replace")

    def save_pretrained(self, folder: Path) -> None:
        try:
            self.backend.save_pretrained(str(folder))
        except OSError:
            raise
        except Exception as error:  # what the tokenizers library makes of a full disk
            raise OSError(f"{folder}: {error}") from error


def sound(text: str) -> str:
    """`text`, with U+FFFD for every half of a surrogate pair: JSON can write what UTF-8 cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def _byte_alphabet() -> dict[str, int]:
    """Each byte's printable stand-in in byte-level BPE (GPT-2, Radford et al. 2019), mapped to the byte."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    alphabet = {chr(byte): byte for byte in printable}
    alphabet.update({chr(256 + index): byte for index, byte in enumerate(others)})
    return alphabet
