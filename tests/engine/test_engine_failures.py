"""What goes wrong reaches the caller with its cause, leaves no thread behind and writes nothing it should not."""

from __future__ import annotations

import math

import pytest
import torch
from small_models import CHUNK_BYTES, MODELS, SeparateMemory, batches, clone, loss_of
from torch import nn

from workbench.engine import LaneError, NonFiniteGradientsError, OffloadEngine
from workbench.engine.devices.device import CpuDevice, Event, Landing
from workbench.timeline import Lane


class BrokenLink(SeparateMemory):
    """Copies on one lane fail from the `healthy`-th on."""

    def __init__(self, broken: Lane, healthy: int) -> None:
        super().__init__()
        self._broken, self._healthy = broken, healthy

    def begin_copy(
        self, lane: Lane, destination: torch.Tensor, source: torch.Tensor, after: Event
    ) -> Landing:
        if lane is self._broken:
            self._healthy -= 1
            if self._healthy < 0:
                raise OSError("the link is down")
        return super().begin_copy(lane, destination, source, after)


@pytest.mark.parametrize("clipping", [0.0, 1.0])
@pytest.mark.parametrize("overlap", ["exact", "serial"])
@pytest.mark.parametrize("accumulation", [1, 2])
@pytest.mark.parametrize("lane", [Lane.DOWNLOAD, Lane.UPLOAD])
@pytest.mark.parametrize("healthy", [0, 11])
def test_a_lanes_failure_names_the_lane_and_carries_its_cause(
    lane: Lane, healthy: int, accumulation: int, overlap: str, clipping: float
) -> None:
    model = MODELS["gpt2"]()
    engine = OffloadEngine(
        model,
        device=BrokenLink(lane, healthy),
        overlap=overlap,  # type: ignore[arg-type]
        gradient_accumulation=accumulation,
        gradient_clipping=clipping,
        chunk_bytes=CHUNK_BYTES,
    )
    with pytest.raises((LaneError, RuntimeError)) as caught:
        for number, ids in enumerate(batches(4 * accumulation), start=1):
            engine.backward(loss_of(model, ids))
            if number % accumulation == 0:
                engine.step()
        engine.wait()
    messages, error = [], caught.value
    while error is not None:
        messages.append(str(error))
        error = error.__cause__
    assert any(f"lane {lane.value}: " in m and "of unit" in m for m in messages)
    assert "the link is down" in messages[-1]
    with pytest.raises(RuntimeError, match=r"stopped after an error|the link is down"):
        engine.backward(torch.zeros((), requires_grad=True))
    engine.close()


def test_a_download_that_fails_is_what_backward_says_and_no_slot_is_made_in_its_place() -> None:
    """Slots without a limit would use the device's memory up, and the user would be told of that."""

    class Counting(BrokenLink):
        slots = 0

        def empty(self, elements: int, dtype: torch.dtype) -> torch.Tensor:
            self.slots += dtype == torch.uint8
            return super().empty(elements, dtype)

    model = MODELS["gpt2"](layers=12)
    device = Counting(Lane.DOWNLOAD, 0)
    with OffloadEngine(model, device=device, chunk_bytes=CHUNK_BYTES) as engine:
        with pytest.raises(LaneError, match=r"lane download: .*the link is down"):
            for ids in batches(3):
                engine.backward(loss_of(model, ids))
                engine.step()
        assert device.slots == 1, "all are cut from one piece"


