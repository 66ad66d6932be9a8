"""Fetch a model from the hub through `huggingface_hub`: its cache, its token and its offline mode are the user's own.

Only what is needed is fetched: configuration, tokenizer, safetensors and their index, and code where it is trusted.
Every failure ends in one sentence with its cure.

Invariant: nothing is fetched that could run code when it is loaded, unless the user trusts the model's code; and no
download begins that the disk has no room for.
"""

from __future__ import annotations

import errno
import importlib
import io
import re
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from workbench.errors import ConfigurationError, WorkbenchError
from workbench.formatting import GIB
from workbench.system.foreign import parse_json

WEIGHTS_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
DESCRIPTION = ("config.json", "generation_config.json", "adapter_config.json")
TOKENIZER = ("*token*.json", "vocab.*", "merges.txt", "*.model", "chat_template*")
COMMIT = re.compile(r"[0-9a-f]{40}")
MARGIN_BYTES = 64 << 20
REPORT_EVERY_S = 10.0
ANSWER_S = 5.0
"""The longest wait for a connection to the hub, and then for its answer; its libraries wait longer, or for ever."""
OFFLINE = "HF_HUB_OFFLINE is set"

Log = Callable[[str], None]


def fetch(name: str, revision: str = "", *, weights: bool, fresh: bool, code: bool, log: Log) -> Path:
    """Return the folder of the hub's cache with the files of the model `name`, all of which are there.

    Without network, files fetched before are used; unless `fresh`, a description is taken from there in any case.
    `code`: the model's own code is fetched too. `log` gets the progress.

    Raises:
        ConfigurationError: there is no such model or revision, it may not be read, or it has no safetensors.
        WorkbenchError: the hub cannot be reached and the cache has not all of it, or the disk has no room.
    """
    if not code and (COMMIT.fullmatch(revision) or not (weights or fresh)):
        kept = _cached(name, revision)
        if kept is not None and (not weights or _has_weights(kept)):
            return kept
    missing = f'model.pretrained = "{name}": there is no such folder'
    try:
        with explained(missing, name, revision):
            sizes = _listed(name, revision)
            files = _wanted(name, sizes, weights=weights, code=code)
            return _download(name, revision, {file: sizes[file] for file in files}, log)
    except UnreachableError as unreachable:
        kept = _cached(name, revision)
        if kept is None or (weights and not _has_weights(kept)):
            raise WorkbenchError(
                f"{missing}, {unreachable}, and not all of this model is in the cache of the hub; fetch it once with "
                f"network access (hf download {name}), or name a folder"
            ) from unreachable
        if weights:
            log(f'warning: model.pretrained = "{name}": {unreachable}; using the files fetched before')
        return kept


class UnreachableError(Exception):
    """The hub cannot be asked; the message is why, in a few words."""


@contextmanager
def explained(missing: str, name: str, revision: str) -> Iterator[None]:
    """Turn what the hub raises into one sentence that begins with `missing`: "…: there is no such folder".

    Raises:
        ConfigurationError: the hub has no such repository or revision, or does not let it be read.
        WorkbenchError: the disk is full.
        UnreachableError: it cannot be asked.
    """
    from huggingface_hub import errors

    log_in = "log in (hf auth login, or HF_TOKEN)"
    try:
        yield
    except WorkbenchError:
        raise
    except errors.GatedRepoError as error:
        raise ConfigurationError(
            f"{missing}, and its owner on the hub asks for consent first; give it at https://huggingface.co/{name}, "
            f"then {log_in}"
        ) from error
    except errors.RepositoryNotFoundError as error:
        raise ConfigurationError(
            f"{missing}, and no such model on the hub, or it is private; look at the spelling, or {log_in}"
        ) from error
    except errors.RevisionNotFoundError as error:
        raise ConfigurationError(
            f'model.revision = "{revision}": {name} has no such branch, tag or commit; leave it out for the main branch'
        ) from error
    except errors.HFValidationError as error:
        raise ConfigurationError(f"{missing}, and it is not a hub id: {error}") from error
    except errors.OfflineModeIsEnabled as error:
        raise UnreachableError(OFFLINE) from error
    except Exception as error:  # the network raises errors of every type
        status = getattr(getattr(error, "response", None), "status_code", None)
        if status in (401, 403):
            raise ConfigurationError(f"{missing}, and the hub denies access ({status}); {log_in}") from error
        if isinstance(error, OSError) and error.errno == errno.ENOSPC:
            raise WorkbenchError(f"{missing}, and the disk became full while it was fetched") from error
        raise UnreachableError(_reason(error)) from error


