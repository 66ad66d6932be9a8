"""What a configuration names that lies outside of it: an architecture and its settings, files and folders, packages.

Looked for without importing or fetching anything, so that all that is missing is told at once, before anything slow
begins. Invariant: only what is certainly wrong is a problem. What may be an id of the hub is never taken for a folder
that is missing, but for one that is all but a tokenizer made here.
"""

from __future__ import annotations

import difflib
import importlib.util
import os
import re
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

from workbench.config.architectures import causal_models, settings_of
from workbench.config.problems import Problem, nearest, toml_value
from workbench.config.remarks import outputs_of
from workbench.config.schema import RunConfig
from workbench.config.tokenizers import SMALLEST, USUAL, is_made_here, meant_form
from workbench.config.toml_lines import KeyPath

HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]{0,95}(/[A-Za-z0-9_][\w.-]{0,95})?")
HUB_DATASET = "hub:"


def missing_references(config: RunConfig, looked_for: Collection[str]) -> Iterator[Problem]:
    """What of the fields `looked_for` (dotted names) is not there."""
    for name, look in REFERENCES.items():
        if name in looked_for:
            yield from look(config)


def not_looked_at(config: RunConfig) -> Iterator[str]:
    """What a run will look at and nothing here has, in a few words each."""
    model, data = config.model, config.data
    tokenizer = "" if is_made_here(data.tokenizer) else data.tokenizer
    hub = [name for name in (model.pretrained, tokenizer) if _may_be_on_hub(name)]
    hub += [source for source in data.sources if source.startswith(HUB_DATASET)]
    for name in dict.fromkeys(hub):
        no_folder = "" if name.startswith(HUB_DATASET) else ", which is no folder here"
        yield f"whether the hub has {toml_value(name)}{no_folder}"
    if model.architecture and not causal_models():
        yield "model.architecture and [model.config], for transformers is not found"
    elif model.config:
        unread = settings_of(model.architecture) is None
        yield f"the {'names and ' if unread else ''}values in [model.config]"
    yield "what is in the files, and whether it fits: `workbench plan` and `workbench run` do"


def _architecture(config: RunConfig) -> Iterator[Problem]:
    name, known = config.model.architecture, causal_models()
    if name and known and name not in known:
        near = nearest(name, known)
        right = (
            f'did you mean "{near}"?' if near else f"{len(known)} are known, among them gpt2, llama, qwen3"
        )
        yield Problem(
            ("model", "architecture"), "transformers has no causal language model of this name", right
        )


def _settings(config: RunConfig) -> Iterator[Problem]:
    architecture = config.model.architecture
    settings = settings_of(architecture) if architecture and config.model.config else None
    if settings is None:
        return
    for key in config.model.config:
        if key not in settings.words:
            near = nearest(key, settings.names)
            right = f'did you mean "{near}"?' if near else "leave it out"
            yield Problem(
                ("model", "config", key), f"the {architecture} architecture has no such setting", right
            )


def _pretrained(config: RunConfig) -> Iterator[Problem]:
    at, name = ("model", "pretrained"), config.model.pretrained
    if not name:
        return
    path, wrong = _looked_up(name)
    if wrong:
        yield Problem(at, wrong, "name a folder or a hub id")
    elif path is not None and path.is_file():
        yield Problem(at, "is a file", "name the folder that holds it, with its config.json")
    elif path is not None and not path.exists() and not _may_be_on_hub(name):
        hint = nearest_file(path) or 'name a folder, or a hub id such as "Qwen/Qwen3-0.6B"'
        yield Problem(at, "there is no such folder", hint)


def _tokenizer(config: RunConfig) -> Iterator[Problem]:
    at, name = ("data", "tokenizer"), config.data.tokenizer
    if is_made_here(name):
        return
    path, wrong = _looked_up(name)
    right = f'name a folder, a hub id, "bytes" or "{USUAL}"'
    if wrong:
        yield Problem(at, wrong, right)
    elif path is None or path.exists():
        return
    elif form := meant_form(name):  # the hub's ids of one word are few, and none is like these
        yield Problem(at, "is no tokenizer that is made here, nor a folder", f'did you mean "{form}"?')
    elif not _may_be_on_hub(name):
        yield Problem(at, "there is no such folder", nearest_file(path) or right)


def _source(config: RunConfig) -> Iterator[Problem]:
    written = config.data.source
    for index, name in enumerate(config.data.sources):
        at: KeyPath = ("data", "source") if isinstance(written, str) else ("data", "source", index)
        if name == "stdlib" or name.startswith(HUB_DATASET):
            continue
        path, wrong = _looked_up(name)
        if wrong:
            yield Problem(at, wrong, "name a file or a folder")
        elif path is not None and not path.exists():
            is_hub = name.count("/") == 1 and HUB_ID.fullmatch(name)
            hub = f'a dataset of the hub is written "{HUB_DATASET}{name}"' if is_hub else ""
            yield Problem(
                at,
                "there is no such file or folder",
                nearest_file(path) or hub or 'name one that is there, or "stdlib"',
            )
        elif path is not None and not os.access(path, os.R_OK):
            yield Problem(at, "may not be read", "give yourself the right to, or name another")


