"""16-bit weights: what they are stored in, what they are computed in, and the search for fp16's loss scale."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from device_places import train_16_bits
from plain_torch import SETTINGS
from small_models import CHUNK_BYTES, SeparateMemory, batches, clone, gpt2, llama, loss_of

from workbench.engine import NonFiniteGradientsError, OffloadEngine, StepResult, precision
from workbench.engine.devices.device import CpuDevice, Device
from workbench.engine.non_finite import LossScale, LossScaling
from workbench.engine.precision import working_precision
from workbench.optimizer.reference import join_float32

PLACES = [("device", "host"), ("host", "host"), ("host", "disk"), ("disk", "disk")]
INITIAL_SCALE, HYSTERESIS, WINDOW_STEPS = 2.0**16, 2, 1000


def test_auto_is_fp32_on_every_cpu_bf16_on_a_gpu_that_has_it_and_fp16_on_an_older_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gpu = CpuDevice()
    monkeypatch.setattr(gpu, "torch_device", torch.device("cuda"))
    for computes, expected in ((True, torch.bfloat16), (False, torch.float16)):
        monkeypatch.setattr(precision, "has_bfloat16", lambda device, computes=computes: computes)
        assert working_precision("auto", CpuDevice()) == torch.float32
        assert working_precision("auto", gpu) == expected
        assert working_precision("bf16", CpuDevice()) == torch.bfloat16


def open_engine(model: torch.nn.Module, device: Device, tmp_path: Path, **options: Any) -> OffloadEngine:
    chosen = {"chunk_bytes": CHUNK_BYTES, "threads": 2, "disk_path": tmp_path, **options}
    return OffloadEngine(model, optimizer=SETTINGS, device=device, **chosen)


def masters(engine: OffloadEngine) -> dict[str, torch.Tensor]:
    """The fp32 master of every parameter, from wherever it is kept."""
    kept = {name: t if isinstance(t, torch.Tensor) else t.read(0, t.numel()) for name, t in engine.state()}
    found = {}
    for unit in engine.layout.units:
        prefix = f"{unit.index:04d}-{unit.name}"
        for s in unit.segments:
            place = slice(s.offset, s.offset + s.numel)
            if f"{prefix}/master" in kept:
                value = kept[f"{prefix}/master"][place]
            else:
                value = join_float32(kept[f"{prefix}/high"][place], kept[f"{prefix}/low"][place])
            found[s.name] = value.view(s.shape).clone()
    return found


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize(("precision", "clipping"), [("bf16", 0.0), ("bf16", 1e9), ("fp16", 0.0)])
@pytest.mark.parametrize(("weights", "state"), PLACES)
def test_16_bit_weights_computed_in_fp32_train_as_rounded_weights_do(
    weights: str, state: str, precision: str, clipping: float, shared: bool, tmp_path: Path
) -> None:
    start, data = llama(), batches(5)
    dtype, scale = {"bf16": (torch.bfloat16, 1.0), "fp16": (torch.float16, INITIAL_SCALE)}[precision]
    wanted = train_16_bits(start, data, dtype, torch.float32, scale, "separate")
    model = clone(start)
    device = CpuDevice() if shared else SeparateMemory(seed=3)
    options = {"weights": weights, "state": state, "gradient_clipping": clipping, "compute": "fp32"}
    with open_engine(model, device, tmp_path, precision=precision, **options) as engine:
        ours = []
        for ids in data:
            loss = loss_of(model, ids)
            assert loss.dtype == torch.float32
            engine.backward(loss)
            assert engine.step().result().loss_scale == scale
            ours.append(loss.item())
        assert ours == pytest.approx(wanted.losses, rel=1e-5)
        for name, master in masters(engine).items():
            truth = wanted.parameters[name]
            moved = float((truth - start.get_parameter(name).detach()).norm())
            # A sum in another order may round to the neighbouring fp16 gradient, which is 2^-10 of it away.
            assert float((master - truth).norm()) <= 2**-10 * moved + 1e-6, name
        assert {w.dtype for unit in engine.weights() for w in unit.values()} == {dtype}
    assert not list(tmp_path.iterdir())


def test_a_loss_scale_halves_after_its_patience_doubles_after_its_window_and_goes_on_where_it_was_saved() -> (
    None
):
    scale = LossScale()
    for _ in range(HYSTERESIS):
        scale.after(finite=False)
    assert scale.value == INITIAL_SCALE / 2
    scale.after(finite=False)
    assert scale.value == INITIAL_SCALE / 4
    for _ in range(WINDOW_STEPS - 1):
        scale.after(finite=True)
    again = LossScale()
    again.load(scale.as_dict())
    for one in (scale, again):
        assert one.value == INITIAL_SCALE / 4
        one.after(finite=True)
        assert one.value == INITIAL_SCALE / 2
    for _ in range(40):
        scale.after(finite=False)
    assert scale.value == 1.0 and scale.exhausted


class DeepSpeedScaler:
    """DeepSpeed's DynamicLossScaler, by its own counting, with consecutive_hysteresis off."""

    def __init__(self, scaling: LossScaling) -> None:
        self.cur_scale, self.cur_hysteresis = scaling.initial, scaling.hysteresis
        self.cur_iter, self.last_overflow_iter = 0, -1
        self.scaling = scaling

    def update_scale(self, overflow: bool) -> None:
        if overflow:
            if self.cur_hysteresis == 1:
                self.cur_scale = max(self.cur_scale / 2, self.scaling.minimum)
            else:
                self.cur_hysteresis -= 1
            self.last_overflow_iter = self.cur_iter
        elif (self.cur_iter - self.last_overflow_iter) % self.scaling.window == 0:
            self.cur_hysteresis = self.scaling.hysteresis
            self.cur_scale *= 2
        self.cur_iter += 1


