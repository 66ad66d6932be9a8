"""Look up the things outside a configuration that it names: an architecture, files and folders, packages.

Nothing is imported or fetched, so that all missing things are reported at once, before anything slow begins.
Invariant: only a certain mistake is a problem. A name that may be an id of the hub is not reported as a missing folder,
unless it is nearly the name of a tokenizer that is trained here.
"""

from __future__ import annotations

import difflib
import importlib.util
import os
import re
from collections.abc import Callable, Collection, Iterator
from functools import cache
from pathlib import Path
from typing import Any

from workbench.config.rules import Problem, named_size, nearest
from workbench.config.schema import RunConfig, Table
from workbench.config.tokenizers import SMALLEST, USUAL, is_made_here, meant_form
from workbench.config.toml_text import KeyPath, toml_value
from workbench.system.foreign import parse_json

HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]{0,95}(/[A-Za-z0-9_][\w.-]{0,95})?")
HUB_DATASET = "hub:"


def missing_references(config: RunConfig, looked_for: Collection[str]) -> Iterator[Problem]:
    """Yield a problem for each of the fields `looked_for` (dotted names) whose target does not exist."""
    for name, look in REFERENCES.items():
        if name in looked_for:
            yield from look(config)


def not_checked(config: RunConfig) -> Iterator[str]:
    """Yield what only a run can check, in a few words each."""
    model, data = config.model, config.data
    tokenizer = "" if is_made_here(data.tokenizer) else data.tokenizer
    hub = [name for name in (model.pretrained, tokenizer) if _may_be_on_hub(name)]
    hub += [source for source in data.sources if source.startswith(HUB_DATASET)]
    for name in dict.fromkeys(hub):
        no_folder = "" if name.startswith(HUB_DATASET) else ", which is no folder here"
        yield f"the hub's {toml_value(name)}{no_folder}"
    if model.config:
        yield (
            "the values in [model.config]"
            if _settings_text(config)
            else "the names and values in [model.config]"
        )
    yield "file contents and memory; `workbench plan` checks both"


@cache
def causal_models() -> frozenset[str]:
    """Return the causal language models that transformers has; empty where it cannot be read.

    Read from the text of its table of models: importing it takes seconds, and torch with it.
    """
    found = importlib.util.find_spec("transformers")
    if found is None or found.origin is None:
        return frozenset()
    try:
        text = (Path(found.origin).parent / "models/auto/modeling_auto.py").read_text(encoding="utf-8")
    except OSError:
        return frozenset()
    _, _, table = text.partition("\nMODEL_FOR_CAUSAL_LM_MAPPING_NAMES = ")
    return frozenset(re.findall(r'^\s*\("([^"]+)",', table[: table.find("\n)")], re.MULTILINE))


@cache
def _text_of(architecture: str) -> str:
    """Return the text of transformers' files in which the settings of an architecture are named; empty where they
    cannot be read, or are partly those of another architecture."""
    found = importlib.util.find_spec("transformers")
    if found is None or found.origin is None:
        return ""
    package = Path(found.origin).parent
    own = package / "models" / architecture
    try:
        text = (own / f"configuration_{architecture}.py").read_text(encoding="utf-8")
        if re.search(r"^from \.\.\w", text, re.MULTILINE):
            return ""
        shared = [package / name for name in ("configuration_utils.py", "modeling_rope_utils.py")]
        return text + "".join(
            path.read_text(encoding="utf-8") for path in (*shared, *own.glob("modeling_*.py"))
        )
    except OSError:
        return ""


def _settings_text(config: RunConfig) -> str:
    name = config.model.architecture
    return _text_of(name) if name in causal_models() else ""


def _settings(config: RunConfig) -> Iterator[Problem]:
    known = set(re.findall(r"\w+", _settings_text(config)))
    for name in config.model.config if known else ():
        if name not in known:
            near = nearest(name, known)
            right = (
                f'did you mean "{near}"?'
                if near
                else "its configuration class in transformers names them all"
            )
            what = f"the {config.model.architecture} architecture has no such setting"
            yield Problem(("model", "config", name), what, right)


def model_positions(config: RunConfig) -> int | None:
    """Return the positions of the model where they are written in [model.config], or in a folder's config.json."""
    return _size(config, "n_positions", "max_position_embeddings")


