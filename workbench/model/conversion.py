"""Turn the tensors of the files into those of the model: renamed, joined or cut as transformers itself does it.

transformers fuses tensors that files hold apart (experts), renames, and puts a prefix on or takes it off. Its own rules
are asked, with the names and shapes of the files' headers, before a byte of a weight is read; each `Conversion` can
then be carried out by itself.

Invariant: names and shapes of a conversion's result are known before it is carried out.
"""

from __future__ import annotations

import copy
import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from workbench.errors import ConfigurationError, WorkbenchError, brief
from workbench.model.safetensors_files import Read, StoredTensor


@dataclass(eq=False)
class Conversion:
    """Tensors of the files that become one or several of the model's together.

    `sources`: with the pattern that each matched, in order. `converter`: transformers' own; None where a tensor is at
    most renamed. `first`: the name of the first result. `targets`: the shapes of all results, by name.
    """

    first: str
    converter: Any = None
    sources: list[tuple[StoredTensor, str]] = field(default_factory=list)
    targets: dict[str, tuple[int, ...]] = field(default_factory=dict)

    def carry_out(self, model: nn.Module, read: Read) -> dict[str, Tensor]:
        """Return the model's tensors by name, in the dtype of the files; what is only renamed stays mapped.

        Raises:
            ConfigurationError: a file cannot be read any more.
        """
        if self.converter is None:
            return {self.first: read(self.sources[0][0])}
        operations = [type(operation).__name__ for operation in self.converter.operations]
        alike = len(self.targets) == 1 and len({stored.dtype for stored, _ in self.sources}) == 1
        if alike and operations == ["MergeModulelist", "Concatenate"]:
            return self._stack_and_join(read)
        return self.convert(model, [read(stored) for stored, _ in self.sources])

    def convert(self, model: nn.Module, tensors: list[Tensor]) -> dict[str, Tensor]:
        """Return what transformers' converter makes of `tensors`, one for each source; meta tensors will do."""
        described: Any = model
        converter = copy.deepcopy(self.converter)
        for (stored, pattern), tensor in zip(self.sources, tensors, strict=True):
            converter.add_tensor(self.first, stored.name, pattern, tensor)
        found = converter.convert(self.first, model=model, config=described.config)
        return {name: value[0] if isinstance(value, list) else value for name, value in found.items()}

    def _stack_and_join(self, read: Read) -> dict[str, Tensor]:
        """Stack the tensors of each pattern and join the stacks in place: transformers would hold the experts twice."""
        stack, join = self.converter.operations
        ((name, shape),) = self.targets.items()
        whole = torch.empty(shape, dtype=self.sources[0][0].dtype)
        begin = 0
        for wanted in self.converter.source_patterns:
            group = [stored for stored, pattern in self.sources if pattern == wanted]
            if not group:
                continue
            stacked = list(group[0].shape)
            stacked.insert(stack.dim, len(group))
            part = whole.narrow(join.dim, begin, stacked[join.dim])
            for number, stored in enumerate(group):
                part.select(stack.dim, number).copy_(read(stored))
            begin += stacked[join.dim]
        return {name: whole}


@dataclass
class Conversions:
    """All conversions of a model. `of`: the conversion that gives each tensor of the state dictionary that the files
    have, by its name. `unexpected`: tensors of the files that the model has no place for."""

    of: dict[str, Conversion]
    unexpected: list[str]


def find_conversions(model: nn.Module, stored: Mapping[str, StoredTensor]) -> Conversions:
    """Return how the tensors `stored` become those of `model`, which may be on the meta device.

    Notes in `model` which of transformers' rules were used: saving it takes the same way back.

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
        names = sorted(stored, key=core.dot_natural_key)
        core.rename_source_key("", renamings, converters, prefix, state)
    except (ImportError, AttributeError, TypeError) as error:
        # No promised part of transformers: it may move or change.
        raise WorkbenchError(
            f"this version of transformers does not show how its models are loaded ({error}); install one from 5.17 "
            "to 5.23"
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
        conversion.sources.append((stored[name], pattern if pattern is not None else name))
    described._weight_conversions = [rule for rule in rules if rule.was_used()]
    of: dict[str, Conversion] = {}
    for conversion in found.values():
        conversion.targets = _targets(model, conversion)
        for target, shape in conversion.targets.items():
            if target not in state:
                unexpected += [source.name for source, _ in conversion.sources]
                continue
            _check_shape(conversion, target, shape, tuple(state[target].shape))
            of.setdefault(target, conversion)
    return Conversions(of, unexpected)


def _targets(model: nn.Module, conversion: Conversion) -> dict[str, tuple[int, ...]]:
    if conversion.converter is None:
        return {conversion.first: conversion.sources[0][0].shape}
    tensors = [torch.empty(s.shape, dtype=s.dtype, device="meta") for s, _ in conversion.sources]
    try:
        return {name: tuple(t.shape) for name, t in conversion.convert(model, tensors).items()}
    except Exception as error:
        raise ConfigurationError(
            f"{_title(conversion)} do not combine to {conversion.first}: {brief(error)}; "
            "some of them may be missing, or config.json is of another model"
        ) from error


def _check_shape(
    conversion: Conversion, target: str, shape: tuple[int, ...], needed: tuple[int, ...]
) -> None:
    if shape == needed:
        return
    source = conversion.sources[0][0]
    if conversion.converter is None:
        raise ConfigurationError(
            f"{source.path}: tensor {source.name} has the shape {list(shape)}, and config.json beside it needs "
            f"{list(needed)}: the files are of different models"
        )
    raise ConfigurationError(
        f"{_title(conversion)} come to the shape {list(shape)} as {target}, and config.json beside them makes it "
        f"{list(needed)}: a tensor is missing, or the two are not of one model"
    )


def _title(conversion: Conversion) -> str:
    source = conversion.sources[0][0]
    return f"{source.path}: the {len(conversion.sources)} tensors that begin with {source.name}"
