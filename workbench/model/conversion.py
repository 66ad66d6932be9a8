"""Which tensors of the files become which of the model's: renamed, joined or cut as transformers itself does it.

transformers fuses what files hold apart (experts), renames, and puts a prefix on or takes it off. Its own rules are
asked, with the names and shapes in the files' headers, before a byte of a weight is read; each `Conversion` can then be
carried out by itself.

Invariant: what a conversion gives is known, by name and shape, before it is carried out.
"""

from __future__ import annotations

import copy
import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from workbench.errors import ConfigurationError, WorkbenchError
from workbench.model.build import brief
from workbench.model.safetensors_reading import TensorInFile, read_into, room_for


@dataclass(eq=False)
class Conversion:
    """Tensors of the files that become one or several of the model's together.

    `sources`: with the pattern that each matched, in order. `converter`: transformers' own; None where one tensor goes
    by another name at most. `first`: of the model's tensors. `targets`: the shapes of all, by name.
    """

    first: str
    converter: Any = None
    sources: list[tuple[TensorInFile, str]] = field(default_factory=list)
    targets: dict[str, tuple[int, ...]] = field(default_factory=dict)

    def carry_out(self, model: nn.Module) -> dict[str, Tensor]:
        """The model's tensors by name, in the dtype of the files, in memory of their own.

        Raises:
            WorkbenchError: a file cannot be read any more.
        """
        if self.converter is None:
            place = self.sources[0][0]
            whole = room_for(place.shape, place.dtype)
            read_into([(place, whole)])
            return {self.first: whole}
        joined = self._join()
        if joined is not None:
            return joined
        tensors = [room_for(place.shape, place.dtype) for place, _ in self.sources]
        read_into(zip((place for place, _ in self.sources), tensors, strict=True))
        return self.convert(model, tensors)

    def convert(self, model: nn.Module, tensors: list[Tensor]) -> dict[str, Tensor]:
        """Let transformers' converter work on `tensors`, one for each source, and let go of them; meta ones will do."""
        described: Any = model
        converter = copy.deepcopy(self.converter)
        tensors.reverse()
        for place, pattern in self.sources:
            converter.add_tensor(self.first, place.name, pattern, tensors.pop())
        found = converter.convert(self.first, model=model, config=described.config)
        return {name: value[0] if isinstance(value, list) else value for name, value in found.items()}

    def _join(self) -> dict[str, Tensor] | None:
        """The same where tensors are only put beside each other: each is read straight to where it goes.

        None where the converter does more than that.
        """
        kinds = [type(operation).__name__ for operation in self.converter.operations]
        by_pattern = self._by_pattern()
        if len(self.targets) != 1 or len({place.dtype for place, _ in self.sources}) != 1:
            return None
        if kinds not in (["MergeModulelist"], ["MergeModulelist", "Concatenate"], ["Concatenate"]):
            return None
        ((name, shape),) = self.targets.items()
        whole = room_for(shape, self.sources[0][0].dtype)
        last = self.converter.operations[-1]
        stacked = self.converter.operations[0].dim if kinds[0] == "MergeModulelist" else None
        pairs: list[tuple[TensorInFile, Tensor]] = []
        begin = 0
        for places in by_pattern:
            part = whole
            if kinds[-1] == "Concatenate":
                size = sum(place.shape[last.dim] for place in places)
                if stacked is not None:
                    # Stacking puts one dimension in: the joined one is counted with it.
                    size = len(places) if last.dim == stacked else _stacked_shape(places, stacked)[last.dim]
                part = whole.narrow(last.dim, begin, size)
                begin += size
            if stacked is not None:
                pairs += [(place, part.select(stacked, number)) for number, place in enumerate(places)]
            else:
                at = 0
                for place in places:
                    pairs.append((place, part.narrow(last.dim, at, place.shape[last.dim])))
                    at += place.shape[last.dim]
        if any(place.shape != tuple(target.shape) for place, target in pairs):
            return None
        if sum(place.nbytes for place, _ in pairs) != whole.nbytes:
            return None
        read_into(pairs)
        return {name: whole}

    def _by_pattern(self) -> list[list[TensorInFile]]:
        """The sources as the converter goes through them: by its patterns, in order."""
        found: dict[str, list[TensorInFile]] = {pattern: [] for pattern in self.converter.source_patterns}
        for place, pattern in self.sources:
            found[pattern].append(place)
        return [places for places in found.values() if places]


