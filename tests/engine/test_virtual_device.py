"""The virtual CUDA device by itself: what CUDA promises, no more, and what it forbids."""

from __future__ import annotations

import mmap
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

from workbench.virtual_cuda import Order, VirtualCuda

CUDA = "cuda:0"


@pytest.fixture
def cuda() -> Iterator[VirtualCuda]:
    with VirtualCuda(Order.LAZY) as device:
        yield device


def pinned(values: list[float]) -> Any:
    return torch.empty(len(values), pin_memory=True).copy_(torch.tensor(values))


def test_an_operation_runs_when_the_host_waits_for_it_and_not_before(cuda: VirtualCuda) -> None:
    one = torch.ones(3, device=CUDA)
    two = one + one
    assert not cuda.queues.compute.query()
    assert two.tolist() == [2, 2, 2]
    assert cuda.queues.compute.query()


def test_a_tensor_says_that_it_is_on_the_device(cuda: VirtualCuda) -> None:
    there = torch.arange(4).to("cuda", dtype=torch.float32)
    assert there.device == torch.device(CUDA) and there.is_cuda and there.get_device() == 0
    assert (there * 2).device.type == "cuda" and torch.zeros_like(there).is_cuda
    back = there.cpu()
    assert back.device.type == "cpu" and not back.is_cuda and back.tolist() == [0, 1, 2, 3]
    assert there.to(CUDA) is there or torch.equal(there.to(CUDA), there)
    with pytest.raises(TypeError, match="numpy"):
        there.numpy()
    with pytest.raises(RuntimeError, match="same device"):
        there + back
    assert (there + torch.tensor(1.0)).tolist() == [1, 2, 3, 4], "a number goes along with the kernel"


@pytest.mark.parametrize("host", [pinned, torch.tensor])
def test_a_copy_has_read_its_source_when_it_returns_only_where_it_blocks(
    cuda: VirtualCuda, host: Callable[[list[float]], Any]
) -> None:
    for non_blocking, found in ((True, 7.0), (False, 1.0)):
        source, there = host([1.0]), torch.empty(1, device=CUDA)
        there.copy_(source, non_blocking=non_blocking)
        source.fill_(7)
        assert there.tolist() == [found]
    uploads = 2 * (host is torch.tensor)
    assert cuda.operations.pageable_copies == uploads + 2, "and what `tolist` brings down"


def test_what_the_host_does_with_memory_that_a_copy_still_reads_is_a_race(cuda: VirtualCuda) -> None:
    source = pinned([1.0])
    there = source.to(CUDA, non_blocking=True)
    assert source.tolist() == [1.0] and not cuda.races, "both read"
    source.fill_(7)
    (race,) = cuda.races
    assert str(race) == "fill_.Scalar by the host touches 4 bytes that upload on compute may still be using"
    torch.cuda.synchronize()
    source.fill_(8)
    assert there.tolist() == [7] and len(cuda.races) == 1


def test_streams_run_side_by_side_but_where_one_waits_for_an_event_of_the_other(cuda: VirtualCuda) -> None:
    side: Any = torch.cuda.Stream(torch.device(CUDA))
    value = torch.full((4,), 3.0, device=CUDA)
    late = torch.empty(4, pin_memory=True).zero_()
    in_time = torch.empty(4, pin_memory=True).zero_()
    with torch.cuda.stream(side):
        late.copy_(value, non_blocking=True)
    side.synchronize()
    assert late.isnan().all(), "memory that nobody has written yet"
    side.wait_event(torch.cuda.current_stream().record_event())
    with torch.cuda.stream(side):
        in_time.copy_(value, non_blocking=True)
    side.synchronize()
    assert in_time.tolist() == [3, 3, 3, 3]
    (race,) = cuda.races
    assert (
        str(race) == "download on copies 1 touches 16 bytes that full.default on compute may still be using"
    )


def test_freed_memory_is_handed_out_again_at_once_and_a_use_by_another_stream_is_a_race(
    cuda: VirtualCuda,
) -> None:
    side: Any = torch.cuda.Stream(torch.device(CUDA))
    first = torch.ones(1000, device=CUDA)
    host = torch.empty(1000, pin_memory=True)
    side.wait_event(torch.cuda.current_stream().record_event())
    with torch.cuda.stream(side):
        host.copy_(first, non_blocking=True)
    address = first.data_ptr()
    del first
    second = torch.zeros(1000, device=CUDA)
    assert second.data_ptr() == address
    assert [race.second for race in cuda.races] == ["zeros.default on compute"]