def _disk_path(config: RunConfig) -> Iterator[Problem]:
    at, offload = ("offload", "disk_path"), config.offload
    if not offload.disk_path or not {"disk", "auto"} & {offload.weights, offload.state}:
        return
    path, wrong = _looked_up(offload.disk_path)
    if wrong:
        yield Problem(at, wrong, "name a folder on a fast local disk")
    elif path is not None and not path.exists():
        yield Problem(at, "there is no such folder", nearest_file(path) or "make it, on a fast local disk")
    elif path is not None and not path.is_dir():
        yield Problem(at, "is not a folder", "name one on a fast local disk")
    elif path is not None and not os.access(path, os.W_OK | os.X_OK):
        yield Problem(at, "may not be written", "give yourself the right to, or name another")


def _tensorboard(config: RunConfig) -> Iterator[Problem]:
    if config.log.tensorboard and not _is_installed("tensorboard"):
        yield Problem(
            ("log", "tensorboard"),
            "tensorboard is not installed",
            'pip install "workbench[tensorboard]", or set it to false',
        )


def _adapter(config: RunConfig) -> Iterator[Problem]:
    if config.adapter is not None and not _is_installed("peft"):
        yield Problem(
            ("adapter",), "adapters need peft", 'pip install "workbench[peft]", or leave the table out'
        )


def _vocabulary(config: RunConfig) -> Iterator[Problem]:
    """Of a BPE there may be fewer tokens than were asked for; all bytes and the end of a text are always there."""
    outputs, least = outputs_of(config), SMALLEST
    if outputs is not None and outputs < least and is_made_here(config.data.tokenizer):
        yield Problem(
            ("model", "config", "vocab_size"),
            f"the tokenizer has {least if config.data.tokenizer == 'bytes' else f'at least {least}'} tokens",
            "give the model at least as many, or choose another data.tokenizer",
        )


def _positions(config: RunConfig) -> Iterator[Problem]:
    model, length = config.model, config.data.sequence_length
    settings = settings_of(model.architecture) if model.architecture else None
    longest = settings and settings.number("max_position_embeddings", model.config)
    if longest and length > longest > 0:
        yield Problem(
            ("data", "sequence_length"),
            f"the model has {longest} positions",
            f"lower it to {longest}, or give model.config more positions",
        )


REFERENCES: dict[str, Callable[[RunConfig], Iterator[Problem]]] = {
    "model.architecture": _architecture,
    "model.config": _settings,
    "model.pretrained": _pretrained,
    "data.source": _source,
    "data.tokenizer": _tokenizer,
    "offload.disk_path": _disk_path,
    "log.tensorboard": _tensorboard,
    "adapter": _adapter,
    "model.config.vocab_size": _vocabulary,
    "data.sequence_length": _positions,
}
"""What can be looked for, by the dotted name of the field or table."""
OF_THE_MODEL = frozenset(
    name
    for name in REFERENCES
    if name.startswith("model.") or name in ("data.tokenizer", "data.sequence_length")
)
"""What a run that goes on has in its checkpoints."""
OF_THE_PLAN = frozenset({"model.architecture", "model.config", "data.sequence_length"})
"""What a plan is made of; text, tokens and files it does without."""


def nearest_file(path: Path) -> str:
    """A half sentence that points from a path that is not there to the nearest beside it; empty where none is near."""
    try:
        names = [entry.name for entry in os.scandir(path.parent)]
    except (OSError, ValueError):
        return ""
    near = difflib.get_close_matches(path.name, names, n=1)
    return f"did you mean {toml_value(str(path.parent / near[0]))}?" if near else ""


def _looked_up(name: str) -> tuple[Path | None, str]:
    """The path called `name`, with its home written out, or else what is wrong with it."""
    try:
        path = Path(name).expanduser()
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return path, ""
    except RuntimeError:
        return None, f"there is no home folder {Path(name).parts[0]}"
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        return None, f"cannot be looked at: {reason}"
    return path, ""


def _may_be_on_hub(name: str) -> bool:
    """Whether it is an id of the hub as far as letters tell, and nothing here is called so."""
    if ".." in name or HUB_ID.fullmatch(name) is None:
        return False
    path, _ = _looked_up(name)
    return path is not None and not path.exists()


def _is_installed(package: str) -> bool:
    try:
        return importlib.util.find_spec(package) is not None
    except (ImportError, ValueError):
        return False