def _stacked_shape(places: Sequence[TensorInFile], dim: int) -> list[int]:
    shape = list(places[0].shape)
    shape.insert(dim, len(places))
    return shape


@dataclass
class Conversions:
    """All of them. `of`: the conversion that gives each of the model's tensors that the files have, by name in the
    state dictionary. `unexpected`: tensors of the files that the model has no place for."""

    of: dict[str, Conversion]
    unexpected: list[str]


def find_conversions(model: nn.Module, places: Mapping[str, TensorInFile]) -> Conversions:
    """How the tensors at `places` become those of `model`, which may be on the meta device.

    What saves the model afterwards takes the same way back: `model` is told which of transformers' rules were used.

    Raises:
        ConfigurationError: tensors do not go together, or have not the shapes that the model needs.
        WorkbenchError: transformers has no such rules where they are looked for.
    """
    described: Any = model
    try:
        core: Any = importlib.import_module("transformers.core_model_loading")
        rules = importlib.import_module("transformers.conversion_mapping").get_model_conversion_mapping(model)
        renamings = [rule for rule in rules if isinstance(rule, core.WeightRenaming)]
        converters = [rule for rule in rules if isinstance(rule, core.WeightConverter)]
        prefix = described.base_model_prefix
        state = {name: tensor.to("meta") for name, tensor in model.state_dict().items()}
        # A rule may depend on what it has seen: names come in transformers' own order.
        names = sorted(places, key=core.dot_natural_key)
        core.rename_source_key("", renamings, converters, prefix, state)
    except (ImportError, AttributeError, TypeError) as error:
        # No promised part of transformers: it may move or change.
        raise WorkbenchError(
            f"this transformers does not tell how its models are loaded ({error}); install one from 5.17 to 5.23"
        ) from error
    by_pattern = {pattern: converter for converter in converters for pattern in converter.source_patterns}
    found: dict[str, Conversion] = {}
    unexpected: list[str] = []
    for name in names:
        renamed, pattern = core.rename_source_key(name, renamings, converters, prefix, state)
        if renamed not in state and name in state:
            # A name that should not have been changed, and may still lack the prefix.
            renamed, pattern = core.rename_source_key(name, [], [], prefix, state)
        if renamed not in state:
            unexpected.append(name)
            continue
        converter = None if pattern is None else by_pattern[pattern]
        conversion = found.setdefault(renamed, Conversion(renamed, converter))
        if conversion.converter is None and conversion.sources:
            unexpected.append(name)
            continue
        conversion.sources.append((places[name], pattern if pattern is not None else name))
    described._weight_conversions = [rule for rule in rules if rule.was_used()]
    of: dict[str, Conversion] = {}
    for conversion in found.values():
        conversion.targets = _targets(model, conversion)
        for target, shape in conversion.targets.items():
            if target not in state:
                unexpected += [place.name for place, _ in conversion.sources]
                continue
            _check_shape(conversion, target, shape, tuple(state[target].shape))
            of.setdefault(target, conversion)
    return Conversions(of, unexpected)


def _targets(model: nn.Module, conversion: Conversion) -> dict[str, tuple[int, ...]]:
    if conversion.converter is None:
        return {conversion.first: conversion.sources[0][0].shape}
    tensors = [torch.empty(p.shape, dtype=p.dtype, device="meta") for p, _ in conversion.sources]
    try:
        return {name: tuple(t.shape) for name, t in conversion.convert(model, tensors).items()}
    except Exception as error:
        raise ConfigurationError(
            f"{_title(conversion)} do not go together as {conversion.first}: {brief(error)}; "
            "some of them may be missing, or config.json is of another model"
        ) from error


def _check_shape(
    conversion: Conversion, target: str, shape: tuple[int, ...], needed: tuple[int, ...]
) -> None:
    if shape == needed:
        return
    place = conversion.sources[0][0]
    if conversion.converter is None:
        raise ConfigurationError(
            f"{place.path}: tensor {place.name} has the shape {list(shape)}, and config.json beside it makes it "
            f"{list(needed)}: the two are not of one model"
        )
    raise ConfigurationError(
        f"{_title(conversion)} come to the shape {list(shape)} as {target}, and config.json beside them makes it "
        f"{list(needed)}: a tensor is missing, or the two are not of one model"
    )


def _title(conversion: Conversion) -> str:
    place = conversion.sources[0][0]
    return f"{place.path}: the {len(conversion.sources)} tensors that begin with {place.name}"
