"""Keeps each block's input on the host from the block's forward to its recompute.

Under non-reentrant checkpointing a block keeps nothing but its inputs, and torch saves those through whatever
`saved_tensors_hooks` are in force around the checkpointed call. Here they are copied down beside compute, their device
memory is given back when compute is two blocks further, and they come up again one block before their recompute.
Where the device shares the host's memory nothing is done.

Invariant: device memory, and the host buffer with it, is given back only after compute was told to wait for the copies
that read or write it; and every copy comes after what compute had issued when it began. So whoever gets the memory next
comes after them, be it compute or another copy.
"""

from __future__ import annotations

from collections import deque
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from workbench.engine.devices.device import Device, Event
from workbench.timeline import Lane

SMALLEST_BYTES = 1 << 20
BLOCKS_BEHIND = 2
"""The inputs of so many blocks may be on their way down: compute waits for the copy of the one before them."""
ALIGNMENT = 64


@dataclass(frozen=True)
class _Span:
    """The part of its storage that a view needs, in elements: the stretch from `first` to `last`, and the view over
    it."""

    first: int
    last: int
    shape: torch.Size
    stride: tuple[int, ...]

    @staticmethod
    def of(tensor: Tensor) -> _Span:
        first = int(tensor.storage_offset())
        reach = sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True))
        return _Span(first, first + reach + 1, tensor.shape, tensor.stride())

    @property
    def elements(self) -> int:
        return self.last - self.first


class _Stored:
    """A stretch of a storage that a block reads: on the device as it was, on the host, on the device again."""

    def __init__(self, call: int, block: int, tensor: Tensor, span: _Span) -> None:
        self.call = call
        self.block = block
        self.span = span
        self.dtype = tensor.dtype
        self.storage_address = tensor.untyped_storage().data_ptr()
        self.version = tensor._version
        self.lead = tensor.data_ptr() % ALIGNMENT // tensor.element_size()
        """Kernels choose by alignment how they sum: what comes up again lies as it lay."""
        self.handles = 0
        self.shared = False
        """Several blocks read it: it stays on the device."""
        # Detached: it keeps the memory, and not what computed it.
        self.source: Tensor | None = tensor.detach().as_strided((span.elements,), (1,), span.first)
        self.buffer: Tensor | None = None
        self.down: Event = None
        self.again: Tensor | None = None
        """`lead` elements of nothing, then the stretch."""
        self.up: Event = None
        self.up_is_awaited = False

    @property
    def is_away(self) -> bool:
        return self.source is None and self.again is None

    def covers(self, tensor: Tensor, span: _Span) -> bool:
        return (
            self.source is not None
            and self.storage_address == tensor.untyped_storage().data_ptr()
            and self.dtype == tensor.dtype
            and self.span.first <= span.first
            and span.last <= self.span.last
        )


class _Handle:
    """A stand-in for a tensor that `call` reads, held by the graph; when it goes, `gone` gets what it stood for."""

    __slots__ = ("_gone", "call", "span", "stored")

    def __init__(self, call: int, stored: _Stored, span: _Span, gone: deque[_Stored]) -> None:
        self.call = call
        self.stored = stored
        self.span = span
        self._gone = gone
        stored.handles += 1

    def __del__(self) -> None:
        # Any thread may come here, in the middle of anything: it leaves a note and no more.
        self._gone.append(self.stored)


