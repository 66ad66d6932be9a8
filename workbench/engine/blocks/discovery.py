"""Find the units of a module: its repeated blocks, what comes before them and what comes after.

The module tree decides, never a model's name: blocks are the children of the outermost lists whose parametrised
members are all of one class. A parameter that appears twice (tied weights) belongs to the first unit it is met in, and
to none of the blocks where it is also read outside of one, or where its module is in several: a block's weights may be
away when it is not running.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import torch
from torch import nn

from workbench.engine.precision import dtype_name
from workbench.layout import (
    Layout,
    ParameterSpec,
    StateFormat,
    UnitKind,
    UnitSpec,
    build_layout,
    stay_on_device,
)
from workbench.optimizer import AdamW

SIXTEEN_BITS = (torch.bfloat16, torch.float16)


@dataclass(frozen=True)
class Owner:
    """A place where a module holds a parameter: `module._parameters[attribute]`."""

    module: nn.Module
    attribute: str


@dataclass
class FoundUnit:
    """A unit's parameters by name, in module order, and the modules that own them.

    `block` is the repeated module itself, None for parameters that live outside the blocks.
    """

    name: str
    kind: UnitKind
    block: nn.Module | None
    parameters: dict[str, nn.Parameter]
    owners: dict[str, list[Owner]]

    def replace(self, name: str, parameter: nn.Parameter) -> None:
        """Put another parameter in every place that holds the one called `name`; ties stay tied."""
        for owner in self.owners[name]:
            owner.module._parameters[owner.attribute] = parameter
        self.parameters[name] = parameter

    def modules(self) -> list[nn.Module]:
        """Return every module that directly owns one of the unit's parameters, each once."""
        return list({id(o.module): o.module for places in self.owners.values() for o in places}.values())


def find_blocks(module: nn.Module) -> dict[str, nn.Module]:
    """Return the repeated blocks by their name in the tree, in module order; empty where nothing repeats."""
    blocks: dict[str, nn.Module] = {}

    def visit(parent: nn.Module, prefix: str) -> None:
        for name, child in parent.named_children():
            path = f"{prefix}{name}"
            if isinstance(child, (nn.ModuleList, nn.Sequential)) and _repeats(child):
                blocks.update({f"{path}.{n}": b for n, b in child.named_children() if _has_parameters(b)})
            else:
                visit(child, f"{path}.")

    visit(module, "")
    return blocks


def find_units(module: nn.Module) -> list[FoundUnit]:
    """Return all parameters of `module` as units in forward order: embedding, blocks, head.

    Raises:
        ValueError: the module has no trainable parameter.
    """
    blocks = find_blocks(module)
    inner = {name: {id(m) for m in block.modules()} for name, block in blocks.items()}
    reached = Counter(module for modules in inner.values() for module in modules)
    block_of = {module: name for name, modules in inner.items() for module in modules if reached[module] == 1}
    before = FoundUnit("embedding", "outer", None, {}, {})
    after = FoundUnit("head", "outer", None, {}, {})
    inside = {name: FoundUnit(name, "block", block, {}, {}) for name, block in blocks.items()}
    met_block = False
    home: dict[int, tuple[FoundUnit, str]] = {}
    for owner_name, owner in module.named_modules():
        block = block_of.get(id(owner))
        met_block |= block is not None
        in_several = reached[id(owner)] > 1
        unit = inside[block] if block is not None else (after if met_block and not in_several else before)
        for attribute, parameter in owner._parameters.items():
            if parameter is None:
                continue
            name = f"{owner_name}.{attribute}" if owner_name else attribute
            place, known = home.setdefault(id(parameter), (unit, name))
            place.parameters.setdefault(known, parameter)
            place.owners.setdefault(known, []).append(Owner(owner, attribute))
    for name, block_unit in inside.items():
        for known, places in list(block_unit.owners.items()):
            if any(block_of.get(id(place.module)) != name for place in places):
                before.parameters[known] = block_unit.parameters.pop(known)
                before.owners[known] = block_unit.owners.pop(known)
    units = [s for s in (before, *inside.values(), after) if s.parameters]
    if not any(p.requires_grad for s in units for p in s.parameters.values()):
        raise ValueError(f"{type(module).__name__} has no trainable parameter")
    return units


def lay_out(
    units: list[FoundUnit],
    dtype: torch.dtype | None,
    chunk_bytes: int,
    state_format: StateFormat = "exact",
    device_fraction: float = 0.0,
    optimizer: AdamW | None = None,
) -> Layout:
    """Return the layout of `units` with floating-point weights stored as `dtype` (None: each as it is; see
    `storage_dtypes`).

    The state of embeddings and of parameters with fewer than two dimensions is exact in every format: rows that are
    seldom used and gains that decide much share no scale with their neighbours, and they are few. So is that of the
    units whose state stays on the device (see `place`). `optimizer` says where weight decay applies, and which learning
    rates are scaled.
    """
    optimizer = optimizer or AdamW()
    stored = storage_dtypes(units, dtype)
    trainable = [sum(p.numel() for p in s.parameters.values() if p.requires_grad) for s in units]
    stay = stay_on_device(trainable, device_fraction)
    return build_layout(
        [
            UnitSpec(
                unit.name,
                unit.kind,
                tuple(
                    ParameterSpec(
                        name,
                        tuple(p.shape),
                        dtype_name(stored[name]),
                        p.requires_grad,
                        "exact" if stays or p.dim() < 2 or _embeds(unit, name) else state_format,
                        optimizer.decays(name, p.dim()) if p.requires_grad else None,
                        optimizer.learning_rate_scale(name) if p.requires_grad else 1.0,
                    )
                    for name, p in unit.parameters.items()
                ),
            )
            for unit, stays in zip(units, stay, strict=True)
        ],
        chunk_bytes,
    )


def _embeds(unit: FoundUnit, name: str) -> bool:
    return any(isinstance(owner.module, (nn.Embedding, nn.EmbeddingBag)) for owner in unit.owners[name])


def storage_dtypes(units: list[FoundUnit], dtype: torch.dtype | None) -> dict[str, torch.dtype]:
    """Return the dtype that each parameter's working weights are stored in: `dtype` where it is floating point, else
    its own.

    A model that comes with fp32 parameters beside 16-bit ones means it: they stay fp32 (adapters on 16-bit weights).
    """
    every = [p for unit in units for p in unit.parameters.values()]
    mixed = any(p.dtype in SIXTEEN_BITS for p in every)

    def stored(parameter: torch.Tensor) -> torch.dtype:
        if dtype is None or not parameter.is_floating_point():
            return parameter.dtype
        if mixed and parameter.dtype == torch.float32 and dtype in SIXTEEN_BITS:
            return torch.float32
        return dtype

    return {name: stored(p) for unit in units for name, p in unit.parameters.items()}


def _repeats(container: nn.Module) -> bool:
    members = [child for child in container.children() if _has_parameters(child)]
    same = len({type(child) for child in members}) == 1
    # A list of one block is a shallow model; a Sequential of one or of plain layers is just a module.
    return same and (len(members) > 1 or isinstance(container, nn.ModuleList)) and _is_block(members[0])


def _is_block(member: nn.Module) -> bool:
    # A container without a forward of its own (a ModuleList in a ModuleList) is never called: its members are.
    if type(member).forward is nn.Module.forward:
        return False
    return any(_has_parameters(child) for child in member.children())


def _has_parameters(module: nn.Module) -> bool:
    return next(module.parameters(), None) is not None
