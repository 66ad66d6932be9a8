"""The calls a CUDA device makes, and in which order, on a CUDA of nothing but notes: what every machine can check."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from plain_torch import assert_same_bits, train_engine
from small_models import MODELS, SeparateMemory, batches
from torch import Tensor

from workbench.engine.blocks import activation_offload
from workbench.engine.devices import cuda_device
from workbench.engine.devices.cuda_device import CudaDevice
from workbench.timeline import Lane


class FakeCuda:
    """Stands in for the parts of `torch.cuda` that a device calls. `notes`: what was called, in order."""

    def __init__(self) -> None:
        self.notes: list[tuple[Any, ...]] = []
        self.registered: dict[int, int] = {}
        self.room = 1 << 40
        self.devices_set: list[tuple[int, str]] = []
        self.broken = False
        self._default = FakeStream(self, "compute")
        self._current = threading.local()
        self._made = 0

    def Stream(self, device: torch.device) -> FakeStream:  # noqa: N802 - torch's name
        self._made += 1
        return FakeStream(self, f"copies {self._made}")

    def Event(self, blocking: bool = False) -> FakeEvent:  # noqa: N802 - torch's name
        return FakeEvent(self)

    def current_stream(self, device: torch.device | None = None) -> FakeStream:
        return getattr(self._current, "stream", self._default)

    @contextlib.contextmanager
    def stream(self, stream: FakeStream) -> Iterator[None]:
        before = self.current_stream()
        self._current.stream = stream
        yield
        self._current.stream = before

    @contextlib.contextmanager
    def device(self, device: torch.device) -> Iterator[None]:
        yield

    def current_device(self) -> int:
        return 0

    def set_device(self, device: torch.device) -> None:
        self.devices_set.append((device.index, threading.current_thread().name))

    def cudart(self) -> FakeCuda:
        return self

    def synchronize(self, device: torch.device) -> None:
        if self.broken:
            raise RuntimeError("an illegal memory access was encountered")
        self.notes.append(("synchronize",))

    def cudaHostRegister(self, address: int, size: int, flags: int) -> int:  # noqa: N802 - CUDA's name
        if size > self.room:
            return 2
        self.room -= size
        self.registered[address] = size
        return 0

    def cudaHostUnregister(self, address: int) -> int:  # noqa: N802 - CUDA's name
        del self.registered[address]
        return 0


class FakeStream:
    def __init__(self, cuda: FakeCuda, name: str) -> None:
        self.cuda, self.name = cuda, name

    def wait_event(self, event: FakeEvent) -> None:
        assert event.recorded_on is not None
        self.cuda.notes.append((self.name, "waits for", event.recorded_on))


class FakeEvent:
    def __init__(self, cuda: FakeCuda) -> None:
        self.cuda = cuda
        self.recorded_on: str | None = None

    def record(self, stream: FakeStream) -> None:
        self.recorded_on = stream.name
        self.cuda.notes.append((stream.name, "marks"))

    def synchronize(self) -> None:
        assert self.recorded_on is not None
        self.cuda.notes.append(("the host waits for", self.recorded_on))


NAMES = ("Stream", "Event", "current_stream", "stream", "device", "current_device", "set_device", "cudart")


@pytest.fixture(scope="module")
def start() -> Any:
    """A model that is made before `torch.cuda` is replaced: transformers names its classes when it is imported."""
    return MODELS["gpt2"](dropout=0.1, layers=5)


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    fake = FakeCuda()
    for name in (*NAMES, "synchronize"):
        monkeypatch.setattr(torch.cuda, name, getattr(fake, name))
    return fake


class OnTheCpu(CudaDevice):
    """A CUDA device whose memory is the CPU's."""

    def __init__(self) -> None:
        super().__init__(torch.device("cuda", 0))
        self.torch_device = torch.device("cpu")


def pair(device: CudaDevice) -> tuple[Tensor, Tensor]:
    return device.empty(100, torch.float32), device.empty_host(100, torch.float32).fill_(3)


def test_a_lanes_copy_waits_for_its_mark_and_is_over_when_it_returns(cuda: FakeCuda) -> None:
    device = OnTheCpu()
    there, host = pair(device)
    mark = device.record_event()
    for lane, destination, source in ((Lane.UPLOAD, there, host), (Lane.DOWNLOAD, host, there)):
        cuda.notes.clear()
        device.copy(lane, destination, source, mark)
        stream = cuda.notes[0][0]
        assert cuda.notes[0] == (stream, "waits for", "compute") and stream.startswith("copies")
        assert cuda.notes[-2:] == [(stream, "marks"), ("the host waits for", stream)]
    assert torch.equal(there, host)
    cuda.notes.clear()
    device.copy(Lane.UPLOAD, there, host, None)
    assert not any("waits for" in note[1:] and note[0] == stream for note in cuda.notes)
    device.close()


