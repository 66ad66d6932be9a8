"""Write a model as the Hugging Face folder that `from_pretrained` loads, from weights that come unit by unit.

Names and shapes in the files are transformers' own: what it fused when it built the model (experts) is taken apart
again, a unit at a time. The names of the whole model's files are found first, on the meta device, where it costs
nothing.

Invariant: at most one unit is held at a time, except where taking apart needs tensors of several.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Iterable
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from workbench.engine.blocks.model_guard import names_only
from workbench.engine.precision import dtype_name
from workbench.model.adapter import save_adapter
from workbench.model.safetensors_files import LARGEST_FILE_BYTES, SafetensorsFiles, Spans

Tensors = dict[str, Tensor]


def save_model(
    model: nn.Module, units: Iterable[Tensors], folder: Path, *, largest_file_bytes: int = LARGEST_FILE_BYTES
) -> dict[str, Spans]:
    """Write safetensors with their index, `config.json` and the generation configuration into an empty `folder`.

    Returns the checksums of the files of weights by their names. Of a model with an adapter only that is written, by
    `save_adapter`.

    Args:
        model: a transformers model, or any other, of which weights and buffers alone are written. The values of its own
            parameters are not looked at.
        units: gives every parameter once, by its first name in `model.named_parameters()`.
        folder: made where it is missing.
        largest_file_bytes: the most bytes of tensors in a file.

    Raises:
        ValueError: `units` lacks a parameter.
        OSError: the disk does not take it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if not hasattr(model, "save_pretrained"):
        return _save_plain(model, units, folder, largest_file_bytes)
    if has_adapter(model):
        save_adapter(model, units, folder)
        return {}
    checksums: dict[str, Spans] = {}
    revert = _reversal(model)
    if revert is None:
        dtype = _write_gathered(model, units, folder)
    else:
        # Everything but weights: configurations, and the code of an architecture that brings its own.
        _save_pretrained(model, folder, {})
        dtype, checksums = _write_weights(model, revert, units, folder, largest_file_bytes)
    if dtype is not None:
        # A streamed parameter has the dtype that it is computed in, which need not be that of its weights.
        described: Any = model
        described.config.dtype = dtype_name(dtype)
        described.config.save_pretrained(folder)
    return checksums


def _save_plain(
    model: nn.Module, units: Iterable[Tensors], folder: Path, largest_file_bytes: int
) -> dict[str, Spans]:
    buffers = {
        name: buffer for name, buffer in model.state_dict().items() if name in dict(model.named_buffers())
    }
    shapes = {name: tuple(tensor.shape) for name, tensor in (*model.named_parameters(), *buffers.items())}
    with SafetensorsFiles(folder, shapes, largest_file_bytes) as files:
        for unit in chain(units, [buffers]):
            files.add(unit)
    return files.checksums


def has_adapter(model: nn.Module) -> bool:
    """Return True where `save_model` writes the model's adapter alone."""
    return bool(getattr(model, "peft_config", None))


def _write_weights(
    model: nn.Module,
    revert: Callable[[Tensors], Tensors],
    units: Iterable[Tensors],
    folder: Path,
    largest_file_bytes: int,
) -> tuple[torch.dtype | None, dict[str, Spans]]:
    """Write the files of weights; return the dtype of the first floating-point parameter, which stands for the
    model's, and the files' checksums."""
    names = _saved_names(model)
    buffers = _buffers(model)
    whole = _on_meta(dict(model.named_parameters()))
    shapes = revert(_gather([whole], names) | _on_meta(buffers))
    first = _first_of_floating_point(model)
    dtype = None
    held: Tensors = {}
    with SafetensorsFiles(
        folder, {n: tuple(t.shape) for n, t in shapes.items()}, largest_file_bytes
    ) as files:
        for unit in chain(units, [buffers]):
            dtype = unit[first].dtype if first in unit else dtype
            given = unit if unit is buffers else _gather([unit], names)
            reverted = _try(revert, given)
            if reverted is not None and files.awaits(reverted):
                files.add(reverted)
            else:
                held.update(given)
            # The next unit is read before these names are bound again.
            del unit, given, reverted
        if held:
            files.add(revert(held))
    return dtype, files.checksums