def _poison(model: nn.Module, name: str, value: float) -> object:
    parameter = dict(model.named_parameters())[name]

    def spoil(gradient: torch.Tensor) -> torch.Tensor:
        spoiled = gradient.clone()
        spoiled.view(-1)[-1] = value
        return spoiled

    return parameter.register_hook(spoil)


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
@pytest.mark.parametrize("overlap", ["exact", "serial"])
@pytest.mark.parametrize("state", ["host", "device"])
def test_a_step_with_one_gradient_that_is_not_finite_writes_nothing_and_says_so(
    state: str, overlap: str, value: float
) -> None:
    model, ids = MODELS["llama"](), batches(3)
    with OffloadEngine(
        model,
        device=SeparateMemory(1),
        state=state,  # type: ignore[arg-type]
        overlap=overlap,  # type: ignore[arg-type]
        gradient_clipping=1.0,
        chunk_bytes=CHUNK_BYTES,
    ) as engine:
        engine.backward(loss_of(model, ids[0]))
        engine.step().result()
        before = [t.clone() for _, t in engine.state()] + [p.detach().clone() for p in model.parameters()]
        steps = engine.counters()["parameter_steps"]
        handle = _poison(model, "model.layers.1.mlp.up_proj.weight", value)
        engine.backward(loss_of(model, ids[1]))
        result = engine.step().result()
        handle.remove()  # type: ignore[attr-defined]
        after = [t.clone() for _, t in engine.state()] + [p.detach().clone() for p in model.parameters()]
        assert result.skipped and not math.isfinite(result.grad_norm)
        assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
        assert engine.counters()["parameter_steps"] == steps
        engine.backward(loss_of(model, ids[2]))
        assert not engine.step().result().skipped


def test_the_third_such_step_in_a_row_stops_the_engine_and_names_the_parameter() -> None:
    model, ids = MODELS["llama"](), batches(1)[0]
    name = "model.layers.0.self_attn.v_proj.weight"
    with OffloadEngine(model, device="cpu", gradient_clipping=1.0) as engine:
        _poison(model, name, math.nan)
        for _ in range(2):
            engine.backward(loss_of(model, ids))
            assert engine.step().result().skipped
        engine.backward(loss_of(model, ids))
        report = engine.step()
        with pytest.raises(NonFiniteGradientsError, match=name):
            report.result()
        with pytest.raises(NonFiniteGradientsError, match=name):
            report.result()


def test_without_clipping_a_torn_step_stops_the_engine_at_once() -> None:
    """The first block's gradient comes last: the head has been updated by then."""
    model, ids = MODELS["llama"](), batches(1)[0]
    name = "model.layers.0.mlp.up_proj.weight"
    with OffloadEngine(model, device=CpuDevice(), chunk_bytes=CHUNK_BYTES, overlap="serial") as engine:
        _poison(model, name, math.inf)
        engine.backward(loss_of(model, ids))
        with pytest.raises(NonFiniteGradientsError, match=name):
            engine.step()


@pytest.mark.parametrize("value", [math.inf, math.nan])
def test_an_update_that_measures_on_its_way_stops_the_engine_at_once(value: float) -> None:
    """In one memory, with the state beside the weights, norm and update are one pass where nothing is clipped."""
    model, ids = MODELS["llama"](), batches(2)
    name = "model.layers.0.mlp.up_proj.weight"
    with OffloadEngine(model, device="cpu", state="device") as engine:
        engine.backward(loss_of(model, ids[0]))
        assert math.isfinite(engine.step().result().grad_norm)
        _poison(model, name, value)
        engine.backward(loss_of(model, ids[1]))
        report = engine.step()
        with pytest.raises(NonFiniteGradientsError, match=name):
            report.result()


def test_what_another_unit_has_shown_not_to_be_finite_is_not_applied_by_compute_either() -> None:
    model, ids = MODELS["llama"](), batches(1)
    with OffloadEngine(model, device="cpu", state="device") as engine:
        before = [p.detach().clone() for p in model.parameters()]

        def block(gradient: torch.Tensor) -> None:
            engine._runtime.tasks._current.blocked = True  # as an update on a lane does

        model.model.layers[0].mlp.up_proj.weight.register_hook(block)  # type: ignore[union-attr]
        engine.backward(loss_of(model, ids[0]))
        assert engine.step().result().grad_norm > 0, "measured for the verdict"
        assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