def _size(config: RunConfig, *names: str) -> int | None:
    """Return the first of these whole numbers in [model.config], or in the config.json of a model that is here."""
    named = named_size(config, *names)
    if named is not None or not config.model.pretrained:
        return named
    path, _ = _looked_up(config.model.pretrained)
    try:
        sizes = parse_json((path / "config.json").read_bytes()) if path is not None else None
    except (OSError, ValueError):  # a run says what is wrong with it
        return None
    if isinstance(sizes, dict) and isinstance(sizes.get("text_config"), dict):
        sizes = sizes["text_config"]
    found = (sizes.get(name) for name in names) if isinstance(sizes, dict) else iter(())
    return next((size for size in found if isinstance(size, int) and not isinstance(size, bool)), None)


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


def _pretrained(config: RunConfig) -> Iterator[Problem]:
    name = config.model.pretrained
    if name and not _may_be_on_hub(name):
        right = 'name a folder with a config.json, or a hub id such as "Qwen/Qwen3-0.6B"'
        yield from _path_problems(("model", "pretrained"), name, right, folder=True)


def _tokenizer(config: RunConfig) -> Iterator[Problem]:
    at, name = ("data", "tokenizer"), config.data.tokenizer
    if is_made_here(name):
        return
    path, _ = _looked_up(name)
    form = meant_form(name)
    if (
        form and path is not None and not path.exists()
    ):  # the hub's ids of one word are few, and none is like these
        yield Problem(at, 'is neither "bytes", "bpe:SIZE" nor a folder', f'did you mean "{form}"?')
    elif not _may_be_on_hub(name):
        yield from _path_problems(at, name, f'name a folder, a hub id, "bytes" or "{USUAL}"')


def _source(config: RunConfig) -> Iterator[Problem]:
    for index, name in enumerate(config.data.sources):
        at: KeyPath = ("data", "source", index)
        if isinstance(config.data.source, str):
            at = ("data", "source")
        if not name:
            yield Problem(
                at, "no text to train on is named", 'name a file, a folder, "hub:OWNER/NAME" or "stdlib"'
            )
        elif name != "stdlib" and not name.startswith(HUB_DATASET):
            right = 'name an existing file or folder, or "stdlib"'
            if name.count("/") == 1 and HUB_ID.fullmatch(name):
                right = f'a dataset of the hub is written "{HUB_DATASET}{name}"'
            yield from _path_problems(at, name, right)


def _evaluated(config: RunConfig) -> Iterator[Problem]:
    """The datasets of the hub have splits of their own, which no field names yet."""
    evaluate = config.evaluate
    named: dict[KeyPath, str] = {("evaluate", "source"): evaluate.source} if evaluate.source else {}
    named |= {("evaluate", "sources", name): path for name, path in evaluate.sources.items()}
    for at, path in named.items():
        yield from _path_problems(at, path, "name an existing file or folder")


def _disk_path(config: RunConfig) -> Iterator[Problem]:
    offload = config.offload
    if offload.disk_path and {"disk", "auto"} & {offload.weights, offload.state}:
        at, right = ("offload", "disk_path"), "create it, or name another, on a fast local disk"
        yield from _path_problems(at, offload.disk_path, right, folder=True, access=os.W_OK | os.X_OK)


def _path_problems(
    at: KeyPath, name: str, right: str, *, folder: bool = False, access: int = os.R_OK
) -> Iterator[Problem]:
    """Yield a problem where there is no file or folder `name`, or it cannot be used so."""
    path, wrong = _looked_up(name)
    if path is None:
        yield Problem(at, wrong, right)
    elif not path.exists():
        what = "folder" if folder else "file or folder"
        yield Problem(at, f"there is no such {what}", nearest_file(path) or right)
    elif folder and not path.is_dir():
        yield Problem(at, "is not a folder", right)
    elif not os.access(path, access):
        wrong = "is not readable" if access == os.R_OK else "is not writable"
        yield Problem(at, wrong, "change its permissions, or name another")


def _trackers(config: RunConfig) -> Iterator[Problem]:
    for name in config.log.tracker:
        if not _is_installed(name):
            yield Problem(
                ("log", "tracker"),
                f"{name} is not installed",
                f'pip install "workbench[{name}]", or leave it out',
            )


def _adapter(config: RunConfig) -> Iterator[Problem]:
    if config.adapter is not None and not _is_installed("peft"):
        yield Problem(
            ("adapter",), "adapters need peft", 'pip install "workbench[peft]", or leave the table out'
        )