def _write_gathered(model: nn.Module, units: Iterable[Tensors], folder: Path) -> torch.dtype | None:
    """Write the same with the whole model in memory, for a transformers that only does it all at once."""
    names = _saved_names(model)
    tensors = _gather(units, names)
    missing = {name for saved in names.values() for name in saved}.difference(tensors)
    if missing:
        raise ValueError(f"{len(missing)} tensors were not given, one of them {min(missing)}")
    first = names.get(_first_of_floating_point(model) or "")
    dtype = tensors[first[0]].dtype if first else None
    _save_pretrained(model, folder, tensors | _buffers(model))
    return dtype


def _save_pretrained(model: nn.Module, folder: Path, tensors: Tensors) -> None:
    from safetensors import SafetensorError

    saved: Any = model
    try:
        saved.save_pretrained(folder, state_dict=tensors, max_shard_size=LARGEST_FILE_BYTES)
    except SafetensorError as error:
        # safetensors reports a full disk as text; the run's answer to it is the one to any other OSError.
        raise OSError(f"{folder}: {error}") from error


def _reversal(model: nn.Module) -> Callable[[Tensors], Tensors] | None:
    """Return a function from tensors as the model has them to those of its files; None where transformers has none."""
    try:
        loading: Any = importlib.import_module("transformers.core_model_loading")
        with names_only():
            loading.revert_weight_conversion(model, {})
    except (ImportError, AttributeError, TypeError):
        # No promised part of transformers: it may move or change.
        return None

    def revert(tensors: Tensors) -> Tensors:
        with names_only():  # it asks the model for its state dictionary
            return dict(loading.revert_weight_conversion(model, dict(tensors)))

    return revert


def _try(revert: Callable[[Tensors], Tensors], tensors: Tensors) -> Tensors | None:
    try:
        return revert(tensors)
    except Exception:  # whatever an operation raises that misses a part of what it needs
        return None


def _places(model: nn.Module) -> dict[str, list[str]]:
    """Return all names of each parameter in the state dictionary, by its first one."""
    first = {id(parameter): name for name, parameter in model.named_parameters()}
    places: dict[str, list[str]] = {name: [] for name in first.values()}
    for name, tensor in model.state_dict(keep_vars=True).items():
        if id(tensor) in first:
            places[first[id(tensor)]].append(name)
    return places


def _first_of_floating_point(model: nn.Module) -> str | None:
    return next((name for name, p in model.named_parameters() if p.is_floating_point()), None)


def _saved_names(model: nn.Module) -> dict[str, list[str]]:
    """Return the names that each parameter is saved under, by its first one: one name, unless a tie is undeclared."""
    tied = [
        re.compile(f"{path}.{key}" if path else key)
        for path, module in model.named_modules()
        for key in getattr(module, "_tied_weights_keys", None) or {}
    ]
    ignored = set(getattr(model, "_keys_to_ignore_on_save", None) or ())
    names = {}
    for first, places in _places(model).items():
        saved = sorted(name for name in places if name not in ignored)
        if len(saved) > 1:
            # The names that loading ties to another are left out, but never all.
            saved = [name for name in saved if not any(key.search(name) for key in tied)] or saved[-1:]
        names[first] = saved
    return names


def _buffers(model: nn.Module) -> Tensors:
    """Return the persistent buffers by name."""
    parameters = {id(parameter) for parameter in model.parameters()}
    ignored = set(getattr(model, "_keys_to_ignore_on_save", None) or ())
    return {
        name: tensor.detach()
        for name, tensor in model.state_dict(keep_vars=True).items()
        if isinstance(tensor, Tensor) and id(tensor) not in parameters and name not in ignored
    }


def _gather(units: Iterable[Tensors], names: dict[str, list[str]]) -> Tensors:
    """Return the tensors of `units` under all of their `names`."""
    return {name: t for unit in units for first, t in unit.items() for name in names[first]}


def _on_meta(tensors: dict[str, Any]) -> Tensors:
    return {
        name: torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")
        for name, tensor in tensors.items()
        if isinstance(tensor, Tensor)
    }
