"""The ring of device slots through which streamed blocks' weights come and go, in forward and in backward order.

A block is *acquired* when its forward, or its recompute, is about to read it: its parameters are bound to the slot that
holds it. After a forward it is released at once; after a recompute only when the next block is acquired or the
backward has ended, because its backward still reads it. What comes next is fetched ahead into slots that are free.

Of several ranks each copies its own part of a block up and gets the rest from the others, so that all fetch the same
blocks in the same order: what is fetched when, and into which slot, follows from the model's calls alone.

Invariant: a slot is filled only after the event that its last reader left, and never while a block in it is in use; a
block's weights are fetched only after their last update is done and before the next one begins, and what was fetched
is forgotten when new weights may come. Fetches begin one after the other, in the order in which they were asked for.
"""

from __future__ import annotations

import functools
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

import torch
from torch import Tensor

from workbench.engine.blocks.streamed import FetchPiece, StreamedUnit
from workbench.engine.devices.buffers import SlotPool
from workbench.engine.devices.device import Device, Event
from workbench.engine.execution import LaneError, LaneThreads, Span
from workbench.engine.ranks import Ranks
from workbench.layout import padded
from workbench.sizes import BufferSizes
from workbench.timeline import Kind, Lane

_UNIT = struct.Struct("<q")


@dataclass
class _Slot:
    memory: Tensor
    unit: int | None = None
    fetch: _Fetch | None = None
    """The last that was asked for."""
    in_use: bool = False
    event: Event = None
    """It has to be over before the slot may be written."""

    @property
    def is_landing(self) -> bool:
        return self.fetch is not None and self.fetch.missing > 0


@dataclass(eq=False)
class _Fetch:
    """A block's weights on their way into a slot, `after` what was on its way there before.

    `missing`: pieces that are not there; what is gathered from other ranks is one.
    """

    unit: int
    slot: _Slot
    event: Event
    missing: int
    after: _Fetch | None
    is_asked: bool = False
    is_ready: bool = False


