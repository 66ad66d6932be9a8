"""A tokenizer that comes in files: a folder, or what a hub id names, as transformers loads it.

Its text goes straight to the Rust tokenizer below, which lets other threads run while it works. Invariant: the ids are
those of `AutoTokenizer.from_pretrained(...)(text, add_special_tokens=False)`, before and after `save_pretrained`.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterable
from functools import cached_property
from pathlib import Path
from typing import Any

from workbench.data.tokenizers.byte_tokenizer import END_OF_TEXT, sound
from workbench.data.tokenizers.seams import Piece, Read, pieces
from workbench.errors import ConfigurationError

OWN_FILES = (
    "tokenizer*",
    "*.model",
    "*.tiktoken",
    "*.spm",
    "vocab*",
    "merges*",
    "added_tokens*",
    "special_tokens_map*",
    "chat_template*",
    "additional_chat_templates/*",
)
"""What belongs to a tokenizer in a model's folder; no pickle among it."""
WHOLE = 1 << 18
"""A text is encoded whole up to so many characters (or bytes, in a file), a longer one in pieces of so many: what a
tokenizer keeps of a token while it works takes a hundred times the token's place."""


class PretrainedTokenizer:
    """Wraps the transformers tokenizer `backend`, loaded for the configuration's `spec` from `folder`.

    Raises:
        ConfigurationError: it has no token that could end a text.
    """

    def __init__(self, spec: str, backend: Any, folder: Path | None = None) -> None:
        self.spec = spec
        self.backend = backend
        self.warnings: tuple[str, ...] = ()
        self.end_of_text = self._find_end_of_text()
        self._folder = folder
        self._rust = (
            getattr(backend, "backend_tokenizer", None) if getattr(backend, "is_fast", False) else None
        )
        if self._rust is not None:  # once and for all, for several threads encode with it
            self._rust.no_padding()
            self._rust.no_truncation()
        self.vocabulary_size: int = max(backend.get_vocab().values()) + 1

    @property
    def chat_template(self) -> str | None:
        """The Jinja source; of several named ones the one called "default"."""
        template = getattr(self.backend, "chat_template", None)
        if isinstance(template, dict):
            template = template.get("default")
        return template if isinstance(template, str) and template else None

    @cached_property
    def fingerprint(self) -> str:
        if self._rust is not None:
            content = self._rust.to_str()
        else:
            content = json.dumps([type(self.backend).__name__, sorted(self.backend.get_vocab().items())])
        extra = json.dumps([self.end_of_text, self.chat_template])
        return hashlib.sha256(f"{content}\0{extra}".encode()).hexdigest()[:32]

    def encode(self, text: bytes | str) -> list[int]:
        return self.encode_batch([text if isinstance(text, str) else text.decode(errors="replace")])[0]

    def encode_batch(self, texts: list[str]) -> list[list[int]]:
        long = [index for index, text in enumerate(texts) if len(text) > WHOLE]
        if not long:
            return self._encode_whole(texts)
        short = self._encode_whole([text if len(text) <= WHOLE else "" for text in texts])
        for index in long:
            short[index] = self._encode_long(texts[index])
        return short

    def probe(self, text: str) -> tuple[list[int], list[int | None]]:
        """The ids of `text`, and to which word of it each belongs (None where the tokenizer does not tell)."""
        if self._rust is None:
            ids = self._encode_whole([text])[0]
            return ids, [None] * len(ids)
        encoding = self._rust.encode(sound(text), add_special_tokens=False)
        return encoding.ids, encoding.word_ids

    def encode_piece(self, read: Read, piece: Piece) -> list[int]:
        """The ids of a piece of a text, without those of its neighbours. `read`: the text between two places."""
        ids = piece.trimmed(self._encode_whole([read(piece.first, piece.last)])[0])
        if ids is None:
            ids = piece.with_seams(self._encode_whole([read(*piece.middle())])[0])
        return ids

    def decode(self, ids: Iterable[int]) -> str:
        text: str = self.backend.decode(
            list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False
        )
        return text

    def save_pretrained(self, folder: Path) -> None:
        try:
            self.backend.save_pretrained(str(folder))
        except OSError:
            raise
        except Exception as error:  # what the tokenizers library makes of a full disk
            raise OSError(f"{folder}: {error}") from error
        for path in _own_files(self._folder):  # those that other programs read, such as tokenizer.model
            target = folder / path.name
            if not target.exists():
                shutil.copyfile(path, target)

    def _encode_whole(self, texts: list[str]) -> list[list[int]]:
        if self._rust is None:
            return [list(self.backend.encode(sound(text), add_special_tokens=False)) for text in texts]
        encodings = self._rust.encode_batch_fast([sound(text) for text in texts], add_special_tokens=False)
        return [encoding.ids for encoding in encodings]

    def _encode_long(self, text: str) -> list[int]:
        def read(first: int, last: int) -> str:
            return text[first:last]

        ids: list[int] = []
        for piece in pieces(self, read, 0, len(text), WHOLE):
            ids += self.encode_piece(read, piece)
        return ids

    def _find_end_of_text(self) -> int:
        backend = self.backend
        if backend.eos_token_id is not None:
            return int(backend.eos_token_id)
        vocabulary = backend.get_vocab()
        if END_OF_TEXT in vocabulary:
            return int(vocabulary[END_OF_TEXT])
        for kind in ("bos", "sep"):
            index = getattr(backend, f"{kind}_token_id", None)
            if index is not None:
                token = getattr(backend, f"{kind}_token")
                self.warnings = (
                    f"the tokenizer {self.spec!r} has no end-of-text token (eos_token); its {kind}_token {token!r} "
                    "stands between documents instead",
                )
                return int(index)
        raise ConfigurationError(
            f"data.tokenizer = {self.spec!r}: it has no token that could end a text (eos_token, bos_token or "
            'sep_token); add "eos_token" to its tokenizer_config.json'
        )


def _own_files(folder: Path | None) -> list[Path]:
    if folder is None:
        return []
    return sorted({path for pattern in OWN_FILES for path in folder.glob(pattern) if path.is_file()})