class ActivationOffload:
    """Wraps the checkpointed calls of blocks: `with offload.around_block(index): checkpoint(...)`.

    Left where they are: tensors of less than `SMALLEST_BYTES`, those that need no gradient (masks, position
    embeddings), leaves, views that need scattered parts of their storage, and what several blocks read.
    """

    def __init__(self, device: Device) -> None:
        self._device = device
        self._pool = HostPool(device)
        self._calls = 0
        self._live: dict[int, list[_Stored]] = {}
        """The stored inputs that graphs need, by call."""
        self._going_down: deque[_Stored] = deque()
        self._gone: deque[_Stored] = deque()
        self._closed = False

    @property
    def host_bytes(self) -> int:
        """Bytes of all host buffers."""
        return self._pool.nbytes

    def around_block(self, index: int) -> AbstractContextManager[object]:
        """Entered around one checkpointed call of a block; `index` is for errors."""
        if self._device.shared_memory:
            return nullcontext()
        self._calls += 1
        call = self._calls

        def pack(tensor: Tensor) -> Any:
            return self._pack(call, index, tensor)

        return saved_tensors_hooks(pack, self._unpack)

    def begin_backward(self) -> None:
        """A forward has ended, and its backward comes."""
        self._collect()

    def end_micro_batch(self) -> None:
        """A backward has ended: what no graph needs any more is let go; host buffers stay for the next."""
        self._collect()

    def close(self) -> None:
        """Give all memory back. A graph that still needs it cannot be run backward any more."""
        self._closed = True
        self._collect()
        for stored in [stored for kept in self._live.values() for stored in kept]:
            self._retire(stored)
        self._pool.close()

    # Forward

    def _pack(self, call: int, block: int, tensor: Tensor) -> Any:
        self._collect()
        self._let_go_down(call)
        if not self._moves(tensor):
            return tensor
        span = _Span.of(tensor)
        if span.elements > 2 * tensor.numel():
            return tensor
        for stored in (stored for kept in self._live.values() for stored in kept):
            if stored.covers(tensor, span):
                _check_unchanged(stored)
                stored.shared |= stored.call != call
                return _Handle(call, stored, span, self._gone)
        stored = _Stored(call, block, tensor, span)
        self._send_down(stored)
        self._live.setdefault(call, []).append(stored)
        return _Handle(call, stored, span, self._gone)

    def _moves(self, tensor: Tensor) -> bool:
        return (
            type(tensor) is Tensor
            and tensor.layout == torch.strided
            and tensor.is_floating_point()
            and tensor.requires_grad
            and not tensor.is_leaf
            and tensor.device == self._device.torch_device
            and tensor.nbytes >= SMALLEST_BYTES
        )

    def _send_down(self, stored: _Stored) -> None:
        source = stored.source
        assert source is not None
        buffer = stored.buffer = self._pool.take(source.nbytes)
        target = buffer[: source.nbytes].view(stored.dtype)
        stored.down = self._device.copy_async(Lane.DOWNLOAD, target, source, self._device.record_event())
        self._going_down.append(stored)

    def _let_go_down(self, call: int) -> None:
        while self._going_down and self._going_down[0].call <= call - BLOCKS_BEHIND:
            stored = self._going_down.popleft()
            if not stored.shared:
                _check_unchanged(stored)
                self._leave_device(stored)

    # Backward

    def _unpack(self, packed: Any) -> Tensor:
        if not isinstance(packed, _Handle):
            assert isinstance(packed, Tensor)
            return packed
        if self._closed:
            raise RuntimeError(
                "the engine is closed: its activations on the host are gone, and no backward can run"
            )
        self._collect()
        stored, view = packed.stored, packed.span
        for call, kept in self._live.items():
            # Blocks that ran later have had their backward; a branch that was not run backward keeps their graph.
            for later in kept if call > packed.call else ():
                if not later.shared:
                    self._leave_device(later)
        if stored.is_away:
            self._send_up(stored)
        self._bring_next(packed.call)
        if stored.source is not None:
            _check_unchanged(stored)
            return stored.source.as_strided(view.shape, view.stride, view.first)
        assert stored.again is not None
        self._await_up(stored)
        return stored.again.as_strided(view.shape, view.stride, stored.lead + view.first - stored.span.first)

    def _bring_next(self, call: int) -> None:
        """Begin to bring up what the block before this call's needs."""
        before = max((c for c in self._live if c < call), default=None)
        for stored in self._live[before] if before is not None else ():
            if stored.is_away:
                self._send_up(stored)

    def _send_up(self, stored: _Stored) -> None:
        assert stored.buffer is not None
        size = stored.lead + stored.span.elements
        again = stored.again = torch.empty(size, dtype=stored.dtype, device=self._device.torch_device)
        target = again[stored.lead :]
        source = stored.buffer[: target.nbytes].view(stored.dtype)
        # The allocator's memory may be in use up to where compute is issued now.
        stored.up = self._device.copy_async(Lane.UPLOAD, target, source, self._device.record_event())
        stored.up_is_awaited = False

    def _await_up(self, stored: _Stored) -> None:
        if not stored.up_is_awaited:
            self._device.wait_event(stored.up)
            stored.up, stored.up_is_awaited = None, True

    # Release

    def _leave_device(self, stored: _Stored) -> None:
        if stored.source is not None:
            self._device.wait_event(stored.down)
            stored.source = stored.down = None
        if stored.again is not None:
            self._await_up(stored)
            stored.again = None

    def _retire(self, stored: _Stored) -> None:
        """No graph needs it."""
        kept = self._live[stored.call]
        kept.remove(stored)
        if not kept:
            del self._live[stored.call]
        if stored in self._going_down:
            self._going_down.remove(stored)
        self._leave_device(stored)
        if stored.buffer is not None:
            self._pool.give_back(stored.buffer)
            stored.buffer = None

    def _collect(self) -> None:
        """Release the inputs that graphs have let go since the last time."""
        while self._gone:
            stored = self._gone.popleft()
            stored.handles -= 1
            if not stored.handles and stored.buffer is not None:
                self._retire(stored)


def _check_unchanged(stored: _Stored) -> None:
    # Autograd compares versions only of what it saves itself, and a copy under way must not race with a new value.
    if stored.source is not None and stored.source._version != stored.version:
        raise RuntimeError(
            f"the input of block {stored.block} was changed in place after the block had read it, and backward needs "
            "its old value: take an operation that is not in place"
        )


class HostPool:
    """Buffers, uint8 and 1-D. Copies from and to a buffer that was given back come before all those of its next taker:
    the takers see to it."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._free: list[Tensor] = []
        self._taken: dict[int, Tensor] = {}

    @property
    def nbytes(self) -> int:
        return sum(buffer.nbytes for buffer in (*self._free, *self._taken.values()))

    def take(self, nbytes: int) -> Tensor:
        """Return a buffer of at least `nbytes`."""
        fitting = [number for number, buffer in enumerate(self._free) if buffer.nbytes >= nbytes]
        if fitting:
            buffer = self._free.pop(min(fitting, key=lambda number: self._free[number].nbytes))
        else:
            # Larger than ever: what is too small would only lie beside the new buffers.
            self._release(self._free)
            buffer = self._device.pinned_zeros(nbytes, torch.uint8)
            self._device.warn_if_not_pinned()
        self._taken[id(buffer)] = buffer
        return buffer

    def give_back(self, buffer: Tensor) -> None:
        self._free.append(self._taken.pop(id(buffer)))

    def close(self) -> None:
        """Give up all buffers, taken or not."""
        self._release([*self._free, *self._taken.values()])
        self._free.clear()
        self._taken.clear()

    def _release(self, buffers: list[Tensor]) -> None:
        if buffers:
            self._device.synchronize()
            for buffer in buffers:
                self._device.release_host(buffer)
            buffers.clear()