def why_unreachable() -> str:
    """Return the reason why the hub cannot be asked, in a few words; empty where it answers, whatever it says."""
    hub: Any = importlib.import_module("huggingface_hub")
    if hub.constants.is_offline_mode():
        return OFFLINE
    try:
        hub.get_session().head(hub.constants.ENDPOINT, timeout=ANSWER_S)
    except Exception as error:  # whatever the network, a proxy or an address that is none raises
        return _reason(error)
    return ""


@contextmanager
def hub_offline(offline: bool) -> Iterator[None]:
    """Let the libraries of the hub take what is in their caches and ask nobody, where `offline`."""
    modules: list[Any] = [importlib.import_module("huggingface_hub.constants")]
    with suppress(ImportError):
        modules.append(importlib.import_module("datasets.config"))
    before = [module.HF_HUB_OFFLINE for module in modules]
    for module, was in zip(modules, before, strict=True):
        module.HF_HUB_OFFLINE = was or offline
    try:
        yield
    finally:
        for module, was in zip(modules, before, strict=True):
            module.HF_HUB_OFFLINE = was


def _listed(name: str, revision: str) -> dict[str, int]:
    """Return the files of the repository with their sizes in bytes."""
    from huggingface_hub import HfApi

    info = HfApi(library_name="workbench").model_info(
        name, revision=revision or None, files_metadata=True, timeout=ANSWER_S
    )
    return {file.rfilename: file.size or 0 for file in info.siblings or []}


def _wanted(name: str, sizes: dict[str, int], *, weights: bool, code: bool) -> list[str]:
    """Return the files to fetch. Raises ConfigurationError where weights are wanted and it has no safetensors."""
    here = [file for file in sizes if "/" not in file]
    patterns = (*DESCRIPTION, *(TOKENIZER if weights else ()))
    found = [file for file in here if any(fnmatch(file, pattern) for pattern in patterns)]
    found += [file for file in sizes if code and file.endswith(".py")]
    if not weights:
        return found
    if WEIGHTS_FILE in sizes:
        return [*found, WEIGHTS_FILE]
    if INDEX_FILE in sizes:
        parts = [file for file in here if file.endswith(".safetensors")]
        return [*found, INDEX_FILE, *([file for file in parts if fnmatch(file, "model-*-of-*")] or parts)]
    pickles = [file for file in sizes if fnmatch(file, "*.bin") or fnmatch(file, "*.pt*")]
    because = (
        f"only pickle files ({min(pickles)}), which can run any code when they are loaded and are never loaded here"
        if pickles
        else f"neither {WEIGHTS_FILE} nor {INDEX_FILE}"
    )
    raise ConfigurationError(
        f'model.pretrained = "{name}": it has {because}; name a model or a revision with safetensors'
    )