class WeightPrefetcher:
    """Slots for `units` (by unit index, in forward order).

    `when_ready(unit, action)` calls `action`, now or from another thread, when the unit's last update is done.
    `waiting()` is entered while compute waits here. `ranks`: those that have parts of the weights, over connections
    that nothing else uses.
    """

    def __init__(
        self,
        units: Sequence[StreamedUnit],
        sizes: BufferSizes,
        device: Device,
        lanes: LaneThreads,
        when_ready: Callable[[int, Callable[[], None]], None],
        waiting: Callable[[], AbstractContextManager[None]],
        ranks: Ranks | None = None,
    ) -> None:
        self._ranks = ranks
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
        self._asked: deque[_Fetch] = deque()
        """Fetches that have not begun."""
        self._to_gather: deque[_Fetch] = deque()
        """Those that have begun, and of which other ranks' parts are missing."""
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
            slot = self._slot_of(unit) or self._ask_for(unit)
            slot.in_use = True
            self._current = unit if recompute else None
            self._prefetch(unit, -1 if recompute else 1)
            if slot.is_landing and self._failure is None:
                with self._waiting():
                    self._changed.wait_for(lambda: not slot.is_landing or self._failure is not None)
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
            landing = slot is not None and slot.is_landing
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
            if last and any(slot.is_landing for slot in self._slots) and self._failure is None:
                with self._waiting():
                    self._wait_for_all()
            self._raise_failure()

    def forget(self) -> None:
        """New weights may come: nothing that was fetched may be read again. Call when a step's backward has ended."""
        with self._changed:
            for slot in self._slots:
                # What is on its way will land; nobody will find it.
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

    def end(self) -> None:
        """No forward will come: return when no fetch is under way, in which other ranks may take part."""
        with self._changed:
            self._wait_for_all()

    def unbind(self) -> None:
        """Give every block its placeholders."""
        for unit in self._units.values():
            unit.unbind()

    # Within the lock

    def _wait_for_all(self) -> None:
        self._changed.wait_for(
            lambda: not any(slot.is_landing for slot in self._slots) or self._failure is not None
        )

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
            if not any(not slot.in_use and slot.unit not in needed for slot in self._slots):
                return
            self._ask_for(self._order[place], keep=needed)

    def _ask_for(self, unit: int, keep: set[int] | None = None) -> _Slot:
        """Choose a slot, which holds none of the blocks `keep`, and have it filled."""
        free = [slot for slot in self._slots if not slot.in_use and not (keep and slot.unit in keep)]
        # An empty one before one that may be of use again.
        slot = min(free, key=lambda slot: slot.unit is not None)
        pieces = len(self._units[unit].pieces) + (self._ranks is not None)
        slot.unit, slot.fetch = unit, _Fetch(unit, slot, slot.event, pieces, slot.fetch)
        self._asked.append(slot.fetch)
        self._begin_fetches()
        return slot

    def _begin_fetches(self) -> None:
        while self._asked:
            fetch = self._asked[0]
            if fetch.after is not None and fetch.after.missing:
                return
            if not fetch.is_asked:
                fetch.is_asked, fetch.after = True, None
                self._when_ready(fetch.unit, functools.partial(self._begin, fetch))
            elif fetch.is_ready:
                self._asked.popleft()
                self._submit(fetch)
            else:
                return

    def _begin(self, fetch: _Fetch) -> None:
        """Its weights may be read."""
        with self._changed:
            fetch.is_ready = True
            self._begin_fetches()

    # On the lanes

    def _submit(self, fetch: _Fetch) -> None:
        what = f"fetch of unit {fetch.unit}"
        pieces = self._units[fetch.unit].pieces
        on_host = [(piece, piece.source) for piece in pieces if piece.source is not None]
        if on_host:
            self._lanes.submit(Lane.UPLOAD, what, lambda: self._copy(fetch, on_host, None))
        for piece in pieces:
            if piece.source is None:
                self._lanes.submit(Lane.READ, what, functools.partial(self._read, fetch, piece))
        if self._ranks is not None:
            self._to_gather.append(fetch)
            self._gather_next()

    def _gather_next(self) -> None:
        """Gather what is there of this rank's, one block after the other."""
        while self._to_gather and self._to_gather[0].missing == 1:
            fetch = self._to_gather.popleft()
            what = f"fetch of unit {fetch.unit} from all ranks"
            self._lanes.submit(Lane.UPLOAD, what, functools.partial(self._gather, fetch))

    def _read(self, fetch: _Fetch, piece: FetchPiece) -> None:
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
            self._fail(Lane.READ, fetch.unit, error)
            return
        self._note(Lane.READ, fetch.unit, start)
        source = buffer.view(piece.storage)[: piece.count]
        self._lanes.submit(
            Lane.UPLOAD, f"fetch of unit {fetch.unit}", lambda: self._copy(fetch, [(piece, source)], buffer)
        )

    def _copy(
        self, fetch: _Fetch, brought: Sequence[tuple[FetchPiece, Tensor]], buffer: Tensor | None
    ) -> None:
        if self._failure is not None:
            return
        start = time.perf_counter()
        try:
            self._lanes.prepare(Lane.UPLOAD)
            copies = [(piece.target(fetch.slot.memory), source) for piece, source in brought]
            self._device.copy_all(Lane.UPLOAD, copies, fetch.event)
        except BaseException as error:
            self._fail(Lane.UPLOAD, fetch.unit, error)
            return
        if buffer is not None:
            self._staging.give_back(buffer)
        self._note(Lane.UPLOAD, fetch.unit, start)
        self._land(fetch, len(brought))

    def _gather(self, fetch: _Fetch) -> None:
        """Give all ranks this one's part of a block, and get theirs."""
        if self._failure is not None:
            return
        start = time.perf_counter()
        try:
            self._lanes.prepare(Lane.UPLOAD)
            assert self._ranks is not None
            self._check_alike(self._ranks, fetch.unit)
            with self._device.communicating(Lane.UPLOAD, fetch.event) as land:
                for piece in self._units[fetch.unit].gathered:
                    self._ranks.gather(piece.parts(fetch.slot.memory))
            self._ranks.wait(land)
        except BaseException as error:
            self._fail(Lane.UPLOAD, fetch.unit, error)
            return
        self._note(Lane.UPLOAD, fetch.unit, start)
        self._land(fetch, 1)

    @staticmethod
    def _check_alike(ranks: Ranks, unit: int) -> None:
        units = [number for told in ranks.tell(_UNIT.pack(unit)) for number in _UNIT.unpack(told)]
        for rank, other in enumerate(units):
            if other != units[0]:
                raise RuntimeError(
                    f"rank {rank} runs block {other} where rank 0 runs block {units[0]}: with weights off the device "
                    "all ranks have to run the same blocks in the same order"
                )

    def _land(self, fetch: _Fetch, pieces: int) -> None:
        """So many of its pieces are there."""
        then = None
        with self._changed:
            fetch.missing -= pieces
            if not fetch.missing:
                then = self._updating.get(fetch.unit)
                if then is not None:
                    self._updating[fetch.unit] = None
                self._begin_fetches()
                self._changed.notify_all()
            self._gather_next()
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
