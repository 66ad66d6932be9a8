"""LoRA adapters (Hu et al., LoRA: Low-Rank Adaptation of Large Language Models, 2021), put on a model through peft.

The model is adapted on the meta device, in place, and its own weights are frozen; `AdapterUnits` then gives one unit
at a time real values. The layers that get an adapter are found in the module tree, never by a model's name.

Invariant: the frozen weights are, parameter by parameter, those that the model would have without its adapter, and an
adapter's first values depend on (seed, unit) alone.
"""

from __future__ import annotations

import copy
import difflib
import importlib
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from workbench.config.schema import AdapterConfig
from workbench.engine.blocks.discovery import FoundUnit, find_blocks, find_units
from workbench.errors import ConfigurationError
from workbench.model.build import seeded
from workbench.model.hub import Log

NAME = "default"
"""The name that peft gives an adapter without one."""
WEIGHTS_FILE = "adapter_model.safetensors"
CONFIG_FILE = "adapter_config.json"


@dataclass(frozen=True)
class Targets:
    """Modules that get an adapter. `names`: as peft matches them, by the end of a module's path; `excluded`: paths that
    match and get none; `fused`: paths of modules of the blocks whose matrices are no linear layers."""

    names: tuple[str, ...]
    paths: tuple[str, ...]
    excluded: tuple[str, ...]
    fused: tuple[str, ...]


def find_targets(model: nn.Module, wanted: Sequence[str] = ()) -> Targets:
    """Return the modules of `model` that `wanted` names; where it is empty, every linear layer of the blocks.

    Raises:
        ConfigurationError: nothing has such a name, what has it cannot be adapted, or the blocks have no linear layer.
    """
    modules = dict(model.named_modules())
    inside = {
        f"{name}.{path}".rstrip("."): module
        for name, block in find_blocks(model).items()
        for path, module in block.named_modules()
    }
    linear = [path for path, module in inside.items() if _is_linear(module)]
    fused = tuple(path for path, module in inside.items() if _is_fused(module))
    if not wanted:
        if not linear:
            raise ConfigurationError(
                f"[adapter]: {_title(model)} has no linear layer in repeated blocks; name modules in adapter.targets"
            )
        names = tuple(dict.fromkeys(path.rpartition(".")[2] for path in linear))
        others = tuple(path for path in modules if _is_called(path, names) and path not in linear)
        return Targets(names, tuple(linear), others, fused)
    paths: list[str] = []
    excluded: list[str] = []
    for name in wanted:
        matched = [path for path in modules if _is_called(path, (name,))]
        able = [path for path in matched if _can_adapt(modules[path])]
        if not able:
            raise ConfigurationError(_wrong_target(model, name, matched, linear))
        paths += able
        excluded += [path for path in matched if path not in able]
    return Targets(
        tuple(dict.fromkeys(wanted)), tuple(dict.fromkeys(paths)), tuple(dict.fromkeys(excluded)), fused
    )


def target_warnings(model: nn.Module, targets: Targets) -> Iterator[str]:
    """Yield what a user should know of the modules that get an adapter, and of those that get none."""
    if targets.fused:
        path = targets.fused[0]
        kind = type(model.get_submodule(path)).__name__
        yield (
            f"warning: adapter: {len(targets.fused)} modules of the blocks (the first is {path}, a {kind}) hold their "
            "matrices in one tensor, not in a linear layer: they get no adapter"
        )
    for path, other in shared_targets(model, targets):
        yield (
            f"warning: adapter.targets: {path} shares its matrix with {other}, which is not adapted: this adapter "
            "cannot be merged into the model"
        )


def shared_targets(model: nn.Module, targets: Targets) -> list[tuple[str, str]]:
    """Return (path, other path) for each target whose matrix another module holds too."""
    places: dict[int, list[str]] = {}
    for path, module in model.named_modules():
        for parameter in module._parameters.values():
            if parameter is not None:
                places.setdefault(id(parameter), []).append(path)
    weights: dict[str, Any] = {path: model.get_submodule(path).weight for path in targets.paths}
    others = {path: [o for o in places[id(weight)] if o != path] for path, weight in weights.items()}
    return [(path, found[0]) for path, found in others.items() if found]


def require_peft() -> Any:
    """Return the module `peft`.

    Raises:
        ConfigurationError: it is not installed, or too old for this transformers.
    """
    try:
        peft = importlib.import_module("peft")
        oldest = getattr(
            importlib.import_module("transformers.integrations.peft"), "MIN_PEFT_VERSION", "0.17.0"
        )
        checks: Any = importlib.import_module("transformers.utils")
        checks.check_peft_version(min_version=str(oldest))
    except ImportError as error:
        raise ConfigurationError(
            f'[adapter]: adapters need peft ({error}); pip install "workbench[peft]", or leave the table out'
        ) from error
    except ValueError as error:
        raise ConfigurationError(f'[adapter]: {error}; pip install --upgrade "workbench[peft]"') from error
    return peft


