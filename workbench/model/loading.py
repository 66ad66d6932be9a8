"""Give a model on the meta device its pretrained weights, a unit at a time, straight from the files.

Tensors that the files lack are drawn as the architecture draws them, tensors without a place in the model are left out,
and both are in a warning; files that lack a good part of a model are refused, for they are another's.

Invariant: above what the engine keeps, one unit is in memory, in the dtype of the files. A unit's values depend on
the files and, where these lack something, on (seed, unit) alone. Trainable parameters are mapped from their files until
the engine has copied them; frozen ones, which an engine on the CPU may keep as they are, are copied.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from workbench.engine.blocks.discovery import FoundUnit, find_blocks
from workbench.errors import ConfigurationError
from workbench.model.build import UnitInitializer
from workbench.model.conversion import Conversion, find_conversions
from workbench.model.pretrained import PretrainedFiles
from workbench.model.safetensors_files import StoredTensor, mapped_files, stored_tensors

MOST_MISSING = 0.25
"""Of the elements outside the head: files that lack more are of another model."""
NAMED = 3
"""Tensors that a message names before it counts the rest."""
LEGACY = (r"rotary_emb\.inv_freq", r"(^|\.)position_ids$")
"""Buffers that old files have and that are computed now."""


class PretrainedUnits:
    """Gives a unit's meta parameters the values in `files`: the engine's `materialize`.

    Floating-point values come in the dtype of the files (float64 as float32); the engine narrows or widens them.

    Args:
        model: on the meta device, as it is built from the files' configuration. Its declared ties are undone where
            the files have both ends with different values, as transformers does.
        files: the files of weights.
        seed: of the tensors that the files lack.
        blank: leave trainable parameters unset, because a checkpoint overwrites them all; the rest is read.

    `warnings`: a sentence each, for the user.

    Raises:
        ConfigurationError: files are damaged, or are not those of `model`.
    """

    def __init__(self, model: nn.Module, files: PretrainedFiles, seed: int, *, blank: bool = False) -> None:
        self._model = model
        self._blank = blank
        self.warnings: list[str] = []
        conversions = find_conversions(model, find_tensors(files))
        self._of = conversions.of
        self._untie(model, files)
        self._names: dict[int, list[str]] = {}
        """The names of each parameter and persistent buffer, by its identity on the meta device."""
        self._kept: list[Tensor] = []
        for name, tensor in model.state_dict(keep_vars=True).items():
            if isinstance(tensor, Tensor):
                self._names.setdefault(id(tensor), []).append(name)
                self._kept.append(tensor)
        self._buffers = [
            (module, attribute, tensor, self._given(tensor))
            for module in model.modules()
            for attribute, tensor in module._buffers.items()
            if tensor is not None and id(tensor) in self._names
        ]
        self._check_missing(model, files)
        self._check_unexpected(model, files, conversions.unexpected)
        self._check_dtypes(model)
        self._initializer = UnitInitializer(model, seed)
        self._read_buffers(lambda module: not any(p is not None for p in module._parameters.values()))

    def __call__(self, unit: FoundUnit) -> None:
        """Replace the unit's meta parameters by real ones on the CPU."""
        wanted: dict[str, list[str]] = {}
        lacking = []
        for name, parameter in unit.parameters.items():
            given = self._given(parameter)
            if given is not None:
                wanted.setdefault(given, []).append(name)
            elif parameter.is_meta:
                lacking.append(name)
        self._initializer.initialize(unit, lacking)
        owners = {id(module) for module in unit.modules()}
        self._read_buffers(lambda module: id(module) in owners)
        for target, tensor in self._read(unit, wanted):
            for name in wanted[target]:
                parameter = nn.Parameter(tensor, requires_grad=unit.parameters[name].requires_grad)
                # No later drawing touches it.
                parameter._is_hf_initialized = True  # type: ignore[attr-defined]
                unit.replace(name, parameter)
        if not self._blank:
            self._initializer.check_set(unit)

    def _read(self, unit: FoundUnit, wanted: Mapping[str, list[str]]) -> Iterator[tuple[str, Tensor]]:
        """Yield the values of the model's tensors in `wanted`, a conversion at a time."""
        fused: list[Conversion] = []
        with mapped_files() as read:
            for target, names in wanted.items():
                parameter, conversion = unit.parameters[names[0]], self._of[target]
                if self._blank and parameter.requires_grad:
                    yield target, torch.empty(parameter.shape)
                elif conversion.converter is not None:
                    fused += [conversion] if conversion not in fused else []
                else:
                    yield target, _value(conversion.carry_out(self._model, read)[target], parameter)
            for conversion in fused:
                found = conversion.carry_out(self._model, read)
                for target in [name for name in found if name in wanted]:
                    yield target, _narrowed(found.pop(target))

    def _read_buffers(self, of: Callable[[nn.Module], bool]) -> None:
        """Give the persistent buffers of the modules that `of` picks what the files have for them."""
        for module, attribute, tensor, given in self._buffers:
            if given is not None and of(module):
                with mapped_files() as read:
                    value = self._of[given].carry_out(self._model, read)[given]
                module._buffers[attribute] = value.to(tensor.dtype, copy=True)

    def _given(self, tensor: Tensor) -> str | None:
        """Return the name under which the files have `tensor`; None where they lack it."""
        names = [name for name in self._names.get(id(tensor), ()) if name in self._of]
        tied = getattr(self._model, "all_tied_weights_keys", None) or {}
        # Of a tie, the end that the other is tied to.
        return min(names, key=lambda name: name in tied, default=None)

    def _untie(self, model: nn.Module, files: PretrainedFiles) -> None:
        described: Any = model
        tied = getattr(model, "all_tied_weights_keys", None) or {}
        for end, source in list(tied.items()):
            ends = [self._of.get(name) for name in (end, source)]
            if any(conversion is None or conversion.converter is not None for conversion in ends):
                continue
            one, other = (conversion.sources[0][0] for conversion in ends if conversion is not None)
            with mapped_files() as read:
                if same_bits(read(one), read(other)):
                    continue
            path, _, attribute = end.rpartition(".")
            owner = model.get_submodule(path)
            before = owner._parameters[attribute]
            assert before is not None
            owner._parameters[attribute] = nn.Parameter(torch.empty_like(before), before.requires_grad)
            del described.all_tied_weights_keys[end]
            for config in (described.config, described.config.get_text_config()):
                config.tie_word_embeddings = False
            self.warnings.append(
                f"{files.name}: its config.json ties {end} to {source}, and its files have both with different values: "
                "they are trained apart"
            )

    def _check_missing(self, model: nn.Module, files: PretrainedFiles) -> None:
        missing = {
            name: parameter for name, parameter in model.named_parameters() if self._given(parameter) is None
        }
        for name, block in find_blocks(model).items():
            inside = list(block.parameters())
            if inside and all(self._given(parameter) is None for parameter in inside):
                raise ConfigurationError(
                    f"{files.folder}: its files have no tensors of block {name}, which its config.json defines; they "
                    f"are another model's, or files are missing{_found_instead(self._of)}"
                )
        described: Any = model
        head = described.get_output_embeddings()
        apart = {id(p) for p in head.parameters()} if head is not None else set()
        apart -= {id(p) for p in described.get_input_embeddings().parameters()}
        rest = [parameter for parameter in model.parameters() if id(parameter) not in apart]
        lacking = sum(p.numel() for p in missing.values() if id(p) not in apart)
        share = lacking / max(1, sum(parameter.numel() for parameter in rest))
        if share > MOST_MISSING or len(missing) == len(list(model.parameters())):
            raise ConfigurationError(
                f"{files.folder}: its files lack {share:.0%} of the weights that its config.json defines "
                f"({_some(list(missing))}); they are another model's, or files are missing{_found_instead(self._of)}"
            )
        silent = getattr(model, "_keys_to_ignore_on_load_missing", None) or ()
        names = [name for name in missing if not any(re.search(pattern, name) for pattern in silent)]
        names += [self._names[id(t)][0] for _, _, t, given in self._buffers if given is None]
        if names:
            self.warnings.append(
                f"{files.name}: its files have no values for {_some(names)}: these get the architecture's initial "
                "values"
            )

    def _check_unexpected(self, model: nn.Module, files: PretrainedFiles, names: list[str]) -> None:
        known = (*LEGACY, *(getattr(model, "_keys_to_ignore_on_load_unexpected", None) or ()))
        odd = [name for name in names if not any(re.search(pattern, name) for pattern in known)]
        if odd:
            self.warnings.append(
                f"{files.name}: its files have {_some(odd)}, which the model does not use: left out"
            )

    def _check_dtypes(self, model: nn.Module) -> None:
        for parameter in model.parameters():
            given = self._given(parameter)
            if given is None or not parameter.is_floating_point():
                continue
            place = self._of[given].sources[0][0]
            if not place.dtype.is_floating_point or place.dtype.itemsize < 2:
                raise ConfigurationError(
                    f"{place.path}: tensor {place.name} is stored as {str(place.dtype).removeprefix('torch.')}, which "
                    "cannot be trained; name the model before it was quantised"
                )


