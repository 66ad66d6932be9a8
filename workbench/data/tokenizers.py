"""The tokenizer that `data.tokenizer` names: bytes, or a pretrained one; `bpe_training` makes those of "bpe:SIZE".

A pretrained one is a folder, a tokenizer.json, or a hub id, loaded with transformers. Text goes straight to the Rust
tokenizer below it, which releases the interpreter lock while it works.

Invariant: `encode` and the tokenizer that `save_pretrained` writes give the same ids for any UTF-8 text, a block of a
long text at a time, and neither adds a special token. A local folder is read without network; of a hub id only the
tokenizer's files are fetched; pickles are never read, and Python files run only with `trust_remote_code`.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

from workbench.config.references import nearest_file
from workbench.errors import ConfigurationError, WorkbenchError, brief
from workbench.model import hub
from workbench.system.folders import expanded

END_OF_TEXT = "<|endoftext|>"
BLOCK = 1 << 20
"""Characters in a block. A tokenizer takes some hundred bytes for each token while it works."""

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
"""The files of a tokenizer in a model's folder."""
_KNOWN_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "vocab.json",
    "vocab.txt",
    "spiece.model",
)


class ByteTokenizer:
    """Ids 0 to 255 are the bytes of UTF-8, 256 is the end of text. It needs no files and has no chat template.

    Its attributes and methods are those of `PretrainedTokenizer`. Several threads may encode with either at once.
    """

    spec = "bytes"
    vocabulary_size = 257
    end_of_text = 256
    fingerprint = "bytes"
    chat_template: str | None = None
    warnings: tuple[str, ...] = ()

    @cached_property
    def backend(self) -> Any:
        """The transformers tokenizer with the same ids."""
        from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

        rust = Tokenizer(models.BPE(vocab=_byte_alphabet(), merges=[]))
        rust.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        rust.decoder = decoders.ByteLevel()
        rust.add_special_tokens([AddedToken(END_OF_TEXT, special=True, normalized=False)])
        return made_backend(rust, split_special_tokens=True)

    def encode(self, text: str) -> list[int]:
        return list(without_surrogates(text).encode())

    def encode_batch(self, texts: list[str]) -> list[list[int]]:
        return [self.encode(text) for text in texts]

    def decode(self, ids: Iterable[int]) -> str:
        data = b"".join(bytes([i]) if i < 256 else END_OF_TEXT.encode() for i in ids)
        return data.decode(errors="replace")

    def save_pretrained(self, folder: Path) -> None:
        save_backend(self.backend, folder)


class PretrainedTokenizer:
    """A transformers tokenizer, `backend`, that was loaded from `folder` for `data.tokenizer = spec`.

    `end_of_text`: the id that separates documents. `vocabulary_size`: one more than the largest id. `fingerprint`:
    equal for tokenizers with the same ids and the same chat template. `warnings`: for the user, one sentence each.

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
        if self._rust is not None:  # set here once: several threads encode with it later
            self._rust.no_padding()
            self._rust.no_truncation()
        self.vocabulary_size: int = max(backend.get_vocab().values()) + 1

    @property
    def chat_template(self) -> str | None:
        """The Jinja source of the chat template; with several named templates, the one named "default"."""
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

    def encode(self, text: str) -> list[int]:
        """Return the ids of `text`. Half a surrogate pair becomes U+FFFD."""
        return self.encode_batch([text])[0]

    def encode_batch(self, texts: list[str]) -> list[list[int]]:
        """Return the ids of each text; faster than `encode` for each."""
        short = iter(self._encode([text for text in texts if len(text) <= BLOCK]))
        return [next(short) if len(text) <= BLOCK else self._encode_long(text) for text in texts]

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of `ids`; invalid UTF-8 becomes U+FFFD, the end of text its name."""
        text: str = self.backend.decode(
            list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False
        )
        return text

    def save_pretrained(self, folder: Path) -> None:
        """Write the files that `AutoTokenizer.from_pretrained(folder)` loads. Raises OSError."""
        save_backend(self.backend, folder)
        for path in _own_files(self._folder):  # other programs read tokenizer.model and the like
            target = folder / path.name
            if not target.exists():
                shutil.copyfile(path, target)

    def _encode(self, texts: list[str]) -> list[list[int]]:
        texts = [without_surrogates(text) for text in texts]
        if self._rust is None:
            return [list(self.backend.encode(text, add_special_tokens=False)) for text in texts]
        return [one.ids for one in self._rust.encode_batch_fast(texts, add_special_tokens=False)]

    def _encode_long(self, text: str) -> list[int]:
        ids: list[int] = []
        for block in text_blocks(text[at : at + BLOCK] for at in range(0, len(text), BLOCK)):
            ids += self._encode([block])[0]
        return ids

    def _find_end_of_text(self) -> int:
        """Return the id of eos_token, else of "<|endoftext|>", else (with a warning) of bos_token or sep_token."""
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


