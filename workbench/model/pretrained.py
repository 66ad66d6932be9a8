"""Find a pretrained model's files, and hold its `config.json` to the [model] table.

A folder is taken as it stands and no network is touched; anything else is a hub id (`hub.py`). Weights are safetensors
and nothing else: pickle files can run any code when they are loaded, and are never opened.

Invariant: every file that an index names is there. Sizes and shapes are looked at when the weights are (`loading.py`).
Whatever changes shapes, or was written in the table and changes arithmetic, is the same in table and files.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Any

from torch import nn

from workbench.config.references import HUB_ID
from workbench.errors import ConfigurationError, brief
from workbench.model.build import build_on_meta
from workbench.model.hub import INDEX_FILE, WEIGHTS_FILE, fetch, read_index, read_json

CONFIG_FILE = "config.json"
PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")
HARMLESS = re.compile(
    r"(.*_token_id|architectures|auto_map|transformers_version|_?name_or_path|dtype|torch_dtype|use_cache|"
    r"initializer_range|.*_initializer_range|init_std|output_.*|return_dict|use_return_dict|id2label|label2id|"
    r"num_labels|problem_type|task_specific_params|gradient_checkpointing|summary_.*|is_decoder|pretraining_tp)"
)
"""Settings that change neither shapes nor what a forward in training computes."""
NAMED = 3
"""Settings that a message names before it counts the rest."""


@dataclass(frozen=True)
class PretrainedFiles:
    """A model's files. `name`: as the configuration has it. `weights`: the safetensors files; empty where only the
    description was asked for. `index`: the file of each tensor by its name, where there is an index. `commit`: of the
    hub's repository that they are from."""

    name: str
    folder: Path
    weights: tuple[Path, ...] = ()
    index: Mapping[str, str] | None = None
    commit: str = ""


def find_pretrained(
    name: str,
    revision: str = "",
    *,
    weights: bool = True,
    fresh: bool = True,
    trust_remote_code: bool = False,
    log: Callable[[str], None] = lambda _: None,
) -> PretrainedFiles:
    """Return the files of the model called `name`: a folder, or a hub id, from where what is missing is fetched.

    Without `weights` only what describes the model is looked for, and unless `fresh` the hub is not asked for what is
    in its cache. `log` gets the progress of a download. The hub's own settings (HF_HUB_OFFLINE, HF_HOME, HF_TOKEN) are
    respected.

    Raises:
        ConfigurationError: there is no such folder or id, or it holds no model that can be loaded.
        WorkbenchError: the hub cannot be reached, or the disk has no room.
    """
    folder = local_folder(name)
    if folder is not None:
        return files_in(folder, name, weights=weights)
    folder = fetch(name, revision, weights=weights, fresh=fresh, code=trust_remote_code, log=log)
    return replace(files_in(folder, name, weights=weights), commit=folder.name)


def local_folder(name: str) -> Path | None:
    """Return the folder called `name`; None where it can only be an id of the hub.

    Raises:
        ConfigurationError: it is neither.
    """
    where = f'model.pretrained = "{name}"'
    try:
        folder = Path(name).expanduser()
        if folder.is_dir():
            return folder
        is_file = folder.exists()
    except (OSError, RuntimeError, ValueError) as error:
        raise ConfigurationError(f"{where}: {error}; name a folder or a hub id") from error
    if is_file:
        raise ConfigurationError(f"{where} is a file; name the folder that holds it, with its {CONFIG_FILE}")
    if HUB_ID.fullmatch(name) is None or ".." in name:
        raise ConfigurationError(
            f'{where}: there is no such folder, and it is not a hub id such as "Qwen/Qwen3-0.6B"'
        )
    return None


def files_in(folder: Path, name: str, *, weights: bool = True) -> PretrainedFiles:
    """Return the files of the model in `folder`; see `find_pretrained`."""
    if not (folder / CONFIG_FILE).is_file():
        raise ConfigurationError(f'model.pretrained = "{name}": {_no_config(folder)}')
    if not weights:
        return PretrainedFiles(name, folder)
    # As transformers has it: the single file before the index.
    if (folder / WEIGHTS_FILE).is_file():
        return PretrainedFiles(name, folder, (folder / WEIGHTS_FILE,))
    if not (folder / INDEX_FILE).is_file():
        raise ConfigurationError(f'model.pretrained = "{name}": {_no_weights(folder)}')
    index = read_index(folder / INDEX_FILE)
    paths = tuple(folder / file for file in sorted(set(index.values())))
    for path in paths:
        if not path.is_file():
            lost = [tensor for tensor, file in index.items() if file == path.name]
            raise ConfigurationError(
                f"{path} is missing: {folder / INDEX_FILE} has {len(lost)} tensors in it, one of them {min(lost)}; "
                "download the file again"
            )
    return PretrainedFiles(name, folder, paths, index)


def _no_config(folder: Path) -> str:
    if (folder / "adapter_config.json").is_file():
        base = read_json(folder / "adapter_config.json").get("base_model_name_or_path")
        return f"{folder} holds an adapter and no model; name the model that it was made for ({base})"
    if (folder / "checkpoints").is_dir():
        return f"{folder} is a run; name one of its checkpoints, {folder}/checkpoints/step-…"
    if any(folder.glob("*.gguf")):
        return f"{folder} holds GGUF files, which cannot be trained; name a folder with safetensors"
    return f"{folder} has no {CONFIG_FILE}; name a folder that save_pretrained wrote"


