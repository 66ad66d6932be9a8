"""LoRA adapters (Hu et al., LoRA: Low-Rank Adaptation of Large Language Models, 2021), put on a model through peft.

The model is adapted on the meta device, in place, and its own weights are frozen; `AdapterUnits` then gives one unit
at a time real values. Which layers get an adapter is decided by the module tree, never by a model's name.

Invariant: the frozen weights are, parameter by parameter, those that the model would have without its adapter, and an
adapter's first values depend on (seed, unit) alone.
"""

from __future__ import annotations

import copy
import hashlib
import importlib
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from workbench.config.schema import AdapterConfig
from workbench.engine.blocks.discovery import FoundUnit, find_units
from workbench.errors import ConfigurationError
from workbench.model.adapter_targets import find_targets, remarks, title_of

NAME = "default"
"""What peft calls an adapter that nobody named."""
WEIGHTS_FILE = "adapter_model.safetensors"
CONFIG_FILE = "adapter_config.json"

Tell = Callable[[str], None]


def require_peft() -> Any:
    """The module `peft`.

    Raises:
        ConfigurationError: it is not installed, or too old for this transformers.
    """
    try:
        peft = importlib.import_module("peft")
        checks: Any = importlib.import_module("transformers.utils")
        checks.check_peft_version(min_version=_oldest_peft())
    except ImportError as error:
        raise ConfigurationError(
            f'[adapter]: adapters need peft ({error}); pip install "workbench[peft]", or leave the table out'
        ) from error
    except ValueError as error:
        raise ConfigurationError(f'[adapter]: {error}; pip install --upgrade "workbench[peft]"') from error
    return peft


def _oldest_peft() -> str:
    integration: Any = importlib.import_module("transformers.integrations.peft")
    return str(getattr(integration, "MIN_PEFT_VERSION", "0.17.0"))


def add_adapter(
    model: nn.Module, adapter: AdapterConfig, *, base: str = "", revision: str = "", tell: Tell | None = None
) -> nn.Module:
    """Freeze `model` (on the meta device) and put an adapter on it, in place; returns the model as it was.

    `base`, `revision`: where its weights come from, which is written beside a saved adapter. `tell` hears of matrices
    that get none.

    Raises:
        ConfigurationError: peft is missing, or `adapter` names what is not there.
    """
    peft = require_peft()
    targets = find_targets(model, adapter.targets)
    if tell is not None:
        for sentence in remarks(model, targets):
            tell(sentence)
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
        raise ConfigurationError(f"[adapter]: {title_of(model)} takes no such adapter: {error}") from error
    adapted: Any = model
    found = [path for path, module in model.named_modules() if _is_adapted(module)]
    if sorted(found) != sorted(targets.paths) or getattr(
        adapted.peft_config[NAME], "target_parameters", None
    ):
        odd = next(iter(set(found).symmetric_difference(targets.paths)), "parameters")
        raise ConfigurationError(
            f"[adapter]: peft and {title_of(model)} do not agree on {odd}: name adapter.targets"
        )
    # What saves the model looks at this, to save the adapter alone.
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
        plain: what that returned.
        base: gives a unit of `plain` real values.
        seed: of the adapter's first values, which are fp32 and drawn as peft draws them.
    """

    def __init__(
        self, model: nn.Module, plain: nn.Module, base: Callable[[FoundUnit], None], seed: int
    ) -> None:
        self._base = base
        self._seed = seed
        self._plain = {unit.name: unit for unit in find_units(plain)}
        adapted = {name: (path, module) for name, path, module in _base_modules(model)}
        self._pairs = [(module, adapted[name][1]) for name, module in plain.named_modules()]
        self._untie()
        paths = {id(module): adapted[name][0] for name, module in plain.named_modules()}
        self._names = {
            unit.name: {
                name: f"{paths[id(places[0].module)]}.{places[0].attribute}".lstrip(".")
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
        with _drawn_from(self._seed, f"{unit.name}/adapter"), torch.no_grad():
            for layer in self._layers_of(unit):
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

    def _layers_of(self, unit: FoundUnit) -> list[Any]:
        """The LoRA layers whose adapters are the unit's, each once."""
        found = (self._layers.get(id(module)) for module in unit.modules())
        return list({id(layer): layer for layer in found if layer is not None}.values())

    def _move_buffers(self) -> None:
        """Buffers of the plain model that have values now."""
        for source, target in self._pairs:
            for name, buffer in source._buffers.items():
                there = target._buffers.get(name)
                if buffer is not None and not buffer.is_meta and there is not None and there.is_meta:
                    target._buffers[name] = buffer


def adapter_layers(modules: Iterable[nn.Module]) -> list[Any]:
    """peft's LoRA layers among `modules`, each once."""
    return list({id(module): module for module in modules if _is_adapted(module)}.values())


def adapter_file_names(model: nn.Module) -> dict[str, str]:
    """For each parameter of the adapter, by its name in `model`, what it is called in the file of a saved adapter."""
    peft = require_peft()
    whole = {
        name: torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")
        for name, tensor in model.state_dict().items()
    }
    kept = peft.get_peft_model_state_dict(
        model, state_dict=dict(whole), adapter_name=NAME, save_embedding_layers=False
    )
    known = {id(tensor): name for name, tensor in whole.items()}
    return {known[id(tensor)]: f"base_model.model.{name}" for name, tensor in kept.items()}


def is_saved_here(model: nn.Module) -> bool:
    """Whether `save_adapter` can save it: a transformers model with one adapter, put on it in place."""
    from transformers import PreTrainedModel

    return isinstance(model, PreTrainedModel) and list(getattr(model, "peft_config", ())) == [NAME]


def save_adapter(model: nn.Module, units: Iterable[dict[str, Tensor]], folder: Path) -> None:
    """Write the adapter alone, as `PeftModel.from_pretrained` loads it, into `folder`.

    `units` gives the parameters by their names in `model`. What of the base peft might save along with it, for which
    it would ask the hub, is left out: the base's own files have it.

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


@contextmanager
def _drawn_from(seed: int, name: str) -> Iterator[None]:
    """Random numbers of their own, which depend on (`seed`, `name`) alone."""
    digest = hashlib.blake2b(f"{seed}/{name}".encode(), digest_size=8).digest()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int.from_bytes(digest, "little") >> 1)
        yield


def _is_adapted(module: nn.Module) -> bool:
    layers: Any = importlib.import_module("peft.tuners.lora")
    return isinstance(module, layers.LoraLayer)


def _base_modules(model: nn.Module) -> Iterator[tuple[str, str, nn.Module]]:
    """(its path without adapters, its path, module) for every module that was there before the adapters."""
    layers: set[str] = set()
    for path, module in model.named_modules():
        parent, _, last = path.rpartition(".")
        if any(path.startswith(f"{layer}.") for layer in _prefixes(path, layers)):
            if parent in layers and last == "base_layer":
                yield parent, path, module
        elif _is_adapted(module):
            layers.add(path)
        else:
            yield path, path, module


def _prefixes(path: str, among: set[str]) -> Iterator[str]:
    end = path.rfind(".")
    while end > 0:
        if path[:end] in among:
            yield path[:end]
        end = path.rfind(".", 0, end)


def _lasting_name(base: str) -> str:
    """A folder by its absolute path, so that the adapter finds it from anywhere; a hub id as it is."""
    folder = Path(base).expanduser()
    return str(folder.resolve()) if base and folder.is_dir() else base
