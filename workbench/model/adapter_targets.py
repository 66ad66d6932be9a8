"""Which modules of a model get an adapter: what the configuration names, or every linear layer of the blocks.

Invariant: decided by the module tree, as peft matches names, and never by a model's name.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from workbench.engine.blocks.discovery import find_blocks
from workbench.errors import ConfigurationError


@dataclass(frozen=True)
class Targets:
    """Modules that get an adapter. `names`: as peft matches them, by the end of a module's path; `excluded`: paths that
    match and get none; `fused`: paths of modules of the blocks whose matrices are no linear layers."""

    names: tuple[str, ...]
    paths: tuple[str, ...]
    excluded: tuple[str, ...]
    fused: tuple[str, ...]


def find_targets(model: nn.Module, wanted: Sequence[str] = ()) -> Targets:
    """The modules of `model` that `wanted` names; where it is empty, every linear layer of the blocks.

    Raises:
        ConfigurationError: nothing has such a name, what has it cannot be adapted, or the blocks have no linear layer.
    """
    modules = dict(model.named_modules())
    blocks = find_blocks(model)
    linear = [
        f"{name}.{path}"
        for name, block in blocks.items()
        for path, m in block.named_modules()
        if is_linear(m)
    ]
    fused = tuple(
        f"{name}.{path}".rstrip(".")
        for name, block in blocks.items()
        for path, module in block.named_modules()
        if is_fused(module)
    )
    if not wanted:
        if not linear:
            raise ConfigurationError(
                f"[adapter]: {title_of(model)} has no linear layer in repeated blocks; name modules in adapter.targets"
            )
        inside = set(linear)
        names = tuple(dict.fromkeys(path.rpartition(".")[2] for path in linear))
        matched = [path for path in modules if is_called(path, names)]
        return Targets(names, tuple(linear), tuple(path for path in matched if path not in inside), fused)
    paths: list[str] = []
    excluded: list[str] = []
    for name in wanted:
        matched = [path for path in modules if is_called(path, (name,))]
        able = [path for path in matched if can_adapt(modules[path])]
        if not matched:
            raise ConfigurationError(_no_such_target(model, name, modules, linear))
        if not able:
            raise ConfigurationError(_wrong_target(model, name, modules[matched[0]], linear))
        paths += [path for path in able if path not in paths]
        excluded += [path for path in matched if path not in able and path not in excluded]
    return Targets(tuple(dict.fromkeys(wanted)), tuple(paths), tuple(excluded), fused)


def is_linear(module: nn.Module) -> bool:
    """Whether it multiplies by one matrix and does nothing else: a Linear, or the Conv1D of transformers."""
    from transformers.pytorch_utils import Conv1D

    return any(
        isinstance(module, kind) and type(module).forward is kind.forward for kind in (nn.Linear, Conv1D)
    )


def can_adapt(module: nn.Module) -> bool:
    """Whether it can have an adapter when it is named."""
    return is_linear(module) or type(module) is nn.Embedding


def remarks(model: nn.Module, targets: Targets) -> Iterator[str]:
    """What a user should know of the modules that get an adapter, and of those that get none."""
    if targets.fused:
        path = targets.fused[0]
        kind = type(model.get_submodule(path)).__name__
        yield (
            f"warning: adapter: {len(targets.fused)} modules of the blocks (the first is {path}, a {kind}) hold their "
            "matrices in one tensor, which is no linear layer: they get no adapter and stay as they are"
        )
    for path, other in shared_targets(model, targets):
        yield (
            f"warning: adapter.targets: {path} shares its matrix with {other}, which keeps it as it is: this "
            "adapter cannot be merged into the model"
        )


def shared_targets(model: nn.Module, targets: Targets) -> list[tuple[str, str]]:
    """(path, other path) of targets whose matrix another module holds too."""
    places: dict[int, list[str]] = {}
    for path, module in model.named_modules():
        for parameter in module._parameters.values():
            if parameter is not None:
                places.setdefault(id(parameter), []).append(path)
    weights: dict[str, Any] = {path: model.get_submodule(path).weight for path in targets.paths}
    others = {path: [o for o in places[id(weight)] if o != path] for path, weight in weights.items()}
    return [(path, found[0]) for path, found in others.items() if found]


def is_called(path: str, names: Sequence[str]) -> bool:
    """Whether peft would match the module at `path` by one of `names`."""
    return any(path == name or path.endswith(f".{name}") for name in names)


def _no_such_target(model: nn.Module, name: str, modules: dict[str, nn.Module], linear: Sequence[str]) -> str:
    able = list(dict.fromkeys(path.rpartition(".")[2] for path in linear))
    others = [path.rpartition(".")[2] for path, module in modules.items() if can_adapt(module)]
    near = difflib.get_close_matches(name, dict.fromkeys([*able, *others]), n=1)
    hint = f'; did you mean "{near[0]}"?' if near else ""
    if name == "all-linear":
        hint = "; leave the array empty for that"
    return f'adapter.targets: {title_of(model)} has no module "{name}"{hint} ({_linear_layers(able)})'


def _wrong_target(model: nn.Module, name: str, module: nn.Module, linear: Sequence[str]) -> str:
    why = "holds its matrices in one tensor" if is_fused(module) else "is no linear layer"
    able = list(dict.fromkeys(path.rpartition(".")[2] for path in linear))
    kind = type(module).__name__
    return f'adapter.targets: "{name}" of {title_of(model)} is a {kind}, which {why}; {_linear_layers(able)}'


def _linear_layers(names: Sequence[str]) -> str:
    return (
        f"the linear layers of its blocks are {', '.join(names)}"
        if names
        else "its blocks have no linear layer"
    )


def is_fused(module: nn.Module) -> bool:
    """Whether it holds several matrices in one tensor, as fused experts do."""
    several = any(p is not None and p.dim() >= 3 for p in module._parameters.values())
    return several and not isinstance(module, nn.modules.conv._ConvNd)


def title_of(model: nn.Module) -> str:
    config: Any = getattr(model, "config", None)
    kind = getattr(config, "model_type", None)
    return f"the {kind} model" if kind else type(model).__name__
