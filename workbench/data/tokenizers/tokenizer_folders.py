"""Where the files of a tokenizer are: a folder, a tokenizer.json, or the cache of the hub; and loading them from there.

Invariant: a local folder is read without any network; of a hub id only the tokenizer's own files are fetched; programs
that lie among them run only where that was allowed, and pickles are never read.
"""

from __future__ import annotations

import difflib
import os
from pathlib import Path
from typing import Any

from workbench.data.quiet_hub import quiet_hub
from workbench.data.tokenizers.pretrained_tokenizer import OWN_FILES, PretrainedTokenizer
from workbench.errors import ConfigurationError, WorkbenchError
from workbench.model import hub
from workbench.system.folders import expanded

_KNOWN_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "vocab.json",
    "vocab.txt",
    "spiece.model",
)


def load_pretrained_tokenizer(
    spec: str, *, revision: str = "", trust_remote_code: bool = False
) -> PretrainedTokenizer:
    """The tokenizer of a folder, of a tokenizer.json, or of a hub id at `revision`.

    Raises:
        ConfigurationError: there is none, or it cannot be loaded, or needs code that may not run.
        WorkbenchError: the hub cannot be reached and its cache does not have it.
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
    except Exception as error:  # whatever half a folder, or a program in it, makes the library raise
        words = " ".join(str(error).split())
        if "trust_remote_code" in words:
            raise ConfigurationError(
                f"{called}: it comes with code of its own, which runs only with model.trust_remote_code = true"
            ) from error
        if _is_alone(folder):
            return _from_file(called, folder / "tokenizer.json")
        raise ConfigurationError(f"{called}: it cannot be loaded: {_short(words, error)}") from error


def _is_alone(folder: Path) -> bool:
    """Whether the folder says no more of the tokenizer than tokenizer.json does."""
    return (folder / "tokenizer.json").is_file() and not (folder / "tokenizer_config.json").exists()


def _from_file(called: str, path: Path) -> Any:
    from transformers import PreTrainedTokenizerFast

    make: Any = PreTrainedTokenizerFast  # has no annotations
    try:
        return make(tokenizer_file=str(path), clean_up_tokenization_spaces=False)
    except Exception as error:  # what the tokenizers library makes of another file
        words = " ".join(str(error).split())
        raise ConfigurationError(
            f"{called}: {path} is no tokenizer.json that can be loaded: {_short(words, error)}"
        ) from error


def _fetched(called: str, name: str, revision: str, trust_remote_code: bool) -> Path:
    """The folder in the hub's cache that has the tokenizer's files, fetched if the network is there."""
    from huggingface_hub import errors, snapshot_download

    nearest = _nearest(Path(name))
    programs = ["*.py"] if trust_remote_code else []
    patterns = [*OWN_FILES, "spiece*", "sentencepiece*", "config.json", *programs]
    no_folder = f"{called}: there is no such folder{nearest}"
    if name.startswith(("/", ".", "~")):
        raise ConfigurationError(no_folder)
    unreachable = hub.why_unreachable()
    try:
        with quiet_hub():
            folder = snapshot_download(
                name,
                local_files_only=bool(unreachable),
                revision=revision or None,
                allow_patterns=patterns,
                ignore_patterns=["*.bin", "*.pkl", "*.pt"],
            )
        return Path(folder)
    except errors.HFValidationError as error:
        raise ConfigurationError(no_folder) from error
    except errors.GatedRepoError as error:
        raise ConfigurationError(
            f"{called}: its owner asks for consent first; give it at https://huggingface.co/{name}, then log in "
            "(hf auth login, or HF_TOKEN)"
        ) from error
    except errors.RepositoryNotFoundError as error:
        raise ConfigurationError(
            f"{no_folder}, and no such model on the hub, or it is private; look at the spelling, or log in "
            "(hf auth login, or HF_TOKEN)"
        ) from error
    except errors.RevisionNotFoundError as error:
        raise ConfigurationError(
            f'model.revision = "{revision}": {name} has no such branch, tag or commit; leave it out for the main branch'
        ) from error
    except Exception as error:  # whatever the network raises
        if isinstance(error, errors.OfflineModeIsEnabled):
            unreachable = hub.OFFLINE
        reason = unreachable or f"the hub cannot be reached ({_root(error)})"
        raise WorkbenchError(
            f"{no_folder}, the hub's cache does not have it, and {reason}; fetch it once where there is a network "
            f"(hf download {name}), or name a folder"
        ) from error


def _nearest(path: Path) -> str:
    try:
        names = [entry.name for entry in os.scandir(path.absolute().parent)]
    except OSError:
        return ""
    near = difflib.get_close_matches(path.name, names, n=1)
    return f" (the nearest is {str(path.parent / near[0])!r})" if near else ""


def _root(error: BaseException) -> str:
    """What all the others come from."""
    while (cause := error.__cause__ or error.__context__) is not None:
        error = cause
    return _short(" ".join(str(error).split()), error)


def _short(words: str, error: BaseException) -> str:
    words = words or type(error).__name__
    return words if len(words) < 300 else words[:297] + "..."
