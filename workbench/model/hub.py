"""Fetch a model from the hub through `huggingface_hub`: its cache, its token and its offline mode are the user's own.

Only what is needed is fetched: configuration, tokenizer, safetensors and their index, and code where it is trusted.
Whatever goes wrong ends in one sentence that says what would help.

Invariant: nothing is fetched that could run code when it is loaded, unless the user trusts the model's code; and no
download begins that the disk has no room for.
"""

from __future__ import annotations

import importlib
import os
import re
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from workbench.errors import ConfigurationError, WorkbenchError
from workbench.formatting import GIB
from workbench.model import hub_reach
from workbench.model.safetensors_files import INDEX_FILE, WEIGHTS_FILE

DESCRIPTION = ("config.json", "generation_config.json", "adapter_config.json")
TOKENIZER = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "tokenizer.model",
    "spiece.model",
    "sentencepiece.bpe.model",
    "chat_template.json",
    "chat_template.jinja",
)
CODE = ("*.py",)
COMMIT = re.compile(r"[0-9a-f]{40}")
MARGIN_BYTES = 64 << 20
TELL_EVERY_S = 10.0


def fetch(
    name: str,
    revision: str = "",
    *,
    weights: bool,
    fresh: bool,
    code: bool,
    tell: Callable[[str], None],
) -> Path:
    """The folder of the hub's cache with the files of the model `name`, all of which are there.

    Without network, what was fetched before is taken; unless `fresh`, a description is taken from there in any case.
    `code`: the model's own code is fetched too.

    Raises:
        ConfigurationError: there is no such model or revision, it may not be read, or it has no safetensors.
        WorkbenchError: the hub cannot be reached and the cache has not all of it, or the disk has no room.
    """
    if not code and (COMMIT.fullmatch(revision) or not (weights or fresh)):
        kept = _cached(name, revision)
        if kept is not None and (not weights or _has_weights(kept)):
            return kept
    try:
        with _explained(name, revision):
            sizes = _listed(name, revision)
            files = _wanted(name, sizes, weights=weights, code=code)
            return _download(name, revision, {file: sizes[file] for file in files}, tell)
    except _UnreachableError as unreachable:
        kept = _cached(name, revision)
        if kept is None or (weights and not _has_weights(kept)):
            raise WorkbenchError(str(unreachable)) from unreachable.__cause__
        if weights:
            tell(
                f'warning: model.pretrained = "{name}": {unreachable.reason}; what was fetched before is taken'
            )
        return kept


class _UnreachableError(Exception):
    """The hub cannot be asked. `reason`: why, in a few words."""

    def __init__(self, name: str, reason: str) -> None:
        self.reason = reason
        super().__init__(
            f'model.pretrained = "{name}": there is no such folder, {reason}, and not all of this model is in the '
            f"cache of the hub; fetch it once where there is a network (hf download {name}), or name a folder"
        )


def _listed(name: str, revision: str) -> dict[str, int]:
    """The files of the repository with their sizes in bytes."""
    from huggingface_hub import HfApi

    unreachable = hub_reach.why_unreachable()
    if unreachable:
        raise _UnreachableError(name, unreachable)
    info = HfApi(library_name="workbench").model_info(name, revision=revision or None, files_metadata=True)
    return {file.rfilename: file.size or 0 for file in info.siblings or []}


def _wanted(name: str, sizes: dict[str, int], *, weights: bool, code: bool) -> list[str]:
    patterns = (*DESCRIPTION, *(TOKENIZER if weights else ()), *(CODE if code else ()))
    found = [file for file in sizes if any(fnmatch(file, pattern) for pattern in patterns)]
    if not weights:
        return found
    if WEIGHTS_FILE in sizes:
        return [*found, WEIGHTS_FILE]
    if INDEX_FILE in sizes:
        units = [file for file in sizes if "/" not in file and fnmatch(file, "*.safetensors")]
        named = [file for file in units if fnmatch(file, "model-*-of-*.safetensors")]
        return [*found, INDEX_FILE, *(named or units)]
    pickles = [file for file in sizes if fnmatch(file, "*.bin") or fnmatch(file, "*.pt*")]
    because = (
        f"only pickle files ({min(pickles)}), which can run any code when they are loaded and are never loaded here"
        if pickles
        else f"neither {WEIGHTS_FILE} nor {INDEX_FILE}"
    )
    raise ConfigurationError(
        f'model.pretrained = "{name}": it has {because}; name a model or a revision with safetensors'
    )