def _vocabulary(config: RunConfig) -> Iterator[Problem]:
    """A BPE may have fewer tokens than were asked for; all bytes and the end of a text are always there."""
    outputs, least = _size(config, "vocab_size"), SMALLEST
    if outputs is not None and outputs < least and is_made_here(config.data.tokenizer):
        tokens = least if config.data.tokenizer == "bytes" else f"at least {least}"
        if config.model.pretrained:
            yield Problem(
                ("data", "tokenizer"),
                f"has {tokens} tokens, and the model {outputs} outputs",
                "name the model's own",
            )
            return
        yield Problem(
            ("model", "config", "vocab_size"),
            f"the tokenizer has {tokens} tokens",
            "give the model at least as many, or choose another data.tokenizer",
        )


def _positions(config: RunConfig) -> Iterator[Problem]:
    length = config.data.sequence_length
    longest = model_positions(config)
    if longest and length > longest > 0:
        more = "" if config.model.pretrained else ", or give model.config more positions"
        yield Problem(
            ("data", "sequence_length"), f"the model has {longest} positions", f"lower it to {longest}{more}"
        )


def with_absolute_paths(config: RunConfig) -> RunConfig:
    """Return `config` with every file and folder that it names written from the root: a run may go on from anywhere.

    A name that may be the hub's, as no folder of that name is here, stays as it is.
    """

    def absolute(name: str) -> str:
        path, _ = _looked_up(name)
        return name if path is None else str(path.absolute())

    def unless_on_hub(name: str) -> str:
        return name if not name or is_made_here(name) or _may_be_on_hub(name) else absolute(name)

    model, data, offload = config.model, config.data, config.offload
    sources = [
        name if name == "stdlib" or name.startswith(HUB_DATASET) else absolute(name) for name in data.sources
    ]
    changes: dict[str, tuple[Table, dict[str, Any]]] = {
        "model": (model, {"pretrained": unless_on_hub(model.pretrained)}),
        "data": (
            data,
            {
                "source": sources[0] if isinstance(data.source, str) else sources,
                "tokenizer": unless_on_hub(data.tokenizer),
            },
        ),
        "evaluate": (
            config.evaluate,
            {
                "source": absolute(config.evaluate.source) if config.evaluate.source else "",
                "sources": {name: absolute(path) for name, path in config.evaluate.sources.items()},
            },
        ),
        "offload": (offload, {"disk_path": absolute(offload.disk_path) if offload.disk_path else ""}),
    }
    # Only what changes is set: a field that nobody named stays unnamed.
    return config.model_copy(
        update={
            name: table.model_copy(update={k: v for k, v in new.items() if v != getattr(table, k)})
            for name, (table, new) in changes.items()
        }
    )


REFERENCES: dict[str, Callable[[RunConfig], Iterator[Problem]]] = {
    "model.architecture": _architecture,
    "model.config": _settings,
    "model.pretrained": _pretrained,
    "data.source": _source,
    "data.tokenizer": _tokenizer,
    "evaluate": _evaluated,
    "offload.disk_path": _disk_path,
    "log.tracker": _trackers,
    "adapter": _adapter,
    "model.config.vocab_size": _vocabulary,
    "data.sequence_length": _positions,
}
"""The look-ups by the dotted name of their field or table."""
OF_THE_MODEL = frozenset(
    name
    for name in REFERENCES
    if name.startswith("model.") or name in ("data.tokenizer", "data.sequence_length")
)
"""Names that a resumed run finds in its checkpoints instead."""
OF_THE_PLAN = frozenset({"model.architecture", "model.config", "data.sequence_length"})
"""Names that a plan needs; it does without text and tokens."""


def nearest_file(path: Path) -> str:
    """Return a question for the file nearest to a path that is not there; empty where none is near."""
    try:
        names = [entry.name for entry in os.scandir(path.parent)]
    except (OSError, ValueError):
        return ""
    near = difflib.get_close_matches(path.name, names, n=1)
    return f"did you mean {toml_value(str(path.parent / near[0]))}?" if near else ""


def _looked_up(name: str) -> tuple[Path | None, str]:
    """Return the path called `name`, with its home written out, or else what is wrong with it."""
    try:
        path = Path(name).expanduser()
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return path, ""
    except RuntimeError:
        return None, f"there is no home folder {Path(name).parts[0]}"
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        return None, f"cannot be read: {reason}"
    return path, ""


def _may_be_on_hub(name: str) -> bool:
    """Return True where `name` has the form of a hub id and no file or folder of that name is here."""
    if ".." in name or HUB_ID.fullmatch(name) is None:
        return False
    path, _ = _looked_up(name)
    return path is not None and not path.exists()


def _is_installed(package: str) -> bool:
    try:
        return importlib.util.find_spec(package) is not None
    except (ImportError, ValueError):
        return False
