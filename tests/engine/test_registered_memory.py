"""The host memory that the engine registers: what copies touch and no more, and what happens where the driver stops."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from plain_torch import Outcome, assert_same_bits, train_engine
from small_models import CHUNK_BYTES, MODELS, SeparateMemory, batches, clone, loss_of

from workbench.engine import OffloadEngine
from workbench.engine.blocks import activation_offload
from workbench.engine.devices.cuda_device import CudaDevice
from workbench.engine.devices.pinned import StagingRing
from workbench.sizes import RINGS_BYTES
from workbench.virtual_cuda import Order, VirtualCuda

LAYERS = 5  # more than the slots of streamed weights
Options = dict[str, Any]
ON_HOST: Options = {"weights": "host", "gradient_clipping": 0.5}


@pytest.fixture(scope="module")
def start() -> Any:
    return MODELS["gpt2"](layers=LAYERS)


@pytest.fixture(autouse=True)
def _small_activations_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(activation_offload, "SMALLEST_BYTES", 1024)


@contextmanager
def engine_on(start: Any, cuda: VirtualCuda, options: Options) -> Iterator[tuple[OffloadEngine, int]]:
    """Yield an engine after two steps, and the bytes that were registered before the first."""
    model = clone(start)
    options = {"precision": "bf16", "chunk_bytes": CHUNK_BYTES, **options}
    with OffloadEngine(model, device="cuda", **options) as engine:
        at_first = sum(cuda.pinned.registered.values())
        for ids in batches(2):
            for _ in range(options.get("gradient_accumulation", 1)):
                engine.backward(loss_of(model, ids.to("cuda")))
            engine.step()
        engine.wait()
        yield engine, at_first


BYTES_A_PARAMETER: dict[str, tuple[Options, int]] = {
    "state on the host": ({"gradient_clipping": 0.5}, 2 + 2),
    "gradients in a ring": ({}, 2),
    "half": ({"gradient_clipping": 0.5, "state_format": "half"}, 2 + 2),
    "compact": ({"gradient_clipping": 0.5, "state_format": "compact"}, 2 + 2),
    "weights on the host": (ON_HOST, 2 + 2),
    "accumulated": ({"gradient_clipping": 0.5, "gradient_accumulation": 2}, 2),
    "activations on the host": ({**ON_HOST, "activations": "host"}, 2 + 2),
    "delayed, with two sets of gradients": ({"overlap": "delayed", "delay_warmup": 0}, 2 + 2 * 2),
    "delayed, weights on the host": ({**ON_HOST, "overlap": "delayed", "delay_warmup": 0}, 2 + 2 * 2),
    "state on disk": ({"state": "disk", "gradient_clipping": 0.5}, 2),
    "state on disk, gradients in a ring": ({"weights": "host", "state": "disk"}, 2),
    "fp16": ({"precision": "fp16", "gradient_clipping": 0.5}, 2 + 2),
    "fp32": ({"precision": "fp32", "gradient_clipping": 0.5}, 4 + 4),
}


@pytest.mark.parametrize("name", BYTES_A_PARAMETER)
def test_what_copies_touch_is_registered_and_nothing_else(
    start: Any, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Moments, the lower halves of weights and fp32 sums are the processor's alone: they stay plain pages."""

    def goes_through_buffers(*args: Any) -> None:
        raise AssertionError("a copy met memory that is not registered")

    monkeypatch.setattr(StagingRing, "upload", goes_through_buffers)
    monkeypatch.setattr(StagingRing, "download", goes_through_buffers)
    options, bytes_a_parameter = BYTES_A_PARAMETER[name]
    with VirtualCuda(Order.AT_ONCE) as cuda:
        with engine_on(start, cuda, {**options, "disk_path": tmp_path}) as (engine, at_first):
            activations = engine.memory()["host"].get("activations", 0)
            assert sum(cuda.pinned.registered.values()) == at_first + activations
            assert bool(activations) == ("activations" in options)
            units = engine.layout.units
            slots = engine.memory()["host"].get("gradient slots", 0)
        elements = sum(region.elements for unit in units for region in unit.regions)
        assert at_first == bytes_a_parameter * elements + slots + RINGS_BYTES
    assert not cuda.faults


