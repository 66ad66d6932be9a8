"""Host memory is whole pages, registered piece by piece; what the driver refuses goes through small buffers."""

from __future__ import annotations

import ctypes
import itertools
import random
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch
from torch import Tensor

from workbench.engine.devices.buffers import MAPPED_FROM_BYTES, page_aligned, zeros
from workbench.engine.devices.pinned import HostMemory, RegisteredRanges, StagingRing, Stretch, carry
from workbench.layout import PAGE_BYTES as PAGE
from workbench.layout import padded


class FakeRuntime:
    """Notes what is registered; refuses what does not fit into `room` bytes."""

    def __init__(self, room: int = 1 << 40) -> None:
        self.room = room
        self.pieces: dict[int, int] = {}
        self.asked: list[int] = []
        self.error_is_pending = False

    def cudaHostRegister(self, address: int, size: int, flags: int) -> int:  # noqa: N802 - CUDA's name
        assert not self.error_is_pending, "an error of before was left in the runtime"
        assert address % PAGE == 0 and flags == 0
        self.asked.append(size)
        if sum(self.pieces.values()) + size > self.room:
            self.error_is_pending = True
            return 2
        assert is_mapped(address)
        self.pieces[address] = size
        return 0

    def cudaHostUnregister(self, address: int) -> int:  # noqa: N802 - CUDA's name
        size = self.pieces.pop(address)
        assert is_mapped(address), "registered memory was unmapped"
        ctypes.memset(address, 9, size)
        return 0

    def forget(self) -> None:
        self.error_is_pending = False


def memory_of(runtime: FakeRuntime, piece_bytes: int = 4 * PAGE) -> HostMemory:
    return HostMemory(runtime, runtime.forget, piece_bytes)


class DelayedLink:
    """A stream whose copies happen as late as they may: when somebody waits for them, in the order they began."""

    class Arrival:
        def __init__(self, link: DelayedLink, number: int) -> None:
            self._link, self._number = link, number

        def synchronize(self) -> None:
            self._link.run_to(self._number)

    def __init__(self) -> None:
        self._begun: list[tuple[Tensor, Tensor]] = []
        self._done = 0
        self.most_begun = 0

    def send(self, destination: Tensor, source: Tensor) -> DelayedLink.Arrival:
        assert destination.numel() == source.numel()
        self._begun.append((destination, source))
        self.most_begun = max(self.most_begun, len(self._begun) - self._done)
        return self.Arrival(self, len(self._begun))

    def run_to(self, number: int) -> None:
        while self._done < number:
            destination, source = self._begun[self._done]
            destination.copy_(source)
            self._done += 1

    def finish(self) -> None:
        self.run_to(len(self._begun))


def ring_of(buffers: int = 4, buffer_bytes: int = 8, available: int = 1 << 30) -> StagingRing:
    left = itertools.repeat(True, available)

    def make(nbytes: int) -> Tensor | None:
        return torch.empty(nbytes, dtype=torch.uint8) if next(left, False) else None

    return StagingRing(make, buffers, buffer_bytes)


def flags_of_mapping(address: int) -> list[str] | None:
    """What the system knows of the mapping that holds `address`; None where nothing is mapped."""
    inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        first, *rest = line.split()
        if not first.endswith(":"):
            start, stop = (int(part, 16) for part in first.split("-"))
            inside = start <= address < stop
        elif inside and first == "VmFlags:":
            return rest
    return None


def is_mapped(address: int) -> bool:
    return flags_of_mapping(address) is not None