def add_adapter(
    model: nn.Module, adapter: AdapterConfig, *, base: str = "", revision: str = "", log: Log | None = None
) -> nn.Module:
    """Freeze `model` (on the meta device) and put an adapter on it, in place; return a copy of it as it was.

    `base`, `revision`: the origin of its weights, which is written beside a saved adapter. `log` gets a warning for
    matrices without an adapter.

    Raises:
        ConfigurationError: peft is missing, or `adapter` names what is not there.
    """
    peft = require_peft()
    targets = find_targets(model, adapter.targets)
    if log is not None:
        for sentence in target_warnings(model, targets):
            log(sentence)
    plain = copy.deepcopy(model)
    model.requires_grad_(False)
    settings = peft.LoraConfig(
        task_type="CAUSAL_LM",
        r=adapter.rank,
        lora_alpha=adapter.alpha,
        lora_dropout=adapter.dropout,
        target_modules=list(targets.names),
        exclude_modules=list(targets.excluded) or None,
        bias="none",
        base_model_name_or_path=_lasting_name(base) or None,
        revision=revision or None,
    )
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that a Conv1D keeps its matrix the other way round
            peft.inject_adapter_in_model(settings, model, NAME, low_cpu_mem_usage=True)
    except ValueError as error:
        raise ConfigurationError(f"[adapter]: {_title(model)} takes no such adapter: {error}") from error
    adapted: Any = model
    odd = {path for path, module in model.named_modules() if _is_adapted(module)} ^ set(targets.paths)
    if odd or getattr(adapted.peft_config[NAME], "target_parameters", None):
        raise ConfigurationError(
            f"[adapter]: peft and {_title(model)} do not agree on {min(odd, default='parameters')}: "
            "name adapter.targets"
        )
    # The code that saves the model reads this, to save only the adapter.
    adapted._hf_peft_config_loaded = True
    for layer in adapter_layers(model.modules()):
        for name, parameter in layer.named_parameters():
            parameter.requires_grad_(not name.startswith("base_layer."))
    return plain


def store_base_as(model: nn.Module, dtype: torch.dtype) -> None:
    """Give the frozen floating-point parameters of an adapted meta model the dtype that they will be stored in.

    The engine keeps fp32 parameters fp32 where others come in 16 bits: so adapters stay fp32 beside a narrow base.
    """
    for unit in find_units(model):
        for name, parameter in list(unit.parameters.items()):
            if not parameter.requires_grad and parameter.is_floating_point():
                narrow = torch.empty(parameter.shape, dtype=dtype, device=parameter.device)
                unit.replace(name, nn.Parameter(narrow, requires_grad=False))


class AdapterUnits:
    """Gives a unit of an adapted model real values: the engine's `materialize`.

    Args:
        model: adapted by `add_adapter`.
        plain: the copy that `add_adapter` returned.
        base: gives a unit of `plain` real values.
        seed: of the adapter's first values, which are fp32 and drawn as peft draws them.
    """

    def __init__(
        self, model: nn.Module, plain: nn.Module, base: Callable[[FoundUnit], None], seed: int
    ) -> None:
        self._base = base
        self._seed = seed
        self._plain = {unit.name: unit for unit in find_units(plain)}
        paths = {module: _adapted_path(model, name) for name, module in plain.named_modules()}
        self._pairs = [(module, model.get_submodule(path)) for module, path in paths.items()]
        self._untie()
        self._names = {
            unit.name: {
                name: f"{paths[places[0].module]}.{places[0].attribute}".lstrip(".")
                for name, places in unit.owners.items()
            }
            for unit in self._plain.values()
        }
        self._layers = {
            id(module): layer
            for layer in adapter_layers(model.modules())
            for name, module in layer.named_modules()
            if not name.startswith("base_layer")
        }
        self._move_buffers()

    def __call__(self, unit: FoundUnit) -> None:
        """Replace the unit's meta parameters by real ones on the CPU."""
        source = self._plain.get(unit.name)
        if source is not None:
            self._base(source)
            for name, adapted in self._names[unit.name].items():
                real = source.parameters[name]
                unit.replace(adapted, nn.Parameter(real.data, requires_grad=False))
                source.replace(name, nn.Parameter(real.data.to("meta"), requires_grad=real.requires_grad))
            self._move_buffers()
        for name, parameter in list(unit.parameters.items()):
            if parameter.is_meta:
                unit.replace(name, nn.Parameter(torch.empty(parameter.shape), requires_grad=True))
        found = (self._layers.get(id(module)) for module in unit.modules())
        with seeded(self._seed, f"{unit.name}/adapter"), torch.no_grad():
            for layer in {id(layer): layer for layer in found if layer is not None}.values():
                layer.reset_lora_parameters(NAME, True)

    def _untie(self) -> None:
        """Take apart what `plain` has apart since its adapter was put on: files may hold both ends of a tie."""
        known: dict[int, int] = {}
        for source, target in self._pairs:
            for name, parameter in source._parameters.items():
                there = target._parameters.get(name)
                if parameter is None or there is None:
                    continue
                if known.setdefault(id(there), id(parameter)) != id(parameter):
                    target._parameters[name] = nn.Parameter(torch.empty_like(there), requires_grad=False)

    def _move_buffers(self) -> None:
        """Put the plain model's buffers that have values by now into the adapted one."""
        for source, target in self._pairs:
            for name, buffer in source._buffers.items():
                there = target._buffers.get(name)
                if buffer is not None and not buffer.is_meta and there is not None and there.is_meta:
                    target._buffers[name] = buffer


