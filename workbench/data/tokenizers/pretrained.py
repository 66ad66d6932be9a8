"""A pretrained tokenizer: a folder, a tokenizer.json, or a hub id, loaded with transformers.

Text goes straight to the Rust tokenizer below it, which releases the interpreter lock while it works.

Invariant: the ids are those of `AutoTokenizer.from_pretrained(...)(text, add_special_tokens=False)`, a block of a long
text at a time. A local folder is read without network; of a hub id only the tokenizer's files are fetched; pickles are
never read, and Python files run only with `trust_remote_code`.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterable
from functools import cached_property
from pathlib import Path
from typing import Any

from workbench.config.references import nearest_file
from workbench.data import tokenizers
from workbench.data.tokenizers import END_OF_TEXT, save_backend, text_blocks, without_surrogates
from workbench.errors import ConfigurationError, WorkbenchError
from workbench.model import hub
from workbench.system.folders import expanded

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


class PretrainedTokenizer:
    """A transformers tokenizer, `backend`, that was loaded from `folder` for `data.tokenizer = spec`.

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
        return self.encode_batch([text])[0]

    def encode_batch(self, texts: list[str]) -> list[list[int]]:
        short = iter(self._encode([text for text in texts if len(text) <= tokenizers.BLOCK]))
        return [next(short) if len(text) <= tokenizers.BLOCK else self._encode_long(text) for text in texts]

    def decode(self, ids: Iterable[int]) -> str:
        text: str = self.backend.decode(
            list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False
        )
        return text

    def save_pretrained(self, folder: Path) -> None:
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
        for block in text_blocks(
            text[at : at + tokenizers.BLOCK] for at in range(0, len(text), tokenizers.BLOCK)
        ):
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


def _own_files(folder: Path | None) -> list[Path]:
    if folder is None:
        return []
    return sorted({path for pattern in OWN_FILES for path in folder.glob(pattern) if path.is_file()})


def load_pretrained_tokenizer(
    spec: str, *, revision: str = "", trust_remote_code: bool = False
) -> PretrainedTokenizer:
    """Load the tokenizer of a folder, of a tokenizer.json, or of a hub id at `revision`.

    Raises:
        ConfigurationError: it does not exist, cannot be loaded, or needs code that may not run.
        WorkbenchError: the hub cannot be reached and its cache does not have the tokenizer.
    """
    called = f'data.tokenizer = "{spec}"'
    path = expanded(spec, "data.tokenizer")
    if path.is_file():
        return PretrainedTokenizer(spec, _from_file(called, path))
    folder = path if path.is_dir() else _fetched(called, spec, revision, trust_remote_code)
    if not any((folder / name).is_file() for name in _KNOWN_FILES) and not any(folder.glob("*.tiktoken")):
        raise ConfigurationError(
            f"{called}: {folder} has no tokenizer; expected tokenizer.json, or what a tokenizer's own save_pretrained "
            "writes"
        )
    return PretrainedTokenizer(spec, _from_folder(called, folder, trust_remote_code), folder)


def _from_folder(called: str, folder: Path, trust_remote_code: bool) -> Any:
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(
            str(folder), trust_remote_code=trust_remote_code, local_files_only=True
        )
    except Exception as error:  # the library raises errors of every type
        words = " ".join(str(error).split())
        if "trust_remote_code" in words:
            raise ConfigurationError(
                f"{called}: it comes with code of its own, which runs only with model.trust_remote_code = true"
            ) from error
        if _is_alone(folder):
            return _from_file(called, folder / "tokenizer.json")
        raise ConfigurationError(f"{called}: it cannot be loaded: {_short(words, error)}") from error


def _is_alone(folder: Path) -> bool:
    """Return whether tokenizer.json is all that the folder has of the tokenizer."""
    return (folder / "tokenizer.json").is_file() and not (folder / "tokenizer_config.json").exists()


def _from_file(called: str, path: Path) -> Any:
    from transformers import PreTrainedTokenizerFast

    make: Any = PreTrainedTokenizerFast  # has no annotations
    try:
        return make(tokenizer_file=str(path), clean_up_tokenization_spaces=False)
    except Exception as error:  # as above
        words = " ".join(str(error).split())
        raise ConfigurationError(
            f"{called}: {path} is no tokenizer.json that can be loaded: {_short(words, error)}"
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
            f"{no_folder}, the hub's cache does not have it, and {unreachable or error}; fetch it once where there is "
            f"a network (hf download {name}), or name a folder"
        ) from error


def _short(words: str, error: BaseException) -> str:
    words = words or type(error).__name__
    return words if len(words) < 300 else words[:297] + "..."