def noise(nbytes: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(256, (nbytes,), dtype=torch.uint8, generator=generator)


def test_memory_is_exact_and_registered_in_pieces() -> None:
    runtime = FakeRuntime()
    memory = memory_of(runtime)
    tensor = memory.allocate(9 * PAGE + 5)
    assert tensor.numel() == tensor.untyped_storage().nbytes() == 9 * PAGE + 5
    assert sorted(runtime.pieces.values()) == [PAGE + 5, 4 * PAGE, 4 * PAGE]
    assert memory.registered_bytes == 9 * PAGE + 5
    assert memory.allocate(0).numel() == 0


def test_closing_unregisters_all_while_it_is_mapped_and_tensors_live_on() -> None:
    runtime = FakeRuntime()
    memory = memory_of(runtime)
    kept = memory.allocate(5 * PAGE)
    memory.allocate(PAGE)  # nobody holds this one: it has to stay mapped all the same
    assert len(runtime.pieces) == 3
    memory.close()
    memory.close()
    assert not runtime.pieces and memory.registered_bytes == 0
    assert (kept == 9).all()
    assert memory.cut(kept) == [Stretch(0, 5 * PAGE, False)]


def test_a_forked_child_has_no_part_in_what_is_registered_and_has_its_copy_afterwards() -> None:
    memory = memory_of(FakeRuntime())
    tensor = memory.allocate(3 * PAGE)
    assert "dc" in (flags_of_mapping(tensor.data_ptr()) or ())
    memory.close()
    assert "dc" not in (flags_of_mapping(tensor.data_ptr()) or ())
    pageable = memory_of(FakeRuntime(room=0)).allocate(PAGE)
    assert "dc" not in (flags_of_mapping(pageable.data_ptr()) or ())


def test_a_released_tensor_is_unregistered_alone_and_its_mapping_goes_with_it() -> None:
    runtime = FakeRuntime()
    memory = memory_of(runtime)
    first, second = memory.allocate(6 * PAGE), memory.allocate(PAGE)
    memory.release(first.view(torch.int32))
    assert list(runtime.pieces) == [second.data_ptr()]
    address = first.data_ptr()
    assert is_mapped(address)
    del first
    assert not is_mapped(address)
    memory.release(torch.empty(3))  # not its own: nothing to do
    assert memory.registered_bytes == PAGE


def test_a_refusal_is_told_once_and_leaves_no_error_behind() -> None:
    runtime = FakeRuntime(room=4 * PAGE)
    memory = memory_of(runtime)
    memory.warn_if_pageable()
    small = memory.allocate(4 * PAGE)
    memory.release(small)
    tensor = memory.allocate(12 * PAGE)
    assert not runtime.error_is_pending
    assert memory.cut(tensor) == [Stretch(0, 4 * PAGE, True), Stretch(4 * PAGE, 12 * PAGE, False)]
    with pytest.warns(
        RuntimeWarning, match=r"only 0.00 GiB.*status 2.*other 0.00 GiB \(67%\).*slower"
    ) as told:
        memory.warn_if_pageable()
    assert len(told) == 1 and memory.pageable_bytes == 8 * PAGE
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        refused = memory.allocate(12 * PAGE)
        memory.warn_if_pageable()
        runtime.room += PAGE
        assert memory.allocate_pinned(2 * PAGE) is None
        small = memory.allocate(PAGE)
    assert memory.pageable_bytes == 20 * PAGE
    memory.release(refused)
    assert memory.pageable_bytes == 8 * PAGE and memory.registered_bytes == 5 * PAGE
    # As much as was refused is not asked for again; less is, and may be had.
    assert runtime.asked == [4 * PAGE, 4 * PAGE, 4 * PAGE, 2 * PAGE, PAGE]
    assert memory.cut(small) == [Stretch(0, PAGE, True)]


def test_views_are_found_by_their_address() -> None:
    runtime = FakeRuntime(room=8 * PAGE)
    memory = memory_of(runtime)
    tensor = memory.allocate(10 * PAGE).view(torch.float32)
    view = tensor[PAGE - 10 : 2 * PAGE + 3]  # bytes 4 * PAGE - 40 to 8 * PAGE + 12
    assert memory.cut(view) == [
        Stretch(0, 40, True),
        Stretch(40, 40 + 4 * PAGE, True),
        Stretch(40 + 4 * PAGE, 4 * PAGE + 52, False),
    ]


def test_any_copy_is_cut_without_gaps_and_within_pieces() -> None:
    chance = random.Random(0)
    for _ in range(300):
        ranges = RegisteredRanges()
        pieces = []
        at = 100
        for _ in range(chance.randrange(6)):
            at += chance.choice([0, 0, 3, 50])
            size = chance.randrange(1, 40)
            pieces.append((at, at + size))
            at += size
        for start, stop in chance.sample(pieces, len(pieces)):
            ranges.add(start, stop - start)
        if pieces and chance.random() < 0.3:
            gone = pieces.pop(chance.randrange(len(pieces)))
            ranges.remove(gone[0])
        assert ranges.nbytes == sum(stop - start for start, stop in pieces)
        address, nbytes = chance.randrange(60, 300), chance.randrange(0, 200)
        stretches = ranges.cut(address, nbytes)
        joints = [0, *(s.stop for s in stretches)]
        assert [s.start for s in stretches] == joints[:-1] and joints[-1] == nbytes
        for stretch in stretches:
            assert stretch.start < stretch.stop
            begin, end = address + stretch.start, address + stretch.stop
            if stretch.pinned:
                assert any(start <= begin and end <= stop for start, stop in pieces)
            else:
                assert not any(start < end and begin < stop for start, stop in pieces)


@pytest.mark.parametrize("available", [0, 1, 3, 4])
@pytest.mark.parametrize("nbytes", [0, 1, 8, 31, 32, 33, 200])
def test_the_ring_carries_every_byte_both_ways(nbytes: int, available: int) -> None:
    ring, link = ring_of(available=available), DelayedLink()
    values, on_device, back = noise(nbytes), torch.zeros(nbytes, dtype=torch.uint8), noise(nbytes, seed=1)
    expected = values.clone()
    ring.upload(link, on_device, values)
    if available:
        values.fill_(0)  # it has been read
    ring.download(link, back, on_device)
    if not available:
        link.finish()
    assert torch.equal(back, expected)
    assert ring.nbytes == 8 * min(available, 4)


def test_a_buffer_that_still_travels_is_not_filled_again_by_the_next_copy() -> None:
    ring, link = ring_of(buffers=2), DelayedLink()
    sent = []
    for seed in range(5):
        values, target = noise(24, seed), torch.zeros(24, dtype=torch.uint8)
        ring.upload(link, target, values)
        sent.append((values, target))
    link.finish()
    assert all(torch.equal(values, target) for values, target in sent)


def test_the_ring_keeps_several_parts_under_way() -> None:
    ring, link = ring_of(buffers=3), DelayedLink()
    ring.download(link, torch.empty(80, dtype=torch.uint8), noise(80))
    assert link.most_begun == 3


def test_a_copy_is_direct_where_it_is_registered_and_staged_where_it_is_not() -> None:
    runtime = FakeRuntime(room=8 * PAGE)
    memory = memory_of(runtime)
    host = memory.allocate(10 * PAGE)
    host.copy_(noise(host.numel()))
    expected = host.clone()
    ring, link = ring_of(buffer_bytes=PAGE // 2), DelayedLink()
    on_device = torch.zeros_like(host)
    carry(link, ring, memory.cut(host), on_device, host, up=True)
    assert link.most_begun == 2 + 4  # two pieces, and the buffers
    link.finish()
    assert torch.equal(on_device, expected)
    host.zero_()
    carry(link, ring, memory.cut(host), host, on_device, up=False)
    assert torch.equal(host, expected)  # the staged end came last on the stream


# Pages


def test_memory_for_state_is_zeros_of_which_no_page_is_touched() -> None:
    """Who writes a page first decides on which memory node it lies."""
    for elements in (0, 1, 5000):
        small = zeros(elements, torch.float32)
        assert small.shape == (elements,) and not small.any()
    before = resident_bytes()
    large = zeros(1 << 28, torch.bfloat16)
    assert resident_bytes() - before < 64 << 20
    assert not large[-3:].any() and "dc" not in (flags_of_mapping(large.data_ptr()) or ())


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE


def test_page_aligned_memory_is_whole_zeroed_pages_and_goes_back_when_freed() -> None:
    for nbytes in (1, PAGE, 3 * PAGE + 5):
        buffer = page_aligned(nbytes)
        assert buffer.dtype == torch.uint8 and buffer.shape == (padded(nbytes),)
        assert buffer.data_ptr() % PAGE == 0 and not buffer.any()
    assert page_aligned(0).numel() == 0
    # So large that nothing else is likely to take its place meanwhile.
    large = page_aligned(1 << 30)
    address = large.data_ptr() + large.numel() // 2
    view = large[10:20]
    del large
    assert is_mapped(address)
    del view
    assert not is_mapped(address)


def test_a_fork_does_not_move_memory_that_is_being_read_into() -> None:
    buffer = page_aligned(PAGE)
    assert "dc" in (flags_of_mapping(buffer.data_ptr()) or ()), (
        "the system is told not to copy these pages on a fork"
    )


# The heap

SCRIPT = """
import sys
import psutil, torch
from workbench.engine.devices.buffers import give_large_blocks_back

def resident():
    return psutil.Process().memory_info().rss

del (first := [torch.ones(24 << 18)])[:]  # glibc takes this for a sign that such blocks belong in the heap
if sys.argv[1] == "told":
    assert give_large_blocks_back()
before = resident()
kept = []
for _ in range(20):
    large = [torch.ones(int(sys.argv[2]) >> 2) for _ in range(4)]
    kept.append(torch.ones(1 << 17))
    del large[::2]
    kept.append(large)
for large in kept[1::2]:
    large.clear()
print(resident() - before - sum(t.nbytes for t in kept[::2]))
"""


def left_over(*arguments: str) -> int:
    """Bytes that stay resident though nothing holds them."""
    run = subprocess.run(
        [sys.executable, "-c", SCRIPT, *arguments], capture_output=True, text=True, check=True
    )
    return int(run.stdout)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="glibc's heap")
def test_freed_blocks_leave_the_process_once_the_heap_is_told() -> None:
    size = 2 * MAPPED_FROM_BYTES
    told = left_over("told", str(size))
    assert told < 16 << 20
    # Else this test would see nothing.
    assert left_over("as it is", str(size)) > told + (32 << 20)
