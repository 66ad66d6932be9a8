"""A checkpoint goes on under another precision, state format, placement or overlap: masters to the bit, moments rounded
at most once, and the losses those of a run that never stopped."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_training import build_engine, differing, flip, newest, placed, save, state_of, train, weights_of
from torch import Tensor

from workbench.engine import OffloadEngine
from workbench.optimizer.reference import join_float32
from workbench.runs.checkpoints import DamagedFileError
from workbench.training.checkpoints.load import load_state

PRECISIONS = ("fp32", "bf16", "fp16")


def _part(tensors: dict[str, Tensor], first: int, count: int, kind: str, per: int = 1) -> Tensor:
    """What `kind` keeps of `count` elements from the region's `first` on, `per` of which share one of its own."""
    return tensors[kind][first // per : first // per - (-count // per)]


def by_parameter(engine: OffloadEngine) -> dict[str, dict[str, Tensor]]:
    """Masters in fp32 and moments expanded to it, by parameter; worked out apart from what is tested."""
    kept, found = state_of(engine), {}
    for unit in engine.layout.units:
        several_dtypes = len({r.dtype for r in unit.regions}) > 1
        several_formats = len({r.state_format for r in unit.regions}) > 1
        for s in unit.segments:
            region = unit.regions[s.region]
            suffix = f".{region.dtype}" * several_dtypes + f".{region.state_format}" * several_formats
            first = s.offset - region.start

            prefix = f"{unit.index:04d}-{unit.name}/"
            tensors = {
                name.removeprefix(prefix).removesuffix(suffix): tensor
                for name, tensor in kept.items()
                if name.startswith(prefix) and name.endswith(suffix)
            }
            part = partial(_part, tensors, first, s.numel)
            master = join_float32(part("high"), part("low")) if region.dtype == "bfloat16" else part("master")
            moments = {}
            for kind in ("exp_avg", "exp_avg_sq"):
                values = part(kind).float()
                if region.state_format == "compact":
                    scales = part(f"{kind}_scale", 256).repeat_interleave(256)[: s.numel]
                    values = values * values.abs() * scales
                moments[kind] = values
            found[s.name] = {"master": master.clone(), **moments}
    return found


def rounded_once(kind: str, values: Tensor, state_format: str) -> Tensor:
    """How far the nearest value of a format may be."""
    if state_format == "half":
        return values.abs() * 2**-8
    blocks = torch.nn.functional.pad(values.abs(), (0, -values.numel() % 256)).view(-1, 256)
    largest = blocks.amax(1).repeat_interleave(256)[: values.numel()]
    codes = 127 if kind == "exp_avg" else 255
    # Half a code of the root, which the square makes two roots wide; a code of 0 is kept away from.
    return largest.sqrt() / codes * (values.abs().sqrt() + largest.sqrt() / codes) + 1e-30


@pytest.mark.parametrize(
    ("was", "now"),
    [
        # Every pair of formats and of precisions, and every placement on either side.
        ("device exact fp32", "host exact fp32"),
        ("host exact fp32", "disk half bf16"),
        ("disk exact fp32", "state-on-disk compact fp16"),
        ("state-on-host half bf16", "device exact fp32"),
        ("partly-on-device half bf16", "host half bf16"),
        ("disk half bf16", "partly-on-device compact fp16"),
        ("state-on-disk compact fp16", "disk exact fp32"),
        ("host compact fp16", "state-on-host half bf16"),
        ("partly-on-device compact fp16", "disk compact fp16"),
        ("host exact bf16", "state-on-disk exact bf16"),
        ("disk exact fp16", "host half fp32"),
        ("host half fp16", "state-on-disk half bf16"),
        ("disk compact bf16", "host exact fp16"),
        ("state-on-host exact bf16", "partly-on-device compact fp32"),
    ],
)
def test_a_checkpoint_goes_on_wherever_and_however_it_is_kept(was: str, now: str, tmp_path: Path) -> None:
    sides = [
        dict(zip(("placement", "state_format", "precision"), s.split(), strict=True)) for s in (was, now)
    ]
    same_precision = sides[0]["precision"] == sides[1]["precision"]
    before_options, after_options = (placed(tmp_path, **side) for side in sides)
    model, engine = build_engine(**before_options)
    with engine:
        train(model, engine, 3)
        save(tmp_path / "checkpoints", 3, model, engine)
        before, counters = by_parameter(engine), engine.counters()
        expected = train(model, engine, 3, seed=7)
    model, engine = build_engine(seed=99, **after_options)
    with engine:
        converted = load_state(newest(tmp_path / "checkpoints"), engine)
        after = by_parameter(engine)
        formats = {
            s.name: unit.regions[s.region].state_format for unit in engine.layout.units for s in unit.segments
        }
        rounded = set()
        for name, kinds in before.items():
            assert torch.equal(after[name]["master"], kinds["master"]), name
            for kind in ("exp_avg", "exp_avg_sq"):
                if not torch.equal(after[name][kind], kinds[kind]):
                    rounded.add(formats[name])
                    apart = (after[name][kind] - kinds[kind]).abs()
                    assert (apart <= rounded_once(kind, kinds[kind], formats[name])).all(), (name, kind)
        lossy = {sides[1]["state_format"]} if any("rounded once" in line for line in converted) else set()
        assert rounded == lossy
        assert any("working weights" in line for line in converted) != same_precision
        assert engine.counters()["parameter_steps"] == counters["parameter_steps"] and engine.steps == 3
        # What the forward reads follows from the masters.
        for name, weight in weights_of(engine).items():
            assert torch.allclose(weight.float().view(-1), after[name]["master"], rtol=2**-7, atol=1e-7), name
        losses = train(model, engine, 3, seed=7)
    native = "device" not in (sides[0]["placement"], sides[1]["placement"])
    parts = {side["placement"] == "partly-on-device" for side in sides}
    if same_precision and not any("exp_avg" in line for line in converted) and native and len(parts) == 1:
        assert losses == expected
    else:
        assert losses == pytest.approx(expected, rel=5e-3 if same_precision else 2e-2)


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_there_and_back_is_the_same_state_to_the_bit(tmp_path: Path, precision: str) -> None:
    states = []
    for step, present in enumerate((precision, "fp32", precision)):
        model, engine = build_engine(seed=step, precision=present)
        with engine:
            if step == 0:
                train(model, engine, 3)
            else:
                load_state(newest(tmp_path), engine)
            save(tmp_path, step, model, engine)
            states.append(state_of(engine))
    assert differing(states[0], states[2]) == []


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("overlaps", [("serial", "exact"), ("exact", "serial")], ids=str)
def test_overlap_and_threads_may_change_and_the_losses_are_the_same_to_the_bit(
    tmp_path: Path, overlaps: tuple[str, str], threads: int
) -> None:
    options = {"gradient_clipping": 1.0, "precision": "bf16", "state_format": "half"}
    model, engine = build_engine(overlap=overlaps[0], **options)
    with engine:
        train(model, engine, 3)
        save(tmp_path, 3, model, engine)
        expected = train(model, engine, 3, seed=7)
    model, engine = build_engine(seed=99, overlap=overlaps[1], **{**options, "threads": threads})
    with engine:
        assert load_state(newest(tmp_path), engine) == []
        assert train(model, engine, 3, seed=7) == expected


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("placement", ["state-on-host", "host", "state-on-disk"])
def test_updates_that_begin_to_lag_at_a_checkpoint_are_those_of_a_run_that_had_lagged_from_there(
    tmp_path: Path, placement: str, precision: str
) -> None:
    places = placed(tmp_path, placement, precision=precision)
    model, engine = build_engine(**places, overlap="delayed", delay_warmup=3)
    with engine:
        train(model, engine, 3)
        expected = train(model, engine, 3, seed=7)
    model, engine = build_engine(**placed(tmp_path, "state-on-host", precision=precision))
    with engine:
        train(model, engine, 3)
        save(tmp_path / "checkpoints", 3, model, engine)
    model, engine = build_engine(seed=99, **places, overlap="delayed", delay_warmup=3)
    with engine:
        converted = load_state(newest(tmp_path / "checkpoints"), engine)
        assert "nothing is pending" in converted[0]
        assert train(model, engine, 3, seed=7) == expected


@pytest.mark.parametrize("placement", ["device", "host", "state-on-disk"])
def test_an_update_that_lagged_is_in_the_weights_when_updates_no_longer_lag(
    tmp_path: Path, placement: str
) -> None:
    model, engine = build_engine(overlap="delayed", delay_warmup=1)
    with engine:
        train(model, engine, 4)
        save(tmp_path / "checkpoints", 4, model, engine)
        newest_weights = weights_of(engine)
        read_by_forward = {name: p.detach().clone() for name, p in model.named_parameters()}
    assert differing(newest_weights, read_by_forward)
    model, engine = build_engine(seed=99, **placed(tmp_path, placement))
    with engine:
        converted = load_state(newest(tmp_path / "checkpoints"), engine)
        assert "pending is applied before the next forward" in converted[0]
        assert differing(weights_of(engine), newest_weights) == []
        losses = train(model, engine, 2, seed=7)
    plain = build_engine(seed=99)[0]
    assert losses[0] == pytest.approx(loss_with(plain, newest_weights, seed=7), rel=1e-6)


def loss_with(model: Any, weights: dict[str, Tensor], seed: int) -> float:
    """The model's loss of the first batch that `train` draws from `seed`, with other weights."""
    ids = torch.randint(257, (2, 16), generator=torch.Generator().manual_seed(seed))
    with torch.no_grad():
        logits = torch.func.functional_call(
            model, weights, kwargs={"input_ids": ids, "use_cache": False}, tie_weights=True
        ).logits
    return float(torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten()))