@pytest.mark.parametrize("hysteresis", [1, 2, 4])
@pytest.mark.parametrize("window", [1, 3, 10])
def test_the_scale_is_searched_as_deepspeed_searches_it(window: int, hysteresis: int) -> None:
    scaling = LossScaling(initial=2.0**10, window=window, hysteresis=hysteresis, minimum=32.0)
    ours, theirs = LossScale(scaling), DeepSpeedScaler(scaling)
    generator = random.Random(100 * window + hysteresis)
    for _ in range(2000):
        finite = generator.random() < 1 - 1 / (window + 1) and ours.value < 2.0**20
        ours.after(finite=finite)
        theirs.update_scale(overflow=not finite)
        assert ours.value == theirs.cur_scale


def test_a_fixed_scale_never_moves_and_its_third_overflow_in_a_row_ends_training(tmp_path: Path) -> None:
    model, ids = gpt2(), batches(1)[0]
    scaling = LossScaling(fixed=512.0)
    with open_engine(model, CpuDevice(), tmp_path, precision="fp16", loss_scale=scaling) as engine:
        seen = []
        for factor in (1.0, 1e7, 1e7, 1.0, 1e7, 1e7):
            engine.backward(loss_of(model, ids) * factor)
            result = engine.step().result()
            seen.append((result.loss_scale, result.skipped, result.scale_can_fall))
        assert seen == [(512.0, factor, False) for factor in (False, True, True, False, True, True)]
        assert "loss_scale" not in engine.counters()
        engine.backward(loss_of(model, ids) * 1e7)
        with pytest.raises(NonFiniteGradientsError, match=r"3 steps in a row under a loss scale of 512"):
            engine.step().result()


def test_a_long_micro_batch_after_a_short_one_overflows_only_where_the_short_one_is_the_measure(
    tmp_path: Path,
) -> None:
    short, long = batches(1, size=1)[0][:, :3], batches(1, size=32, seed=2)[0]
    counted = [ids[:, 1:].numel() for ids in (short, long)]

    def result(precision: str, **options: Any) -> StepResult:
        model = gpt2()
        options = {"precision": precision, "gradient_accumulation": 2, "gradient_clipping": 1e9, **options}
        with open_engine(model, CpuDevice(), tmp_path, **options) as engine:
            for ids, tokens in zip((short, long), counted, strict=True):
                engine.backward(loss_of(model, ids), tokens=tokens)
            return engine.step().result()

    assert result("fp16").skipped
    found = result("fp16", micro_batch_tokens=counted[1])
    # fp16 has 11 bits, and a gradient is rounded for each micro-batch.
    assert not found.skipped and found.grad_norm == pytest.approx(result("fp32").grad_norm, rel=2**-8)
    with pytest.raises(ValueError, match="micro_batch_tokens = 0"):
        result("fp16", micro_batch_tokens=0)


def test_an_overflow_at_the_minimum_ends_training_once_it_is_the_third_in_a_row(tmp_path: Path) -> None:
    model, ids = gpt2(), batches(1)[0]
    scaling = LossScaling(initial=2.0**12, hysteresis=1, minimum=2.0**11)
    with open_engine(model, CpuDevice(), tmp_path, precision="fp16", loss_scale=scaling) as engine:
        seen = []
        for _ in range(2):
            engine.backward(loss_of(model, ids) * 1e7)
            result = engine.step().result()
            seen.append((result.loss_scale, result.scale_can_fall))
        assert seen == [(2.0**12, True), (2.0**11, False)]
        engine.backward(loss_of(model, ids) * 1e7)
        with pytest.raises(
            NonFiniteGradientsError, match="a loss scale of 2048, which cannot fall any further"
        ):
            engine.step().result()


def test_a_saved_scale_is_taken_up_within_the_bounds_of_the_present_search() -> None:
    saved = {"value": 4.0, "good_steps": 7, "patience": 5}
    scale = LossScale(LossScaling(minimum=16.0, hysteresis=3))
    scale.load(saved)
    assert scale.as_dict() == {"value": 16.0, "good_steps": 7, "patience": 3}
    fixed = LossScale(LossScaling(fixed=128.0))
    fixed.load(saved)
    assert fixed.value == 128.0 and fixed.as_dict() is None


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("fixed", -1.0),
        ("fixed", float("inf")),
        ("fixed", float("nan")),
        ("initial", 2.0**33),
        ("initial", 0.5),
        ("minimum", 0.0),
        ("window", 0),
        ("hysteresis", 0),
    ],
)
def test_a_loss_scale_out_of_range_is_named(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"loss_scale.{name} = "):
        LossScaling(**{name: value})  # type: ignore[arg-type]


def test_16_bit_storage_with_fp32_compute_needs_checkpointing(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="activation_checkpointing = False"):
        open_engine(
            gpt2(), CpuDevice(), tmp_path, precision="bf16", compute="fp32", activation_checkpointing=False
        )