Tokenizer = ByteTokenizer | PretrainedTokenizer


def load_tokenizer(spec: str, *, revision: str = "", trust_remote_code: bool = False) -> Tokenizer:
    """Return the tokenizer that `data.tokenizer = spec` names, except "bpe:SIZE" (see `bpe_training`).

    Args:
        revision: branch, tag or commit of a hub id.
        trust_remote_code: run Python code that comes with the tokenizer.

    Raises:
        ConfigurationError: it does not exist, cannot be loaded, or needs code that may not run.
        WorkbenchError: the hub cannot be reached and its cache does not have the tokenizer.
    """
    if spec == "bytes":
        return ByteTokenizer()
    called = f'data.tokenizer = "{spec}"'
    path = expanded(spec, "data.tokenizer")
    if path.is_file():
        return PretrainedTokenizer(spec, _from_file(called, path))
    folder = path if path.is_dir() else _fetched(called, spec, revision, trust_remote_code)
    if not any((folder / name).is_file() for name in _KNOWN_FILES) and not any(folder.glob("*.tiktoken")):
        raise ConfigurationError(
            f"{called}: {folder} has no tokenizer; expected tokenizer.json, or the files that a tokenizer's "
            "save_pretrained writes"
        )
    return PretrainedTokenizer(spec, _from_folder(called, folder, trust_remote_code), folder)


def _from_folder(called: str, folder: Path, trust_remote_code: bool) -> Any:
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(
            str(folder), trust_remote_code=trust_remote_code, local_files_only=True
        )
    except Exception as error:  # the library raises errors of every type
        if "trust_remote_code" in str(error):
            raise ConfigurationError(
                f"{called}: it needs its own code, which runs only with model.trust_remote_code = true"
            ) from error
        if (folder / "tokenizer.json").is_file() and not (folder / "tokenizer_config.json").exists():
            return _from_file(called, folder / "tokenizer.json")
        raise ConfigurationError(f"{called}: it cannot be loaded: {brief(error)}") from error


def _from_file(called: str, path: Path) -> Any:
    from transformers import PreTrainedTokenizerFast

    make: Any = PreTrainedTokenizerFast  # has no annotations
    try:
        return make(tokenizer_file=str(path), clean_up_tokenization_spaces=False)
    except Exception as error:  # as above
        raise ConfigurationError(
            f"{called}: {path} is not a tokenizer.json that can be loaded: {brief(error)}"
        ) from error


def _fetched(called: str, name: str, revision: str, trust_remote_code: bool) -> Path:
    """Return the folder of the hub's cache with the tokenizer's files, fetched if the hub can be reached."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.utils.tqdm import silent_tqdm

    near = nearest_file(Path(name))
    programs = ["*.py"] if trust_remote_code else []
    patterns = [*OWN_FILES, "spiece*", "sentencepiece*", "config.json", *programs]
    no_folder = f"{called}: there is no such folder{f' ({near})' if near else ''}"
    if name.startswith(("/", ".", "~")):
        raise ConfigurationError(no_folder)
    unreachable = hub.why_unreachable()
    try:
        with hub.explained(no_folder, name, revision):
            folder = snapshot_download(
                name,
                local_files_only=bool(unreachable),
                revision=revision or None,
                allow_patterns=patterns,
                ignore_patterns=["*.bin", "*.pkl", "*.pt"],
                tqdm_class=silent_tqdm,
            )
        return Path(folder)
    except hub.UnreachableError as error:
        raise WorkbenchError(
            f"{no_folder}, the hub's cache does not have it, and {unreachable or error}; fetch it once with network "
            f"access (hf download {name}), or name a folder"
        ) from error


def made_backend(rust: Any, **options: Any) -> Any:
    """Return a tokenizer of the tokenizers library as one of transformers, with the end of text as special token."""
    from transformers import PreTrainedTokenizerFast

    make: Any = PreTrainedTokenizerFast  # has no annotations
    ends = dict.fromkeys(("bos_token", "eos_token", "pad_token"), END_OF_TEXT)
    return make(tokenizer_object=rust, clean_up_tokenization_spaces=False, **ends, **options)


def _own_files(folder: Path | None) -> list[Path]:
    if folder is None:
        return []
    return sorted({path for pattern in OWN_FILES for path in folder.glob(pattern) if path.is_file()})


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
