"""What an architecture sets where its modules are made, and nowhere else: it is lost on the meta device.

Transformers means `_init_weights` to set every parameter and buffer, and nearly every architecture keeps to it. Where
one does not (a learned activation's first values), a model made on the meta device has no such value to take. So memory
is marked before it is initialised, and what still bears the mark is taken from a second making of the modules, in which
small tensors are real and large ones cost nothing.

Invariant: a parameter that nobody has set is never trained: it is found here, or the model is refused. A buffer that is
too large to be found here keeps its mark, NaN, until a file gives it its values.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from workbench.errors import ConfigurationError

MOST_ELEMENTS = 1 << 16
"""Of a tensor that is made for real. What modules set where they are made is a few numbers, or one a channel."""

_MAKERS = frozenset(
    (
        torch.arange,
        torch.empty,
        torch.eye,
        torch.full,
        torch.linspace,
        torch.logspace,
        torch.ones,
        torch.rand,
        torch.randn,
        torch.tensor,
        torch.zeros,
    )
)


def mark(tensor: Tensor) -> Tensor:
    """The same tensor, marked as not set: by what no initialisation writes, at both of its ends."""
    sign = _sign(tensor.dtype)
    if tensor.numel() and sign is not None:
        for end in _ends(tensor):
            end.fill_(sign)
    return tensor


def is_marked(tensor: Tensor) -> bool:
    """Whether one of the marks is still there. False for types that have no value to spare."""
    sign = _sign(tensor.dtype)
    if sign is None or not tensor.numel() or tensor.is_meta:
        return False
    # NaN alone differs from itself.
    return any((value := end.item()) == sign or value != value for end in _ends(tensor))


class ConstructedValues:
    """The small tensors of `model` as its modules were made, made again when the first is asked for."""

    def __init__(self, model: nn.Module) -> None:
        self._model: Any = model

    def fill(self, modules: Iterable[nn.Module]) -> None:
        """Set what is still marked in these modules of the model.

        Raises:
            ConfigurationError: a parameter is too large to be made again.
        """
        for module in modules:
            for attribute, tensor in (*module._parameters.items(), *module._buffers.items()):
                if tensor is not None and is_marked(tensor):
                    self._set(module, attribute, tensor)

    def _set(self, module: nn.Module, attribute: str, tensor: Tensor) -> None:
        path = next(name for name, other in self._model.named_modules() if other is module)
        value: Tensor = getattr(self._again.get_submodule(path), attribute)
        if not value.is_meta:
            with torch.no_grad():
                tensor.copy_(value)
        elif attribute in module._parameters:
            name = f"{path}.{attribute}" if path else attribute
            raise ConfigurationError(
                f"model: {type(self._model).__name__} gives {name} its first values only where it is made whole in "
                f"memory ({value.numel():,} numbers), so it cannot be trained from random weights here; start from "
                "pretrained ones (model.pretrained)"
            )

    @cached_property
    def _again(self) -> nn.Module:
        config = copy.deepcopy(self._model.config)
        with torch.random.fork_rng(devices=[]), _SmallOnesReal():
            made: nn.Module = type(self._model)._from_config(config, dtype=torch.float32)
        return made


class _SmallOnesReal(TorchFunctionMode):
    """New tensors are real on the CPU where they are small, and on the meta device where they are not."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        options = kwargs or {}
        if func not in _MAKERS or options.get("device") is not None:
            return func(*args, **options)
        described = func(*args, **{**options, "device": "meta"})
        if described.numel() > MOST_ELEMENTS:
            return described
        return func(*args, **{**options, "device": "cpu"})


def _ends(tensor: Tensor) -> tuple[Tensor, Tensor]:
    """The first and the last element, as views."""
    return tensor.detach()[(0,) * tensor.dim()], tensor.detach()[(-1,) * tensor.dim()]


def _sign(dtype: torch.dtype) -> float | int | None:
    if dtype.is_floating_point:
        return float("nan")
    if dtype.is_complex or not dtype.is_signed:
        return None
    return torch.iinfo(dtype).min