def _download(name: str, revision: str, sizes: dict[str, int], tell: Callable[[str], None]) -> Path:
    from huggingface_hub import constants, snapshot_download, try_to_load_from_cache

    cache = Path(constants.HF_HUB_CACHE)
    missing = {
        file: size
        for file, size in sizes.items()
        if not isinstance(try_to_load_from_cache(name, file, revision=revision or None), str)
    }
    need = sum(missing.values())
    free = shutil.disk_usage(_existing(cache)).free
    if need + MARGIN_BYTES > free:
        raise WorkbenchError(
            f'model.pretrained = "{name}": it needs {need / GIB:,.1f} GiB in {cache}, and that disk has '
            f"{free / GIB:,.1f} GiB free; make room, or set HF_HOME to a folder on another disk"
        )
    if need:
        tell(f"fetching {name} from the hub: {len(missing)} files, {need / GIB:,.2f} GiB")
    with _progress(cache, name, need, tell):
        folder = snapshot_download(
            name, revision=revision or None, allow_patterns=sorted(sizes), library_name="workbench"
        )
    return Path(folder)


@contextmanager
def _progress(cache: Path, name: str, need: int, tell: Callable[[str], None]) -> Iterator[None]:
    """Tell every few seconds how much has come, by what the cache has grown; the hub's own bars are not shown."""
    bars: Any = importlib.import_module("huggingface_hub.utils")
    folder = cache / f"models--{name.replace('/', '--')}" / "blobs"
    before = _bytes_in(folder)
    over = threading.Event()
    began = time.monotonic()

    def watch() -> None:
        while not over.wait(TELL_EVERY_S):
            come = _bytes_in(folder) - before
            rate = come / (time.monotonic() - began)
            tell(f"fetched {come / GIB:,.2f} of {need / GIB:,.2f} GiB of {name}, {rate / 1e6:,.0f} MB/s")

    thread = threading.Thread(target=watch, name="fetch-progress", daemon=True)
    thread.start()
    shown = not bars.are_progress_bars_disabled()
    bars.disable_progress_bars()
    try:
        yield
    finally:
        over.set()
        thread.join()
        if shown:
            bars.enable_progress_bars()


def _bytes_in(folder: Path) -> int:
    total = 0
    try:
        for entry in os.scandir(folder):
            total += entry.stat().st_blocks * 512
    except OSError:
        return total
    return total


def _existing(folder: Path) -> Path:
    return next((p for p in (folder, *folder.parents) if p.exists()), Path("/"))


def _cached(name: str, revision: str) -> Path | None:
    """The folder of what was fetched before; None where there is no description of a model in it."""
    from huggingface_hub import try_to_load_from_cache

    found = try_to_load_from_cache(name, "config.json", revision=revision or None)
    return Path(found).parent if isinstance(found, str) else None


def _has_weights(folder: Path) -> bool:
    """Whether all files of weights are in `folder`."""
    from workbench.model.pretrained import read_index

    if (folder / WEIGHTS_FILE).is_file():
        return True
    index = folder / INDEX_FILE
    return index.is_file() and all((folder / file).is_file() for file in read_index(index).values())


@contextmanager
def _explained(name: str, revision: str) -> Iterator[None]:
    """Turn what the hub raises into one sentence."""
    from huggingface_hub import errors

    where = f'model.pretrained = "{name}"'
    try:
        yield
    except errors.GatedRepoError as error:
        raise ConfigurationError(
            f"{where}: its owner asks for consent first; give it at https://huggingface.co/{name}, then log in "
            "(hf auth login, or HF_TOKEN)"
        ) from error
    except errors.RepositoryNotFoundError as error:
        raise ConfigurationError(
            f"{where}: there is no such folder here and no such model on the hub, or it is private; look at the "
            "spelling, or log in (hf auth login, or HF_TOKEN)"
        ) from error
    except errors.RevisionNotFoundError as error:
        raise ConfigurationError(
            f'model.revision = "{revision}": {name} has no such branch, tag or commit; leave it out for the main branch'
        ) from error
    except errors.HFValidationError as error:
        raise ConfigurationError(f"{where}: {error}") from error
    except errors.OfflineModeIsEnabled as error:
        raise _UnreachableError(name, hub_reach.OFFLINE) from error
    except (WorkbenchError, _UnreachableError):
        raise
    except Exception as error:
        status = getattr(getattr(error, "response", None), "status_code", None)
        if status in (401, 403):
            raise ConfigurationError(
                f"{where}: the hub does not let it be read ({status}); log in"
            ) from error
        if isinstance(error, OSError) and getattr(error, "errno", None) == 28:
            raise WorkbenchError(f"{where}: the disk became full while it was fetched") from error
        words = next(iter(str(error).splitlines()), "") or type(error).__name__
        raise _UnreachableError(name, f"the hub cannot be reached ({words})") from error
