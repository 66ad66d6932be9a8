"""Follows every storage that torch makes while it is on, and counts operations, their bytes and their products.

Sees what torch itself asks for, not what a kernel takes and returns within one operation. Storages that were there
before, such as parameters, count only after `StorageTracker.count`. Works on the meta device, too.

Invariant: a storage is born with the first tensor on it that an operation returns, and ends when torch releases it,
whether the tracker is on then or not.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

aten = torch.ops.aten
ONLY_ALLOCATE = ("empty", "new_empty", "_efficientzerotensor")
OVERWRITE = ("copy_", "fill_", "zero_", "bernoulli_", "normal_", "uniform_", "random_", "exponential_")


@dataclass
class Phase:
    """Counts between two marks. `flops`: of matrix products and attention; `element_bytes`: of all other operations."""

    operations: int = 0
    element_bytes: int = 0
    flops: int = 0


def after(whole: Phase, part: Phase) -> Phase:
    """Return what `whole` counts beyond its beginning `part`."""
    return Phase(
        whole.operations - part.operations, whole.element_bytes - part.element_bytes, whole.flops - part.flops
    )


@dataclass
class Recording:
    """Lives of storages: `events` are n + 1 for the birth of storage n and -n - 1 for its end, in order.

    `sizes`: bytes by storage. `marks`: the number of events at each mark; `phases`: one more than marks.
    """

    sizes: list[int] = field(default_factory=list)
    events: list[int] = field(default_factory=list)
    marks: list[int] = field(default_factory=list)
    phases: list[Phase] = field(default_factory=lambda: [Phase()])

    def span(self, phase: int) -> tuple[int, int]:
        """Return where the events of a phase begin and end."""
        bounds = [0, *self.marks, len(self.events)]
        return bounds[phase], bounds[phase + 1]


class StorageTracker(TorchDispatchMode):
    """A `with` block in which every operation is recorded in `recording`."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.recording = Recording()
        self._known: dict[int, int | None] = {}
        """Numbers by the identity of an existing storage; None for one that does not count."""

    def count(self, tensor: Tensor) -> None:
        """Count the tensor's storage as born now."""
        self._enter(tensor, counts=True)

    def mark(self) -> None:
        """End a phase and begin the next."""
        self.recording.marks.append(len(self.recording.events))
        self.recording.phases.append(Phase())

    def leave_out(self, tensor: Tensor) -> None:
        """Count the tensor's storage as zero bytes from its birth on."""
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
        packet = func.overloadpacket
        if packet is aten._grouped_mm and args[0].is_meta:  # torch has it on the meta device in bf16 only
            result = _grouped_result(*args, **kwargs)
        else:
            result = func(*args, **kwargs)
        outputs = [leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor)]
        for tensor in outputs:
            self._enter(tensor, counts=True)
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
            phase.element_bytes += sum(map(_bytes, (*read, *outputs)))
        return result

    def _enter(self, tensor: Tensor, *, counts: bool) -> None:
        storage = tensor.untyped_storage()
        key = id(storage)
        if key in self._known:
            return
        number = None
        if counts:
            number = len(self.recording.sizes)
            self.recording.sizes.append(storage.nbytes())
            self.recording.events.append(number + 1)
        self._known[key] = number
        weakref.finalize(storage, self._end, key).atexit = False

    def _end(self, key: int) -> None:
        number = self._known.pop(key)
        if number is not None:
            self.recording.events.append(-number - 1)


def _bytes(tensor: Tensor) -> int:
    return min(tensor.numel() * tensor.element_size(), tensor.untyped_storage().nbytes())


def _attention(query: Tensor, key: Tensor, value: Tensor, *_: Any, **__: Any) -> int:
    """Count all pairs of tokens, as `torch.utils.flop_counter` counts attention on other devices."""
    batch, heads, queries, width = query.shape
    return 2 * batch * heads * queries * key.shape[-2] * (width + value.shape[-1])


def _grouped(rows: Tensor, matrices: Tensor, *_: Any, **__: Any) -> int:
    """Count each row times one of the matrices; sums over rows (the backward of that) alike."""
    return 2 * rows.shape[-2] * rows.shape[-1] * matrices.shape[-1]


def _grouped_result(left: Tensor, right: Tensor, offs: Tensor | None = None, *_: Any, **__: Any) -> Tensor:
    """Return an empty tensor of the shape that `torch._grouped_mm` returns."""
    groups = (len(offs),) if left.dim() == right.dim() == 2 and offs is not None else left.shape[:-2]
    return left.new_empty(*groups, left.shape[-2], right.shape[-1])


def _products() -> Iterator[tuple[Any, Callable[..., int] | None]]:
    yield from flop_registry.items()
    yield aten._scaled_dot_product_flash_attention_for_cpu, _attention
    yield aten._scaled_dot_product_flash_attention_for_cpu_backward, None
    yield aten._grouped_mm, _grouped


_PRODUCTS: dict[Any, Callable[..., int] | None] = dict(_products())
"""Matrix products and attention, with the function that counts their operations; None where nobody needs the count."""