def test_with_weights_on_disk_the_buffers_that_fetch_them_are_registered(start: Any, tmp_path: Path) -> None:
    with VirtualCuda(Order.AT_ONCE) as cuda:
        options = {"weights": "disk", "state": "disk", "gradient_clipping": 0.5, "disk_path": tmp_path}
        with engine_on(start, cuda, options) as (engine, at_first):
            outer = sum(r.elements for u in engine.layout.units if u.kind == "outer" for r in u.regions)
            fetch = engine._scheduler._plan.sizes.fetch.total
            slots = engine.memory()["host"]["gradient slots"]
            assert at_first == 2 * outer + fetch + slots + RINGS_BYTES and fetch
            assert sum(cuda.pinned.registered.values()) == at_first


def test_with_state_on_the_device_no_host_memory_is_registered(start: Any) -> None:
    with (
        VirtualCuda(Order.AT_ONCE) as cuda,
        engine_on(start, cuda, {"state": "device"}),
    ):
        assert not cuda.pinned.registered


# Where the driver stops

PIECE_BYTES = 1 << 16


def train(start: Any, options: Options, room: int) -> tuple[Outcome, dict[str, dict[str, int]]]:
    """Train where `room` bytes can be registered; return what it came to and the engine's memory at the end."""
    held: list[dict[str, dict[str, int]]] = []
    close = OffloadEngine.close

    def noting(self: OffloadEngine) -> None:
        held.append(self.memory())
        close(self)

    with (
        pytest.MonkeyPatch.context() as patch,
        VirtualCuda(Order.LAZY, registered_bytes=room) as cuda,
    ):
        patch.setattr(OffloadEngine, "close", noting)
        device = CudaDevice(torch.device("cuda", 0))
        device.pinned_zeros(0, torch.uint8)
        device._host._piece_bytes = PIECE_BYTES  # from now on: the buffers are one piece each
        outcome = train_engine(
            start,
            [[ids] for ids in batches(2)],
            device,
            compute_loss=lambda model, ids: loss_of(model, ids.to("cuda")),
            **options,
        )
    assert not cuda.races and not cuda.faults
    return outcome, held[-1]


@pytest.fixture(scope="module")
def wanted(start: Any) -> Outcome:
    steps = [[ids] for ids in batches(2)]
    return train_engine(start, steps, SeparateMemory(), compute="same", **ON_HOST)


@pytest.mark.parametrize("room", [0, 2 * PIECE_BYTES, RINGS_BYTES, RINGS_BYTES + 300_000])
@pytest.mark.parametrize(
    "options",
    [ON_HOST, {**ON_HOST, "activations": "host"}, {**ON_HOST, "weights": "device"}],
    ids=["weights on the host", "all on the host", "weights on the device"],
)
def test_it_trains_the_same_bits_however_little_can_be_registered_and_says_how_little(
    start: Any, wanted: Outcome, room: int, options: Options
) -> None:
    with pytest.warns(
        RuntimeWarning, match=r"registered only .* copied through small pinned buffers"
    ) as told:
        outcome, held = train(start, options, room)
    assert_same_bits(wanted, outcome)
    assert len([each for each in told if "registered only" in str(each.message)]) == 1
    staging = held["host"].get("staging", 0)
    assert staging == (RINGS_BYTES if room >= RINGS_BYTES else 0)
    copied = ("master weights", "gradients", "gradient slots", "activations")
    registered = sum(held["host"].get(name, 0) for name in copied) - through(held)
    assert room - PIECE_BYTES < registered + staging <= room


def through(held: dict[str, dict[str, int]]) -> int:
    """The bytes that copies reach only through small buffers."""
    return held["copied through small buffers"]["host memory"]


def test_a_refusal_hits_the_gradients_and_not_the_weights_or_what_all_units_share(start: Any) -> None:
    """Weights are copied twice a step, and slots serve every chunk."""
    with VirtualCuda(Order.AT_ONCE) as cuda, engine_on(start, cuda, {**ON_HOST, "precision": "fp32"}) as held:
        engine, at_first = held
        gradients = engine.memory()["host"]["gradients"]
    with pytest.warns(RuntimeWarning, match="registered only"):
        _, memory = train(start, ON_HOST, at_first - gradients)
    assert through(memory) == gradients


def test_nothing_is_said_where_everything_is_registered(start: Any, recwarn: pytest.WarningsRecorder) -> None:
    _, held = train(start, ON_HOST, 1 << 30)
    assert "copied through small buffers" not in held
    assert not [each for each in recwarn if "registered" in str(each.message)]