@pytest.mark.parametrize("halves", [(0, 5, 5, 10), (0, 6, 5, 10)])
def test_two_halves_of_a_buffer_are_a_race_only_where_they_overlap(
    cuda: VirtualCuda, halves: tuple[int, int, int, int]
) -> None:
    side: Any = torch.cuda.Stream(torch.device(CUDA))
    buffer = torch.empty(10, device=CUDA)
    buffer[halves[0] : halves[1]].fill_(1)
    with torch.cuda.stream(side):
        buffer[halves[2] : halves[3]].fill_(2)
    assert len(cuda.races) == (halves[1] > halves[2])


def test_a_device_has_only_so_much_memory() -> None:
    with VirtualCuda(device_bytes=1 << 20) as cuda:
        for _ in range(8):
            torch.empty(1 << 19, dtype=torch.uint8, device=CUDA)  # freed each time
        held = torch.empty(1 << 19, dtype=torch.uint8, device=CUDA)
        with pytest.raises(torch.OutOfMemoryError, match=r"1,048,576 bytes in all 524,288 are in use"):
            torch.empty((1 << 19) + 1, dtype=torch.uint8, device=CUDA)
        assert cuda.memory.most_allocated == held.nbytes
        assert torch.cuda.mem_get_info() == (1 << 19, 1 << 20)
        other = torch.empty(1 << 19, dtype=torch.uint8, device=CUDA)
        del other
        third = torch.empty(1 << 18, dtype=torch.uint8, device=CUDA)
        with pytest.raises(torch.OutOfMemoryError):
            torch.empty(1 << 19, dtype=torch.uint8, device=CUDA)  # a freed block is there, beside too much
        del third


def test_a_device_may_have_any_number_of_bytes() -> None:
    with VirtualCuda(device_bytes=(1 << 20) + 3):
        counted = torch.arange(4, device=CUDA)
        assert counted.view(2, 2).sum(dim=1).tolist() == [1, 5]


@pytest.mark.parametrize("order", [Order.AT_ONCE, Order.LAZY, Order.RANDOM])
def test_random_numbers_and_gradients_are_those_of_the_cpu_whatever_the_order(order: Order) -> None:
    layer = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5), nn.LayerNorm(8))
    inputs = torch.randn(4, 8)

    def gradient() -> tuple[list[float], list[float]]:
        torch.manual_seed(5)
        loss = layer(inputs.to(next(layer.parameters()).device)).square().sum()
        loss.backward()
        return loss.reshape(1).tolist(), layer[0].weight.grad.cpu().reshape(-1).tolist()

    wanted = gradient()
    with VirtualCuda(order) as cuda:
        for parameter in layer.parameters():
            parameter.grad = None
            parameter.data = parameter.data.to(CUDA)
        assert gradient() == wanted
        assert not cuda.races


def test_hooks_run_on_a_thread_of_autograds_own_with_the_streams_of_forward(cuda: VirtualCuda) -> None:
    weight = torch.ones(3, device=CUDA, requires_grad=True)
    seen = []
    weight.register_post_accumulate_grad_hook(
        lambda _: seen.append((threading.current_thread(), torch.cuda.current_stream()))
    )
    (weight * 2).sum().backward()
    ((thread, stream),) = seen
    assert thread is not threading.current_thread() and stream is torch.cuda.current_stream()


def test_registered_memory_that_is_unmapped_or_left_registered_is_a_fault() -> None:
    with VirtualCuda(registered_bytes=1 << 20) as cuda:
        runtime: Any = torch.cuda.cudart()
        mapping = mmap.mmap(-1, 8192)
        address = torch.frombuffer(mapping, dtype=torch.uint8).data_ptr()
        assert runtime.cudaHostRegister(address, 8192, 0) == 0
        assert runtime.cudaHostRegister(address + 4096, 4096, 0) != 0, "registered already"
        assert runtime.cudaHostRegister(1 << 40, 1 << 20, 0) != 0, "more than can be registered"
        mapping.close()
        assert runtime.cudaHostUnregister(address) == 0
        assert runtime.cudaHostUnregister(address) != 0
        kept = torch.empty(4096, dtype=torch.uint8)
        runtime.cudaHostRegister(kept.data_ptr(), 4096, 0)
    assert cuda.faults == [
        "8,192 bytes were unmapped while they were registered",
        "4,096 bytes are still registered",
    ]
