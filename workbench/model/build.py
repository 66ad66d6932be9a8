"""Build a Hugging Face causal language model from its architecture's name, unit by unit.

The module tree is made on the meta device, which costs no memory and tells every shape; `UnitInitializer` then gives
one unit at a time real fp32 parameters, drawn as the architecture itself draws them.

Invariant: a unit's values depend on (seed, unit) alone, so that neither placement nor order changes them.
"""

from __future__ import annotations

import difflib
import hashlib
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from workbench.engine.blocks.discovery import FoundUnit, find_blocks
from workbench.errors import ConfigurationError, brief


def model_config(architecture: str, settings: dict[str, Any]) -> Any:
    """Return the transformers configuration of `architecture` with `settings` on top of its defaults.

    Raises:
        ConfigurationError: transformers has no such causal language model, knows no such setting, or refuses a value.
    """
    from transformers import CONFIG_MAPPING, AutoConfig
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    known = sorted(set(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES) & set(CONFIG_MAPPING.keys()))
    if architecture not in known:
        near = difflib.get_close_matches(architecture, known, n=1)
        hint = (
            f'did you mean "{near[0]}"?' if near else f"{len(known)} are known, among them gpt2, llama, qwen3"
        )
        raise ConfigurationError(
            f"model.architecture = {architecture!r}: transformers has no causal language model of this name; {hint}"
        )
    try:
        defaults = CONFIG_MAPPING[architecture]()
        names = {*defaults.to_dict(), *getattr(defaults, "attribute_map", {})}
        for key in settings:
            if key not in names:
                near = difflib.get_close_matches(key, sorted(names), n=1)
                hint = f'; did you mean "{near[0]}"?' if near else ""
                raise ConfigurationError(
                    f"model.config.{key}: the {architecture} architecture has no such setting{hint}"
                )
        made = AutoConfig.for_model(architecture, **settings)
        made.get_text_config()  # refused here where it has several
        return made
    except ConfigurationError:
        raise
    except Exception as error:
        raise ConfigurationError(
            f"model.config: {architecture} refuses these settings: {brief(error)}"
        ) from error


def build_on_meta(config: Any, *, trust_remote_code: bool = False) -> nn.Module:
    """Return the causal language model of `config` with every parameter on the meta device, in training mode.

    Raises:
        ConfigurationError: transformers cannot build it from these settings.
    """
    from transformers import AutoModelForCausalLM

    layers = getattr(config.get_text_config(), "num_hidden_layers", None)
    if isinstance(layers, int) and layers < 1:
        name = getattr(config, "attribute_map", {}).get("num_hidden_layers", "num_hidden_layers")
        raise ConfigurationError(f"model.config.{name} = {layers}: expected at least 1 block")
    try:
        with torch.device("meta"):
            model: nn.Module = AutoModelForCausalLM.from_config(
                config, dtype=torch.float32, trust_remote_code=trust_remote_code
            )
    except Exception as error:
        raise ConfigurationError(
            f"model.config: no {config.model_type} model can be built from these settings: {brief(error)}"
        ) from error
    return model.train()