def test_a_lagging_run_goes_on_lagging_in_another_placement_to_the_bit(tmp_path: Path) -> None:
    options = {"overlap": "delayed", "delay_warmup": 1, "precision": "bf16", "state_format": "half"}
    model, engine = build_engine(**placed(tmp_path, "state-on-host", **options))
    with engine:
        train(model, engine, 3)
        save(tmp_path / "checkpoints", 3, model, engine)
        expected = train(model, engine, 3, seed=7)
    for placement in ("host", "state-on-disk"):
        model, engine = build_engine(seed=99, **placed(tmp_path, placement, **options))
        with engine:
            load_state(newest(tmp_path / "checkpoints"), engine)
            assert train(model, engine, 3, seed=7) == expected


@pytest.mark.parametrize("damage", ["flipped", "missing"])
def test_damage_is_found_before_anything_is_converted(tmp_path: Path, damage: str) -> None:
    model, engine = build_engine()
    with engine:
        train(model, engine, 2)
        path = save(tmp_path, 2, model, engine)
    target = max((path / "state").glob("*exp_avg"))
    if damage == "missing":
        target.unlink()
    else:
        flip(target)
    _, engine = build_engine(seed=99, state_format="half", precision="bf16")
    with engine:
        before = state_of(engine)
        with pytest.raises(DamagedFileError, match=target.name):
            load_state(newest(tmp_path), engine)
        assert differing(before, state_of(engine)) == []