def find_tensors(files: PretrainedFiles) -> dict[str, StoredTensor]:
    """Return every tensor of `files` by its name.

    Raises:
        ConfigurationError: a file is damaged, or lacks a tensor that the index has in it.
    """
    found: dict[str, StoredTensor] = {}
    for path in files.weights:
        tensors = stored_tensors(path)
        for name, file in (files.index or {}).items():
            if file == path.name and name not in tensors:
                raise ConfigurationError(
                    f"{path} lacks tensor {name}, which the index lists; download it again"
                )
        found |= tensors
    return found


def same_bits(one: Tensor, other: Tensor) -> bool:
    """Return True where two contiguous tensors have the same dtype, shape and bits."""
    if (one.dtype, one.shape) != (other.dtype, other.shape):
        return False
    return torch.equal(one.reshape(-1).view(torch.uint8), other.reshape(-1).view(torch.uint8))


def _value(tensor: Tensor, parameter: Tensor) -> Tensor:
    tensor = _narrowed(tensor)
    return tensor if parameter.requires_grad else tensor.clone()


def _narrowed(tensor: Tensor) -> Tensor:
    return tensor.float() if tensor.dtype == torch.float64 else tensor


def _some(names: list[str]) -> str:
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + more


def _found_instead(of: Mapping[str, Conversion]) -> str:
    return "" if of else " (not one name fits)"