def _download(name: str, revision: str, sizes: dict[str, int], log: Log) -> Path:
    from huggingface_hub import constants, snapshot_download, try_to_load_from_cache

    cache = Path(constants.HF_HUB_CACHE)
    missing = [
        size
        for file, size in sizes.items()
        if not isinstance(try_to_load_from_cache(name, file, revision=revision or None), str)
    ]
    need = sum(missing)
    free = shutil.disk_usage(next((p for p in (cache, *cache.parents) if p.exists()), "/")).free
    if need + MARGIN_BYTES > free:
        raise WorkbenchError(
            f'model.pretrained = "{name}": it needs {need / GIB:,.1f} GiB in {cache}, and that disk has '
            f"{free / GIB:,.1f} GiB free; make room, or set HF_HOME to a folder on another disk"
        )
    if need:
        log(f"fetching {name} from the hub: {len(missing)} files, {need / GIB:,.2f} GiB")
    folder = snapshot_download(
        name,
        revision=revision or None,
        allow_patterns=sorted(sizes),
        library_name="workbench",
        etag_timeout=ANSWER_S,
        tqdm_class=_progress_class(name, log),
    )
    return Path(folder)


def _progress_class(name: str, log: Log) -> Any:
    """Return a progress bar for `snapshot_download` that draws nothing and logs every few seconds."""
    bar: Any = importlib.import_module("tqdm").tqdm
    began = logged = time.monotonic()

    class LoggedProgress(bar):  # type: ignore[misc]
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **{**options, "file": io.StringIO(), "disable": False})

        def update(self, n: float | None = 1) -> Any:
            nonlocal logged
            drawn = super().update(n)
            now = time.monotonic()
            # The bars that count the bytes of all files know their sum; another counts files.
            if self.unit == "B" and self.total and now - logged >= REPORT_EVERY_S:
                logged = now
                rate = self.n / (now - began)
                log(
                    f"fetched {self.n / GIB:,.2f} of {self.total / GIB:,.2f} GiB of {name}, {rate / 1e6:,.0f} MB/s"
                )
            return drawn

    return LoggedProgress


def _cached(name: str, revision: str) -> Path | None:
    """Return the folder of what was fetched before; None where there is no description of a model in it."""
    from huggingface_hub import try_to_load_from_cache

    found = try_to_load_from_cache(name, "config.json", revision=revision or None)
    return Path(found).parent if isinstance(found, str) else None


def _has_weights(folder: Path) -> bool:
    """Return True where all files of weights are in `folder`."""
    if (folder / WEIGHTS_FILE).is_file():
        return True
    index = folder / INDEX_FILE
    return index.is_file() and all((folder / file).is_file() for file in read_index(index).values())


def read_index(path: Path) -> dict[str, str]:
    """Return the file of each tensor by its name, as an index of safetensors files has it.

    Raises:
        ConfigurationError: it cannot be read, or names a file outside of its folder.
    """
    content = read_json(path)
    found = content.get("weight_map")
    if not isinstance(found, dict) or not found or not all(isinstance(file, str) for file in found.values()):
        raise ConfigurationError(f"{path} has no weight_map from tensors to files; download it again")
    for file in found.values():
        if Path(file).name != file or not file.endswith(".safetensors"):
            raise ConfigurationError(f'{path} names "{file}", which is not a safetensors file beside it')
    return found


def read_json(path: Path) -> dict[str, Any]:
    """Return the JSON object in `path`; raise ConfigurationError where there is none."""
    try:
        content = parse_json(path.read_bytes())
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be read: {error.strerror or error}") from error
    except ValueError as error:
        raise ConfigurationError(f"{path} is not JSON: {error}; download it again") from error
    if not isinstance(content, dict):
        raise ConfigurationError(f"{path} holds no JSON object; download it again")
    return content


def _reason(error: BaseException) -> str:
    """Return in a few words why the hub did not answer, by the innermost of the error's causes."""
    from huggingface_hub import constants

    chain = [error]
    while (cause := chain[-1].__cause__ or chain[-1].__context__) is not None and cause not in chain:
        chain.append(cause)
    if any("Timeout" in type(one).__name__ for one in chain):
        words = f"no answer within {ANSWER_S:.0f} s"
    else:
        words = next(iter(str(chain[-1]).splitlines()), "") or type(chain[-1]).__name__
    return f"the hub cannot be reached ({constants.ENDPOINT}: {words})"
