"""Memory, streams and registration on a CUDA device: a virtual one everywhere, a real one with `pytest -m gpu`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from device_places import LONGEST_CYCLES, NEEDS_CUDA, DelayedCuda
from small_models import MODELS, batches, loss_of
from torch import Tensor, nn

from workbench.engine import OffloadEngine
from workbench.engine.blocks import activation_offload
from workbench.engine.devices.cuda_device import CudaDevice
from workbench.engine.devices.device import Device
from workbench.sizes import RINGS_BYTES
from workbench.timeline import Lane
from workbench.training.failures import explain
from workbench.virtual_cuda import Order, VirtualCuda

SIZES = (1, 4095, 1 << 20, (5 << 20) + 3, (40 << 20) + 7)


@pytest.fixture(params=("virtual", pytest.param("real", marks=NEEDS_CUDA)))
def cuda(request: pytest.FixtureRequest) -> Iterator[VirtualCuda | None]:
    """The virtual device, which carries all out as late as it may, or None: the real one."""
    if request.param == "real":
        yield None
        return
    MODELS["gpt2"]()  # transformers asks for CUDA when it is imported
    with VirtualCuda(Order.LAZY) as virtual:
        yield virtual
    assert not virtual.races and not virtual.faults


def hold_up(cuda: VirtualCuda | None, cycles: int) -> None:
    """Let what compute issues now be late, which it is on the virtual device anyway."""
    if cuda is None:
        torch.cuda._sleep(cycles)


def counting(nbytes: int) -> Tensor:
    """Bytes whose period divides no size of a piece or a buffer."""
    return torch.arange(nbytes, dtype=torch.int32).remainder_(251).to(torch.uint8)


def carried(device: Device, host: Tensor, back: Tensor) -> None:
    """Send `host` up and bring it down into `back`, on the lanes."""
    there = device.empty(host.numel(), host.dtype)
    device.copy(Lane.UPLOAD, there, host, None)
    back.zero_()
    device.copy(Lane.DOWNLOAD, back, there, device.record_event())


def carried_beside_compute(device: Device, host: Tensor, back: Tensor) -> None:
    """The same by copies that go on, with compute between them."""
    there = torch.empty(host.numel(), dtype=host.dtype, device=device.torch_device)
    device.wait_event(device.copy_async(Lane.UPLOAD, there, host, device.record_event()))
    changed = there + 1
    back.zero_()
    device.copy_async(Lane.DOWNLOAD, back, changed, device.record_event())
    device.synchronize()
    back -= 1


@pytest.mark.parametrize("carry", [carried, carried_beside_compute])
@pytest.mark.parametrize("nbytes", SIZES)
def test_every_byte_arrives(
    nbytes: int, carry: Callable[[Device, Tensor, Tensor], None], cuda: VirtualCuda | None
) -> None:
    device = DelayedCuda(seed=0) if cuda is None else CudaDevice(torch.device("cuda"))
    host, back = (device.pinned_zeros(nbytes, torch.uint8) for _ in range(2))
    host.copy_(counting(nbytes))
    carry(device, host, back)
    assert torch.equal(host, back)
    carry(device, host[nbytes // 3 :], back[nbytes // 3 :])
    assert torch.equal(host, back)
    device.close()


# Registration


class Grudging:
    """The CUDA runtime, except that it registers no more than `room` bytes."""

    def __init__(self, real: Any, room: int) -> None:
        self._real, self._room = real, room

    def cudaHostRegister(self, address: int, size: int, flags: int) -> int:  # noqa: N802 - CUDA's name
        if size > self._room:
            return 2
        self._room -= size
        return int(self._real.cudaHostRegister(address, size, flags))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


@pytest.fixture
def grudging(cuda: VirtualCuda | None, monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    real = torch.cuda.cudart()

    def limit(room: int) -> None:
        monkeypatch.setattr(torch.cuda, "cudart", lambda: Grudging(real, room))

    return limit


def is_pinned(tensor: Tensor, cuda: VirtualCuda | None) -> bool:
    return tensor.is_pinned() if cuda is None else cuda.pinned.holds(tensor)


def test_host_memory_is_pinned_until_the_device_is_closed(cuda: VirtualCuda | None) -> None:
    device = CudaDevice(torch.device("cuda"))
    kept, given_back = (device.pinned_zeros(1 << 20, torch.float32) for _ in range(2))
    pages = device.pinned_pages(5000)
    assert all(is_pinned(each, cuda) for each in (kept, given_back, pages))
    assert pages.numel() == 8192 and pages.data_ptr() % 4096 == 0
    device.release_host(given_back)
    assert not is_pinned(given_back, cuda) and is_pinned(kept, cuda)
    device.close()
    assert not is_pinned(kept, cuda) and not is_pinned(pages, cuda)


@pytest.mark.parametrize("room", [0, RINGS_BYTES + (3 << 20)])
@pytest.mark.parametrize("carry", [carried, carried_beside_compute])
@pytest.mark.parametrize("nbytes", SIZES)
def test_every_byte_arrives_where_registration_fails(
    nbytes: int, carry: Callable[[Device, Tensor, Tensor], None], room: int, grudging: Callable[[int], None]
) -> None:
    grudging(room)
    device = CudaDevice(torch.device("cuda"))
    device.pinned_zeros(0, torch.uint8)
    device._host._piece_bytes = 1 << 20  # from now on: the buffers are one piece each
    host, back = (device.pinned_zeros(nbytes, torch.uint8) for _ in range(2))
    host.copy_(counting(nbytes))
    carry(device, host, back)
    assert torch.equal(host, back)
    device.close()


def test_where_registration_fails_the_user_is_told_once_and_the_next_kernel_is_not_blamed(
    grudging: Callable[[int], None],
) -> None:
    grudging(0)
    device = CudaDevice(torch.device("cuda"))
    kept = [device.pinned_zeros(count, torch.float32) for count in (1000, 2000)]
    with pytest.warns(RuntimeWarning, match="small pinned buffers") as told:
        device.warn_if_not_pinned()
        device.warn_if_not_pinned()
    assert len(told) == 1 and device.pageable_bytes == sum(each.nbytes for each in kept)
    assert float(torch.ones(10, device="cuda").sum()) == 10
    device.close()


def test_an_error_of_the_runtime_is_not_left_for_the_next_kernel(cuda: VirtualCuda | None) -> None:
    """Memory that is registered already is refused by the driver itself."""
    device = CudaDevice(torch.device("cuda"))
    host = device.pinned_zeros(1 << 20, torch.uint8)
    status = int(torch.cuda.cudart().cudaHostRegister(host.data_ptr(), 4096, 0))
    assert status != 0
    device._host._forget_error()
    assert float(torch.ones(10, device="cuda").sum()) == 10
    device.close()


# Streams


def test_a_copy_waits_for_its_event_and_compute_for_the_copy_it_is_held_for(cuda: VirtualCuda | None) -> None:
    device = CudaDevice(torch.device("cuda"))
    host, back = (device.pinned_zeros(1 << 20, torch.float32) for _ in range(2))
    there = device.empty(1 << 20, torch.float32)
    for number in range(5):
        host.fill_(number)
        hold_up(cuda, LONGEST_CYCLES * 5)
        there.fill_(-1)  # late; the copy has to come after it
        device.wait_event(device.copy_async(Lane.UPLOAD, there, host, device.record_event()))
        doubled = there * 2
        device.copy(Lane.DOWNLOAD, back, doubled, device.record_event())
        assert (back == 2 * number).all()
    device.close()


def test_memory_from_the_device_is_not_written_by_what_compute_had_issued_before(
    cuda: VirtualCuda | None,
) -> None:
    """The allocator hands over memory at once that a kernel of compute has yet to write."""
    device = CudaDevice(torch.device("cuda"))
    host = device.pinned_zeros(1 << 22, torch.float32).fill_(7)
    torch.cuda.synchronize()
    before = torch.empty(1 << 22, device="cuda")
    address = before.data_ptr()
    hold_up(cuda, LONGEST_CYCLES * 20)
    before.fill_(-1)
    del before
    fresh = device.empty(1 << 22, torch.float32)
    assert fresh.data_ptr() == address
    device.copy(Lane.UPLOAD, fresh, host, None)
    torch.cuda.synchronize()
    assert (fresh == 7).all()
    device.close()


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
def test_lanes_use_the_device_that_they_were_given() -> None:
    before = torch.cuda.memory_reserved(0)
    model = MODELS["llama"](layers=5)
    with OffloadEngine(model, device="cuda:1", weights="host") as engine:
        for ids in batches(3):
            engine.backward(loss_of(model, ids.to("cuda:1")))
            engine.step()
    assert torch.cuda.memory_reserved(0) == before


# How much


class Wide(nn.Module):
    """Blocks whose inputs and weights are large beside all else."""

    def __init__(self, depth: int, width: int = 1024) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(8, width)
        self.h = nn.ModuleList(nn.Sequential(nn.Linear(width, width), nn.GELU()) for _ in range(depth))

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for block in self.h:
            x = x + block(x)
        return x.float().square().mean()


def test_device_memory_does_not_grow_with_depth_with_weights_and_activations_on_the_host(
    cuda: VirtualCuda | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens, width = (4096, 1024) if cuda is None else (512, 128)
    monkeypatch.setattr(activation_offload, "SMALLEST_BYTES", 1024)

    def peak(depth: int, **options: Any) -> int:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        model = Wide(depth, width)
        with OffloadEngine(model, device="cuda", precision="bf16", **options) as engine:
            for _ in range(3):
                x = torch.randn(tokens, 8, dtype=torch.bfloat16)
                engine.backward(model(x.to("cuda")))
                engine.step()
        return torch.cuda.max_memory_allocated() - before

    one_input, one_weight = tokens * width * 2, width * width * 2
    grown = peak(24) - peak(12)
    assert grown > 11 * (one_input + one_weight)
    grown = peak(24, weights="host", activations="host") - peak(12, weights="host", activations="host")
    assert grown < one_weight


@pytest.fixture
def little_memory(cuda: VirtualCuda | None) -> Iterator[Callable[[], None]]:
    """Leave 32 MiB beside what is taken when it is called."""

    def limit() -> None:
        if cuda is None:
            used = torch.cuda.memory_reserved() + (32 << 20)
            torch.cuda.set_per_process_memory_fraction(used / torch.cuda.mem_get_info()[1])
        else:
            cuda.memory.nbytes = cuda.memory.allocated + (32 << 20)

    yield limit
    if cuda is None:
        torch.cuda.set_per_process_memory_fraction(1.0)
        torch.cuda.empty_cache()


def test_running_out_of_device_memory_is_told_with_what_the_engine_holds(
    tmp_path: Path, little_memory: Callable[[], None]
) -> None:
    model = Wide(depth=6)
    options: dict[str, Any] = {"device": "cuda", "precision": "fp32", "gradient_clipping": 1.0}
    with pytest.raises(torch.OutOfMemoryError) as caught:  # noqa: SIM117 - the engine is closed by the error
        with OffloadEngine(model, **options) as engine:
            little_memory()
            try:
                engine.backward(model(torch.randn(100_000, 8).to("cuda")))
                engine.step()
            finally:
                held = engine.memory()
    told = explain(caught.value, held, tmp_path)
    assert told is not None
    assert "out of memory" in str(told) and "device: weights 0.0" in str(told)
    assert held["device"]["weights"] >= 6 * 1024 * 1024 * 4
    loss_of(MODELS["gpt2"](), batches(1)[0]).backward()  # and the process goes on
