"""The ring of device slots through which streamed blocks' weights come and go, in forward and in backward order.

A block is *acquired* when its forward, or its recompute, is about to read it: its parameters are bound to the slot that
holds it. After a forward it is released at once; after a recompute only when the next block is acquired or the
backward has ended, because its backward still reads it. What comes next is fetched ahead into slots that are free.

Invariant: a slot is filled only after the event that its last reader left, and never while a block in it is in use; a
block's weights are fetched only after their last update is done and before the next one begins, and what was fetched
is forgotten when new weights may come.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

import torch
from torch import Tensor

from workbench.engine.blocks.streamed import FetchPiece, StreamedUnit
from workbench.engine.devices.buffers import SlotPool
from workbench.engine.devices.device import Device, Event
from workbench.engine.execution import LaneError, LaneThreads, Span
from workbench.layout import padded
from workbench.sizes import BufferSizes
from workbench.timeline import Kind, Lane


@dataclass
class _Slot:
    memory: Tensor
    unit: int | None = None
    missing: int = 0
    """Pieces that are still on their way."""
    in_use: bool = False
    event: Event = None
    """It has to be over before the slot may be written."""


class WeightPrefetcher:
    """Slots for `units` (by unit index, in forward order).

    `when_ready(unit, action)` calls `action`, now or from another thread, when the unit's last update is done.
    `waiting()` is entered while compute waits here.
    """

    def __init__(
        self,
        units: Sequence[StreamedUnit],
        sizes: BufferSizes,
        device: Device,
        lanes: LaneThreads,
        when_ready: Callable[[int, Callable[[], None]], None],
        waiting: Callable[[], AbstractContextManager[None]],
    ) -> None:
        self._units = {s.unit.index: s for s in units}
        self._order = [s.unit.index for s in units]
        self._place = {index: place for place, index in enumerate(self._order)}
        self._called: list[int] = []
        """Blocks in the order in which they ran forward since the last backward."""
        self._device = device
        self._lanes = lanes
        self._when_ready = when_ready
        self._waiting = waiting
        slots = sizes.weight_slots
        self._slots = [_Slot(device.empty(slots.nbytes, torch.uint8)) for _ in range(slots.number)]
        self._fetch = sizes.fetch
        self._staging = SlotPool(device.pinned_pages, sizes.fetch, at_once=not device.shared_memory)
        self._changed = threading.Condition()
        self._current: int | None = None
        """The block that a recompute has bound and whose backward may still run."""
        self._updating: dict[int, Callable[[], None] | None] = {}
        """Blocks that may be updated from now on; with what waits until a fetch that is under way has landed."""
        self._failure: BaseException | None = None
        self._spans: list[Span] = []

    @property
    def slot_bytes(self) -> int:
        return sum(slot.memory.nbytes for slot in self._slots)

    @property
    def staging_bytes(self) -> int:
        return self._fetch.total

    # Calls of the model's forward and recompute

    def acquire(self, unit: int, *, recompute: bool) -> None:
        """Bind a block to a slot that holds its weights; waits until it does.

        Raises:
            LaneError: its weights could not be brought.
        """
        with self._changed:
            # A forward inside backward is that of a checkpoint of the model's own: the backward before it is over.
            if self._current is not None and self._current != unit:
                self._release(self._current)
            self._learn(unit, recompute)
            slot = self._slot_of(unit) or self._begin_fetch(unit, wanted=True)
            slot.in_use = True
            self._current = unit if recompute else None
            self._prefetch(unit, -1 if recompute else 1)
            if slot.missing and self._failure is None:
                with self._waiting():
                    self._changed.wait_for(lambda: not slot.missing or self._failure is not None)
            self._raise_failure()
        self._units[unit].bind(slot.memory)

    def release(self, unit: int) -> None:
        """A forward has issued all that reads the block."""
        with self._changed:
            self._release(unit)

    # Calls of the engine

    def release_for_update(self, unit: int, then: Callable[[], None]) -> None:
        """A step is done with a block: fetch it no more, and call `then`, which lets its update begin, when nothing
        reads its weights any more, now or from a lane."""
        with self._changed:
            slot = self._slot_of(unit) if unit in self._place else None
            landing = slot is not None and slot.missing > 0
            self._updating[unit] = then if landing else None
        if not landing:
            then()

    def end_backward(self, *, last: bool) -> None:
        """A micro-batch's backward has ended: nothing reads a block any more. After the step's last one returns when
        no fetch is under way."""
        with self._changed:
            if self._current is not None:
                self._release(self._current)
                self._current = None
            if last and any(slot.missing for slot in self._slots) and self._failure is None:
                with self._waiting():
                    self._changed.wait_for(
                        lambda: not any(slot.missing for slot in self._slots) or self._failure is not None
                    )
            self._raise_failure()

    def forget(self) -> None:
        """New weights may come: nothing that was fetched may be read again. Call when a step's backward has ended."""
        with self._changed:
            for slot in self._slots:
                # One that is still being filled stays so until its pieces have landed; nobody will find it.
                slot.unit = None
            self._updating.clear()
            self._current = None

    def expect_forward(self) -> None:
        """The next forward comes: bring its first blocks as soon as their weights are ready."""
        with self._changed:
            self._prefetch(None, 1)

    def take_spans(self) -> list[Span]:
        """Return the fetches since the last call."""
        with self._changed:
            spans, self._spans = self._spans, []
        return spans

    def cancel(self, reason: BaseException) -> None:
        """Let whoever waits go on with an error: the engine has failed."""
        with self._changed:
            self._failure = self._failure or reason
            self._changed.notify_all()
        self._staging.cancel(reason)

    def unbind(self) -> None:
        """Give every block its placeholders."""
        for unit in self._units.values():
            unit.unbind()

    # Within the lock

    def _learn(self, unit: int, recompute: bool) -> None:
        """Learn the order of blocks from each forward, whatever their order in the tree."""
        if not recompute:
            self._called.append(unit)
        elif self._called:
            self._order = list(dict.fromkeys([*self._called, *self._order]))
            self._place = {index: place for place, index in enumerate(self._order)}
            self._called = []

    def _slot_of(self, unit: int) -> _Slot | None:
        return next((slot for slot in self._slots if slot.unit == unit), None)

    def _release(self, unit: int) -> None:
        slot = self._slot_of(unit)
        if slot is not None and slot.in_use:
            slot.in_use = False
            slot.event = self._device.record_event()
        self._units[unit].unbind()

    def _prefetch(self, unit: int | None, direction: int) -> None:
        at = -1 if unit is None else self._place[unit]
        for ahead in range(1, len(self._slots)):
            place = at + direction * ahead
            if not 0 <= place < len(self._order):
                return
            if self._slot_of(self._order[place]) is not None or self._order[place] in self._updating:
                continue
            first, last = sorted((max(at, 0), place))
            needed = set(self._order[first : last + 1])
            if not any(self._is_free(slot) and slot.unit not in needed for slot in self._slots):
                return
            self._begin_fetch(self._order[place], wanted=False, keep=needed)

    @staticmethod
    def _is_free(slot: _Slot) -> bool:
        return not slot.in_use and not slot.missing

    def _begin_fetch(self, unit: int, *, wanted: bool, keep: set[int] | None = None) -> _Slot:
        """Choose a slot and start to fill it. Where `wanted`, waits for one that is on its way to be free."""

        def choose() -> _Slot | None:
            free = [slot for slot in self._slots if self._is_free(slot)]
            free = [slot for slot in free if not keep or slot.unit not in keep]
            # An empty one before one that may be of use again.
            return min(free, key=lambda slot: slot.unit is not None, default=None)

        slot = choose()
        if slot is None:
            assert wanted
            with self._waiting():
                self._changed.wait_for(lambda: choose() is not None or self._failure is not None)
            self._raise_failure()
            slot = choose()
            assert slot is not None
        slot.unit = unit
        pieces = self._units[unit].pieces
        slot.missing = len(pieces)
        slot_to_fill, event = slot, slot.event
        if pieces:
            self._when_ready(unit, lambda: self._submit(slot_to_fill, unit, pieces, event))
        return slot

    # On the lanes

    def _submit(self, slot: _Slot, unit: int, pieces: Sequence[FetchPiece], event: Event) -> None:
        what = f"fetch of unit {unit}"
        on_host = [(piece, piece.source) for piece in pieces if piece.source is not None]
        if on_host:
            self._lanes.submit(Lane.UPLOAD, what, lambda: self._copy(slot, unit, on_host, None, event))
        for piece in pieces:
            if piece.source is None:
                self._lanes.submit(
                    Lane.READ,
                    what,
                    lambda piece=piece: self._read(slot, unit, piece, event),  # type: ignore[misc]
                )

    def _read(self, slot: _Slot, unit: int, piece: FetchPiece, event: Event) -> None:
        if self._failure is not None:
            return
        start = time.perf_counter()
        try:
            self._lanes.prepare(Lane.READ)
            buffer = self._staging.take()
            self._staging.will_return()
            assert piece.file is not None
            piece.file.read(piece.record, buffer[: padded(piece.nbytes)])
        except BaseException as error:
            self._fail(Lane.READ, unit, error)
            return
        self._note(Lane.READ, unit, start)
        source = buffer.view(piece.storage)[: piece.count]
        self._lanes.submit(
            Lane.UPLOAD,
            f"fetch of unit {unit}",
            lambda: self._copy(slot, unit, [(piece, source)], buffer, event),
        )

    def _copy(
        self,
        slot: _Slot,
        unit: int,
        brought: Sequence[tuple[FetchPiece, Tensor]],
        buffer: Tensor | None,
        event: Event,
    ) -> None:
        if self._failure is not None:
            return
        start = time.perf_counter()
        try:
            self._lanes.prepare(Lane.UPLOAD)
            copies = [(piece.target(slot.memory), source) for piece, source in brought]
            self._device.copy_all(Lane.UPLOAD, copies, event)
        except BaseException as error:
            self._fail(Lane.UPLOAD, unit, error)
            return
        if buffer is not None:
            self._staging.give_back(buffer)
        self._note(Lane.UPLOAD, unit, start)
        then = None
        with self._changed:
            slot.missing -= len(brought)
            if not slot.missing:
                then = self._updating.pop(unit, None)
                if then is not None:
                    self._updating[unit] = None
                self._changed.notify_all()
        if then is not None:
            then()

    def _note(self, lane: Lane, unit: int, start: float) -> None:
        with self._changed:
            self._spans.append(Span(lane, Kind.FETCH, unit, None, start, time.perf_counter()))

    def _fail(self, lane: Lane, unit: int, error: BaseException) -> None:
        failure = LaneError(f"lane {lane.value}: fetch of unit {unit} failed: {error}")
        failure.__cause__ = error
        self.cancel(failure)

    def _raise_failure(self) -> None:
        if isinstance(self._failure, LaneError):
            raise self._failure
        if self._failure is not None:
            raise RuntimeError(f"the engine stopped after an error: {self._failure}") from self._failure