@pytest.mark.parametrize(("clipping", "overlap"), [(1.0, "exact"), (0.0, "serial")])
def test_an_update_that_knows_the_verdict_leaves_the_step_out(clipping: float, overlap: str) -> None:
    model, ids = MODELS["llama"](), batches(2)
    with OffloadEngine(
        model,
        device="cpu",
        state="device",
        gradient_clipping=clipping,
        overlap=overlap,  # type: ignore[arg-type]
    ) as engine:
        before = [p.detach().clone() for p in model.parameters()]
        handle = _poison(model, "model.layers.0.mlp.up_proj.weight", math.nan)
        engine.backward(loss_of(model, ids[0]))
        assert engine.step().result().skipped
        assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
        handle.remove()  # type: ignore[attr-defined]
        engine.backward(loss_of(model, ids[1]))
        assert not engine.step().result().skipped
        assert not all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


def test_an_optimizer_of_torch_is_refused_in_words() -> None:
    model = MODELS["llama"]()
    with pytest.raises(TypeError, match=r"expected workbench\.engine\.AdamW.*torch\.optim"):
        OffloadEngine(model, optimizer=torch.optim.AdamW(model.parameters()), device="cpu")  # type: ignore[arg-type]


def test_misuse_is_refused_in_words() -> None:
    model, ids = MODELS["llama"](), batches(1)[0]
    with OffloadEngine(model, device="cpu") as engine:
        with pytest.raises(RuntimeError, match=r"step\(\) without a backward"):
            engine.step()
        engine.backward(loss_of(model, ids))
        with pytest.raises(RuntimeError, match=r"call step\(\) first"):
            engine.backward(loss_of(model, ids))
        engine.step()
        with pytest.raises(ValueError, match="tokens = 0"):
            engine.backward(loss_of(model, ids), tokens=0)
    with pytest.raises(RuntimeError, match="closed"):
        engine.backward(loss_of(model, ids))
    with OffloadEngine(clone(model), device="cpu", gradient_accumulation=2) as engine:
        engine.backward(loss_of(engine.model, ids), tokens=3)
        with pytest.raises(RuntimeError, match="every micro-batch"):
            engine.backward(loss_of(engine.model, ids))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"overlap": "wild"}, "overlap = 'wild'"),
        ({"weights": "attic"}, "weights = 'attic'"),
        ({"state": "attic"}, "state = 'attic'"),
        ({"state": "disk"}, "disk_path"),
        ({"weights": "disk", "disk_path": "."}, "weights = 'disk' with state = 'host'"),
        ({"weights": "host", "state": "device"}, "weights = 'host' with state = 'device'"),
        ({"device_fraction": 1.5}, "device_fraction = 1.5"),
        ({"delay_warmup": -1}, "delay_warmup = -1"),
        ({"compute": "fast"}, "compute = 'fast'"),
        ({"activations": "attic"}, "activations = 'attic'"),
        ({"precision": "fp8"}, "precision = 'fp8'"),
        ({"gradient_accumulation": 0}, "gradient_accumulation = 0"),
        ({"gradient_clipping": -1.0}, "gradient_clipping = -1.0"),
        ({"chunk_bytes": 0}, "chunk_bytes = 0"),
        ({"device": "cuda:93"}, "cuda:93"),
        ({"device": "abacus"}, "abacus"),
    ],
)
def test_a_wrong_argument_is_named_with_its_value(options: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        OffloadEngine(nn.Linear(2, 2), **{"device": "cpu", **options})  # type: ignore[arg-type]


def test_a_gradient_that_comes_from_elsewhere_is_refused_instead_of_lost() -> None:
    model, ids = MODELS["llama"](), batches(1)[0]
    with OffloadEngine(model, device="cpu") as engine:
        with pytest.raises(RuntimeError, match=r"engine\.backward"):
            loss_of(model, ids).backward()
        assert engine.steps == 0