def adapter_layers(modules: Iterable[nn.Module]) -> list[Any]:
    """Return peft's LoRA layers among `modules`, each once."""
    return list({id(module): module for module in modules if _is_adapted(module)}.values())


def adapter_file_names(model: nn.Module) -> dict[str, str]:
    """Return the name in the file of a saved adapter of each of its parameters, by the name in `model`."""
    peft = require_peft()
    whole = {
        name: torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")
        for name, tensor in model.named_parameters(remove_duplicate=False)
    }
    kept = peft.get_peft_model_state_dict(
        model, state_dict=dict(whole), adapter_name=NAME, save_embedding_layers=False
    )
    known = {id(tensor): name for name, tensor in whole.items()}
    return {known[id(tensor)]: f"base_model.model.{name}" for name, tensor in kept.items()}


def save_adapter(model: nn.Module, units: Iterable[dict[str, Tensor]], folder: Path) -> None:
    """Write the adapter that `add_adapter` put on `model`, as `PeftModel.from_pretrained` loads it, into `folder`.

    `units` gives the parameters by their names in `model`. Nothing of the base is written, its own files have it.

    Raises:
        ValueError: `units` lacks a parameter of the adapter.
        OSError: the disk does not take it.
    """
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    names = adapter_file_names(model)
    tensors = {
        names[name]: tensor.contiguous() for unit in units for name, tensor in unit.items() if name in names
    }
    if len(tensors) < len(names):
        missing = min(set(names.values()).difference(tensors))
        raise ValueError(f"{len(names) - len(tensors)} tensors were not given, one of them {missing}")
    adapted: Any = model
    described = copy.copy(adapted.peft_config[NAME])
    described.inference_mode = True
    described.target_modules = sorted(described.target_modules)
    try:
        save_file(tensors, folder / WEIGHTS_FILE, {"format": "pt"})
    except SafetensorError as error:
        # A full disk is reported as text; the run's answer to it is the one to any other OSError.
        raise OSError(f"{folder}: {error}") from error
    described.save_pretrained(str(folder))


def _is_adapted(module: nn.Module) -> bool:
    layers: Any = importlib.import_module("peft.tuners.lora")
    return isinstance(module, layers.LoraLayer)


def _adapted_path(model: nn.Module, path: str) -> str:
    """Return the path in the adapted `model` of the module that was at `path` before."""
    return f"{path}.base_layer" if _is_adapted(model.get_submodule(path)) else path


def _is_linear(module: nn.Module) -> bool:
    """Return True for a module that multiplies by one matrix: a Linear, or the Conv1D of transformers."""
    from transformers.pytorch_utils import Conv1D

    return any(
        isinstance(module, kind) and type(module).forward is kind.forward for kind in (nn.Linear, Conv1D)
    )


def _is_fused(module: nn.Module) -> bool:
    """Return True for a module that holds several matrices in one tensor, as fused experts do."""
    several = any(p is not None and p.dim() >= 3 for p in module._parameters.values())
    return several and not isinstance(module, nn.modules.conv._ConvNd)


def _can_adapt(module: nn.Module) -> bool:
    return _is_linear(module) or type(module) is nn.Embedding


def _is_called(path: str, names: Sequence[str]) -> bool:
    """Return True where peft would match the module at `path` by one of `names`."""
    return any(path == name or path.endswith(f".{name}") for name in names)


def _wrong_target(model: nn.Module, name: str, matched: Sequence[str], linear: Sequence[str]) -> str:
    able = list(dict.fromkeys(path.rpartition(".")[2] for path in linear))
    layers = (
        f"the linear layers of its blocks are {', '.join(able)}"
        if able
        else "its blocks have no linear layer"
    )
    if matched:
        module = model.get_submodule(matched[0])
        why = "holds its matrices in one tensor" if _is_fused(module) else "is not a linear layer"
        return f'adapter.targets: "{name}" of {_title(model)} is a {type(module).__name__}, which {why}; {layers}'
    others = [path.rpartition(".")[2] for path, module in model.named_modules() if _can_adapt(module)]
    near = difflib.get_close_matches(name, dict.fromkeys([*able, *others]), n=1)
    hint = f'; did you mean "{near[0]}"?' if near else ""
    if name == "all-linear":
        hint = "; leave the array empty for that"
    return f'adapter.targets: {_title(model)} has no module "{name}"{hint} ({layers})'


def _title(model: nn.Module) -> str:
    config: Any = getattr(model, "config", None)
    kind = getattr(config, "model_type", None)
    return f"the {kind} model" if kind else type(model).__name__


def _lasting_name(base: str) -> str:
    """Return a folder's absolute path, by which the adapter finds it from anywhere; a hub id as it is."""
    folder = Path(base).expanduser()
    return str(folder.resolve()) if base and folder.is_dir() else base