def test_a_copy_between_two_places_on_the_host_waits_for_its_mark_itself(cuda: FakeCuda) -> None:
    device = CudaDevice(torch.device("cuda", 0))
    one, other = (device.empty_host(100, torch.float32).fill_(value) for value in (1, 2))
    mark = device.record_event()
    cuda.notes.clear()
    device.copy(Lane.UPLOAD, one, other, mark)
    assert torch.equal(one, other)
    assert cuda.notes == [("the host waits for", "compute")]
    device.close()


def test_a_copy_beside_compute_makes_nobody_wait_until_compute_is_held(cuda: FakeCuda) -> None:
    device = OnTheCpu()
    there, host = pair(device)
    mark = device.record_event()
    cuda.notes.clear()
    end = device.copy_async(Lane.UPLOAD, there, host, mark)
    assert cuda.notes[0][1:] == ("waits for", "compute")
    assert not any(note[0] == "the host waits for" for note in cuda.notes)
    cuda.notes.clear()
    device.wait_event(end)
    device.wait_event(None)
    assert [note[:2] for note in cuda.notes] == [("compute", "waits for")]
    assert cuda.notes[0][2].startswith("copies")
    device.close()


def test_the_four_streams_of_copies_are_apart_and_wait_for_compute_when_memory_is_handed_out(
    cuda: FakeCuda,
) -> None:
    device = OnTheCpu()
    cuda.notes.clear()
    device.empty(10, torch.float32)
    assert cuda.notes[0] == ("compute", "marks")
    assert [note[1:] for note in cuda.notes[1:]] == [("waits for", "compute")] * 4
    assert len({note[0] for note in cuda.notes[1:]}) == 4
    device.close()


def test_a_lanes_thread_is_put_on_its_device_once_and_computes_on_the_stream_of_compute(
    cuda: FakeCuda,
) -> None:
    device = CudaDevice(torch.device("cuda", 3))
    seen = []

    def work() -> None:
        for _ in range(3):
            device.before_task(Lane.UPDATE)
        with device.computing():
            seen.append(torch.cuda.current_stream())

    for name in ("one", "two"):
        thread = threading.Thread(target=work, name=name)
        thread.start()
        thread.join()
    assert cuda.devices_set == [(3, "one"), (3, "two")]
    assert seen == [cuda.current_stream()] * 2
    device.close()


def test_host_memory_is_unregistered_at_close_even_when_the_device_has_failed(cuda: FakeCuda) -> None:
    device = OnTheCpu()
    device.empty_host(1000, torch.float32)
    pages = device.empty_pages(5000)
    assert pages.numel() == 8192 and pages.data_ptr() % 4096 == 0
    given_back = device.empty_host(1000, torch.int16)
    assert sorted(cuda.registered.values()) == [2000, 4000, 8192]
    device.release_host(given_back)
    assert sorted(cuda.registered.values()) == [4000, 8192]
    cuda.broken = True
    with pytest.raises(RuntimeError, match="illegal memory access"):
        device.close()
    assert not cuda.registered


@pytest.mark.parametrize("buffers", [True, False])
@pytest.mark.parametrize("room", [1 << 40, 200_000, 0])
@pytest.mark.parametrize("options", [{"weights": "host"}, {"activations": "host", "state": "host"}])
def test_an_engine_trains_the_same_bits_on_it_however_much_is_registered(
    start: Any,
    cuda: FakeCuda,
    options: dict[str, Any],
    room: int,
    buffers: bool,
    monkeypatch: pytest.MonkeyPatch,
    recwarn: pytest.WarningsRecorder,
) -> None:
    monkeypatch.setattr(activation_offload, "SMALLEST_BYTES", 1024)

    asked = []

    def pinned_buffer(nbytes: int) -> Tensor | None:
        asked.append(nbytes)
        return torch.empty(nbytes, dtype=torch.uint8) if buffers else None

    monkeypatch.setattr(cuda_device, "_pinned_buffer", pinned_buffer)
    data = [[ids] for ids in batches(3)]
    wanted = train_engine(start, data, SeparateMemory(), **options)
    cuda.room = room
    assert_same_bits(wanted, train_engine(start, data, OnTheCpu(), **options))
    assert not cuda.registered
    told = [w for w in recwarn if "would not register" in str(w.message)]
    assert len(told) == (room < 1 << 40)
    assert bool(asked) == (room < 1 << 40), "what is registered needs no buffers, and what is not does"