def _no_weights(folder: Path) -> str:
    pickles = sorted(path.name for pattern in PICKLES for path in folder.glob(pattern))
    if pickles:
        return (
            f"{folder} has its weights as pickle files only ({pickles[0]}), which can run any code when they are "
            "loaded and are never loaded here; where you trust them, load them once with transformers and "
            "save_pretrained them, which writes safetensors"
        )
    others = sorted(path.name for path in folder.glob("*.safetensors"))
    beside = f" (there is {others[0]})" if others else ""
    return f"{folder} has neither {WEIGHTS_FILE} nor {INDEX_FILE}{beside}"


def pretrained_config(files: PretrainedFiles, *, trust_remote_code: bool = False) -> Any:
    """Return the transformers configuration of a pretrained model.

    Raises:
        ConfigurationError: it cannot be read, is of no causal language model that transformers has, needs code that is
            not trusted, or its weights are quantised.
    """
    from transformers import CONFIG_MAPPING, AutoConfig
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    path = files.folder / CONFIG_FILE
    settings = read_json(path)
    where = f'model.pretrained = "{files.name}"'
    quantised = settings.get("quantization_config")
    if quantised:
        method = quantised.get("quant_method", "?") if isinstance(quantised, dict) else quantised
        raise ConfigurationError(
            f"{where}: its weights are quantised ({method}), which cannot be trained; name the model before it was "
            "quantised"
        )
    kind = settings.get("model_type")
    code = settings.get("auto_map")
    known = isinstance(kind, str) and kind in CONFIG_MAPPING and kind in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    if not known and code and not trust_remote_code:
        raise ConfigurationError(
            f"{where}: it has its own code, which would run on this machine; read it ({_code_files(code)}), and "
            "if you trust it set model.trust_remote_code = true"
        )
    if not known and not code:
        raise ConfigurationError(
            f"{path}: model_type = {kind!r} is not a causal language model that transformers "
            f"{metadata.version('transformers')} has"
        )
    try:
        found = AutoConfig.from_pretrained(files.folder, trust_remote_code=trust_remote_code)
        found.get_text_config()  # refused here where it has several
        return found
    except Exception as error:
        raise ConfigurationError(f"{path} describes no model: {brief(error)}") from error


def _code_files(code: Any) -> str:
    references = code.values() if isinstance(code, dict) else ()
    files = {str(r).rpartition("--")[2].partition(".")[0] + ".py" for r in references if isinstance(r, str)}
    return ", ".join(sorted(files)) or "the files named in auto_map"


def check_description(
    described: Any, written: Iterable[str], actual: Any, model: nn.Module, where: str
) -> None:
    """Refuse a table whose model is another than that of the files.

    Args:
        described: the transformers configuration made of the table.
        written: the keys that the table sets itself.
        actual: the configuration of the files; `model` is built of it, on the meta device.
        where: the name of the files in messages.

    Raises:
        ConfigurationError: naming a setting and both its values.
    """
    if described.model_type != actual.model_type:
        raise ConfigurationError(
            f'model.architecture = "{described.model_type}": {where} is of the architecture "{actual.model_type}"'
        )
    keys = {key for key in written if not HARMLESS.fullmatch(key)}
    if any(key.startswith("rope") for key in keys):
        keys.add("rope_parameters")
    differing = [key for key in sorted(keys) if _differ(described, actual, key)]
    if differing:
        raise ConfigurationError(_message(differing, described, actual, where))
    if _shapes(build_on_meta(described)) != _shapes(model):
        every = {*described.to_dict(), *actual.to_dict()}
        differing = [
            key for key in sorted(every) if not HARMLESS.fullmatch(key) and _differ(described, actual, key)
        ]
        raise ConfigurationError(_message(differing, described, actual, where))


def _differ(described: Any, actual: Any, key: str) -> bool:
    nothing = object()
    values = [getattr(config, key, nothing) for config in (described, actual)]
    return nothing not in values and _plain(values[0]) != _plain(values[1])


def _plain(value: Any) -> Any:
    if hasattr(value, "to_dict"):
        value = value.to_dict()
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items() if not HARMLESS.fullmatch(str(key))}
    return [_plain(item) for item in value] if isinstance(value, (list, tuple)) else value


def _shapes(model: nn.Module) -> dict[str, tuple[int, ...]]:
    return {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}


def _message(keys: list[str], described: Any, actual: Any, where: str) -> str:
    parts = [
        f"model.config.{key} is {getattr(described, key)!r} and there it is {getattr(actual, key)!r}"
        for key in keys[:NAMED]
    ]
    more = f", and {len(keys) - NAMED} more differ" if len(keys) > NAMED else ""
    what = "; ".join(parts) + more if parts else "their parameters have other shapes"
    return (
        f"[model] describes another model than {where}: {what}; write there what the files have, or leave "
        "architecture and [model.config] out"
    )