class UnitInitializer:
    """Gives a unit's meta parameters real values: the engine's `materialize`.

    Modules without parameters that hold buffers (rotary tables) get theirs when the initializer is made.
    """

    def __init__(self, model: nn.Module, seed: int) -> None:
        self._model: Any = model
        self._seed = seed
        self._names = {id(module): name for name, module in model.named_modules()}
        blocks = find_blocks(model).values()
        inside = {id(m) for block in blocks for m in block.modules()}
        self._outer = [m for m in _post_order(model) if id(m) not in inside]
        for module in model.modules():
            # The meta build marked everything as initialised.
            module.__dict__.pop("_is_hf_initialized", None)
        bare = [m for m in _post_order(model) if not any(p is not None for p in m._parameters.values())]
        for module in bare:
            if _place_buffers(module):
                self._initialize([module], "buffers")

    def __call__(self, unit: FoundUnit) -> None:
        """Replace the unit's meta parameters by initialised fp32 ones on the CPU.

        Raises:
            ConfigurationError: the architecture leaves a value unset.
        """
        self.initialize(unit, unit.parameters)
        self.check_set(unit)

    def initialize(self, unit: FoundUnit, names: Collection[str]) -> None:
        """Do the same for the parameters called `names` alone, unchecked, and give the unit's modules their buffers.

        The others are passed over as transformers itself passes over what was loaded, and stay on the meta device,
        where whatever is drawn for them all the same costs nothing.
        """
        for name in list(names):
            parameter = unit.parameters[name]
            memory = _unset(torch.empty(parameter.shape, dtype=torch.float32))
            unit.replace(name, nn.Parameter(memory, requires_grad=parameter.requires_grad))
        placed = [_place_buffers(module) for module in unit.modules()]
        if names or any(placed):
            for name, parameter in unit.parameters.items():
                if name not in names:
                    parameter._is_hf_initialized = True  # type: ignore[attr-defined]
            self._initialize(self._modules_of(unit), unit.name)

    def check_set(self, unit: FoundUnit) -> None:
        """Refuse a unit of which neither the architecture's initialisation nor a file has set every value.

        An architecture may set some only where its modules are made, which is lost on the meta device.

        Raises:
            ConfigurationError: naming the parameter or buffer.
        """
        modules = self._outer if unit.block is None else unit.block.modules()
        buffers = {f"{self._names[id(m)]}.{name}": b for m in modules for name, b in m._buffers.items()}
        for name, tensor in (*unit.parameters.items(), *buffers.items()):
            if tensor is not None and not tensor.is_meta and _is_unset(tensor):
                raise ConfigurationError(
                    f"model: {type(self._model).__name__} sets {name} only where the whole model is made in memory, "
                    "so it cannot be trained from random weights here; start from pretrained ones (model.pretrained)"
                )

    def _modules_of(self, unit: FoundUnit) -> list[nn.Module]:
        """Return the modules whose initialisation sets the unit's parameters, children first."""
        if unit.block is not None:
            return list(_post_order(unit.block))
        # A container may redraw what its children hold, so it comes after them.
        owners = {id(m) for m in unit.modules()}
        return [m for m in self._outer if id(m) in owners or any(id(c) in owners for c in m.children())]

    def _initialize(self, modules: Iterable[nn.Module], name: str) -> None:
        with seeded(self._seed, name), torch.no_grad():
            for module in modules:
                self._model._init_weights(module)


@contextmanager
def seeded(seed: int, name: str) -> Iterator[None]:
    """Draw random numbers that depend on (`seed`, `name`) alone; the generator outside is left as it was."""
    digest = hashlib.blake2b(f"{seed}/{name}".encode(), digest_size=8).digest()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int.from_bytes(digest, "little") >> 1)
        yield


def check_positions(config: Any, sequence_length: int) -> None:
    """Refuse sequences that the model cannot read.

    Raises:
        ConfigurationError: they are longer than its positions.
    """
    longest = getattr(config.get_text_config(), "max_position_embeddings", None)
    # Some architectures say that they have no limit with a negative number.
    if isinstance(longest, int) and 0 <= longest < sequence_length:
        raise ConfigurationError(
            f"data.sequence_length = {sequence_length}: the model has {longest} positions; "
            f"lower it to {longest}, or give model.config more positions"
        )


def _post_order(module: nn.Module, seen: set[int] | None = None) -> Iterator[nn.Module]:
    seen = set() if seen is None else seen
    for child in module.children():
        if id(child) not in seen:
            yield from _post_order(child, seen)
    if id(module) not in seen:
        seen.add(id(module))
        yield module


def _place_buffers(module: nn.Module) -> bool:
    """Give a module's meta buffers memory; return True where it has any."""
    on_meta = {name: b for name, b in module._buffers.items() if b is not None and b.is_meta}
    for name, buffer in on_meta.items():
        module._buffers[name] = _unset(torch.empty_like(buffer, device="cpu"))
    return bool(on_meta)


def _unset(tensor: Tensor) -> Tensor:
    """Return the tensor with NaN at both ends, which no initialisation writes."""
    if tensor.is_floating_point() and tensor.numel():
        flat = tensor.view(-1)
        flat[0] = flat[-1] = torch.nan
    return tensor


def _is_unset(tensor: Tensor) -> bool:
    if not tensor.is_floating_point() or not tensor.numel():
        return False
    flat = tensor.detach().reshape(-1)
    return bool(flat[0].isnan() or flat[-1].isnan())
