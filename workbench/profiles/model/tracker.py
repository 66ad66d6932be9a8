"""Follows every storage that is made while it is on, and counts operations, their bytes and their products.

Sees what torch itself asks for (not what a kernel takes and gives back within one operation). Storages that were there
before, such as parameters, count only where `count` is told of them.

Invariant: a storage is born with the first tensor on it that an operation gives, and ends when torch lets it go,
whether the tracker is on then or not.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only
from torch.utils.flop_counter import flop_registry

from workbench.profiles.model.amounts import Phase, Recording

aten = torch.ops.aten
ONLY_ALLOCATE = ("empty", "new_empty", "_efficientzerotensor")
OVERWRITE = ("copy_", "fill_", "zero_", "bernoulli_", "normal_", "uniform_", "random_", "exponential_")


class StorageTracker(TorchDispatchMode):
    """`narrow`: float64 stands for a 16-bit dtype, and counts two bytes an element."""

    def __init__(self, *, narrow: bool = False) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.recording = Recording()
        self._narrow = narrow
        self._known: dict[int, int | None] = {}
        """By identity of a living storage: its number, None for one that does not count."""

    def count(self, tensor: Tensor) -> None:
        """Its storage counts as born now."""
        self._enter(tensor, counts=True)

    def mark(self) -> None:
        """A phase ends, another begins."""
        self.recording.marks.append(len(self.recording.events))
        self.recording.phases.append(Phase())

    def leave_out(self, tensor: Tensor) -> None:
        """Its storage, which has counted so far, never did."""
        number = self._known.get(id(tensor.untyped_storage()))
        if number is not None:
            self.recording.sizes[number] = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        inputs = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        for tensor in inputs:
            self._enter(tensor, counts=False)
        given = {id(tensor.untyped_storage()) for tensor in inputs}
        result = self._run(func, args, kwargs, inputs)
        outputs = [leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor)]
        for tensor in outputs:
            self._enter(tensor, counts=True)
        packet = func.overloadpacket
        is_view = not func._schema.is_mutable and all(id(t.untyped_storage()) in given for t in outputs)
        if is_view or packet.__name__.startswith(ONLY_ALLOCATE):
            return result
        phase = self.recording.phases[-1]
        phase.operations += 1
        product = _PRODUCTS.get(packet)
        if product is not None:
            phase.flops += product(*args, **kwargs, out_val=result)
        elif packet not in _PRODUCTS:
            read = inputs[1:] if packet.__name__ in OVERWRITE else inputs
            phase.element_bytes += sum(map(self._bytes, (*read, *outputs)))
        return result

    def _run(self, func: Any, args: Any, kwargs: Any, inputs: list[Tensor]) -> Any:
        if not self._narrow:
            return func(*args, **kwargs)
        if func.overloadpacket is aten._grouped_mm and args[0].dtype == torch.float64:
            # It has no kernel for what stands for 16 bits here.
            args, kwargs = tree_map_only(Tensor, _to_single, (args, kwargs))
            return func(*args, **kwargs).double()
        result = func(*args, **kwargs)
        dtypes = {t.dtype for t in inputs if t.dim() and t.is_floating_point()}
        if {torch.float32, torch.float64} <= dtypes and not func._schema.is_mutable:
            # 16 bits and fp32 give fp32, where float64 and fp32 give float64.
            result = tree_map_only(Tensor, _to_single, result)
        return result

    def _enter(self, tensor: Tensor, *, counts: bool) -> None:
        storage = tensor.untyped_storage()
        key = id(storage)
        if key in self._known:
            return
        number = None
        if counts:
            number = len(self.recording.sizes)
            self.recording.sizes.append(self._scaled(storage.nbytes(), tensor.dtype))
            self.recording.events.append(number + 1)
        self._known[key] = number
        weakref.finalize(storage, self._end, key).atexit = False

    def _end(self, key: int) -> None:
        number = self._known.pop(key)
        if number is not None:
            self.recording.events.append(-number - 1)

    def _bytes(self, tensor: Tensor) -> int:
        size = min(tensor.numel() * tensor.element_size(), tensor.untyped_storage().nbytes())
        return self._scaled(size, tensor.dtype)

    def _scaled(self, nbytes: int, dtype: torch.dtype) -> int:
        return nbytes // 4 if self._narrow and dtype == torch.float64 else nbytes


def _to_single(tensor: Tensor) -> Tensor:
    return tensor.float() if tensor.dtype == torch.float64 else tensor


def _attention(query: Tensor, key: Tensor, value: Tensor, *_: Any, **__: Any) -> int:
    """All pairs of tokens, as `torch.utils.flop_counter` counts attention on other devices."""
    batch, heads, queries, width = query.shape
    return 2 * batch * heads * queries * key.shape[-2] * (width + value.shape[-1])


def _grouped(rows: Tensor, matrices: Tensor, *_: Any, **__: Any) -> int:
    """Each row times one of the matrices; sums over rows (the backward of that) alike."""
    return 2 * rows.shape[-2] * rows.shape[-1] * matrices.shape[-1]


def _products() -> Iterator[tuple[Any, Callable[..., int] | None]]:
    yield from flop_registry.items()
    yield aten._scaled_dot_product_flash_attention_for_cpu, _attention
    yield aten._scaled_dot_product_flash_attention_for_cpu_backward, None
    yield aten._grouped_mm, _grouped


_PRODUCTS: dict[Any, Callable[..., int] | None] = dict(_products())
"""Matrix products and attention, with what counts their operations; None where nobody asks."""
