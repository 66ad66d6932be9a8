"""Updates ahead of the verdict: the bits are those of `serial`, whatever the verdicts, the timing and the placement."""

from __future__ import annotations

import itertools
import math
import random
import time
import zlib
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from plain_torch import SETTINGS, Outcome, assert_same_bits, engine_state, engine_weights, train_engine
from small_models import CHUNK_BYTES, MODELS, SeparateMemory, batches, clone, loss_of
from torch import Tensor, nn

from workbench.engine import OffloadEngine
from workbench.engine.non_finite import LossScaling
from workbench.engine.speculation import LOOKED_AT, MOST_AGAINST, SpeculationRule
from workbench.timeline import Kind

STEPS = 9
CLIPPING = 8.0
"""Above the norm of every step here, unless the embedding's gradient is made larger."""
LARGER = 200.0
VERDICTS = {
    "never clipped": "=" * STEPS,
    "always clipped": "^" * STEPS,
    "now and then": "==^==x==^",
    "not finite twice": "===xx====",
}
"""By step: as it is, clipped, or with a gradient that is not finite."""
CASES: dict[str, dict[str, Any]] = {
    "fp32": {},
    "bf16": {"precision": "bf16"},
    "fp16": {"precision": "fp16"},
    "fp16, weights on the host": {"precision": "fp16", "weights": "host"},
    "weights on the host": {"weights": "host", "precision": "bf16"},
    "accumulated": {"gradient_accumulation": 2, "precision": "bf16"},
    "summed on the device": {"gradient_accumulation": 2, "gradient_sums": "device"},
    "weights on the host, accumulated": {"gradient_accumulation": 2, "weights": "host"},
    "state on both": {"device_fraction": 0.4},
    "a part": {"speculation": 0.5},
    "half": {"state_format": "half"},
    "half, fp16, weights on the host": {"state_format": "half", "precision": "fp16", "weights": "host"},
    "half, accumulated": {"state_format": "half", "precision": "bf16", "gradient_accumulation": 2},
    "compact": {"state_format": "compact"},
    "compact, bf16": {"state_format": "compact", "precision": "bf16"},
    "compact, a part on the device": {"state_format": "compact", "device_fraction": 0.4},
}


def pairs() -> Iterator[Any]:
    """Every case with all kinds of verdicts in turn, and the first with each; all with all where there is time."""
    for case, verdicts in itertools.product(CASES, VERDICTS):
        if case == "fp32" or verdicts == "now and then":
            yield case, verdicts, 1
        yield pytest.param(case, verdicts, 10, marks=pytest.mark.slow)


class Losses:
    """The losses of a training whose verdicts are given. The embedding's gradient, which is the last, comes late: what
    can be updated ahead is."""

    def __init__(self, verdicts: str, micro_batches: int = 1, late_s: float = 0.02) -> None:
        self._verdicts = verdicts
        self._micro_batches = micro_batches
        self._late_s = late_s
        self._calls = 0
        self._hook: Any = None

    def resume(self, step: int) -> None:
        """Go on with a step of one micro-batch, of another model."""
        self._calls, self._hook = step, None

    def __call__(self, model: nn.Module, ids: Tensor) -> Tensor:
        verdict = self._verdicts[self._calls // self._micro_batches]
        self._calls += 1
        loss = loss_of(model, ids)

        def late(gradient: Tensor) -> Tensor:
            time.sleep(self._late_s)
            return gradient * {"=": 1.0, "^": LARGER, "x": math.nan}[verdict]

        if self._hook is not None:
            self._hook.remove()
        embedding: Any = model.get_input_embeddings()  # type: ignore[operator]
        self._hook = embedding.weight.register_hook(late)
        return loss


def train(start: nn.Module, device: SeparateMemory, verdicts: str, **options: Any) -> Outcome:
    several = options.get("gradient_accumulation", 1)
    data = batches(STEPS * several)
    steps = [data[number::STEPS] for number in range(STEPS)]
    clipping = {"gradient_clipping": CLIPPING, "speculation": 1.0, "loss_scale": LossScaling(initial=16.0)}
    losses = Losses(verdicts, several, late_s=0.0 if options.get("overlap") == "serial" else 0.02)
    return train_engine(start, steps, device, compute_loss=losses, **{**clipping, **options})


@pytest.mark.parametrize(("case", "verdicts", "seeds"), [*pairs()])
def test_it_has_the_bits_of_serial_whatever_the_verdicts(case: str, verdicts: str, seeds: int) -> None:
    start = MODELS["llama"](dropout=0.1)
    options, given = CASES[case], VERDICTS[verdicts]
    serial = train(start, SeparateMemory(), given, overlap="serial", **options)
    assert not any(each.speculated for each in serial.speculation)
    first = zlib.crc32(f"{case} {verdicts}".encode())
    for seed in range(first, first + seeds):
        ahead = train(start, SeparateMemory(seed), given, **options)
        assert_same_bits(serial, ahead)
        found = ahead.speculation
        assert any(each.speculated for each in found), "nothing was updated ahead"
        for verdict, each in zip(given, found, strict=True):
            assert each.undone == (0 if verdict == "=" else each.speculated)
            assert (each.seconds > 0) == (each.undone > 0)


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 200))])
def test_a_run_that_is_cut_off_and_resumed_takes_the_same_road(seed: int) -> None:
    """Somewhere, in a step that may be clipped or torn: saved as it is then, and taken up by an engine of its own."""
    chance = random.Random(seed)
    verdicts = "".join(chance.choices("=^x", (6, 3, 1), k=STEPS)).replace("xxx", "xx=")
    cut = chance.randrange(1, STEPS)
    case = chance.choice([name for name in CASES if "gradient_accumulation" not in CASES[name]])
    start, data = MODELS["gpt2"](dropout=0.1), batches(STEPS)
    options: dict[str, Any] = {"gradient_clipping": CLIPPING, "speculation": 1.0, "precision": "fp32"}
    options |= {
        "chunk_bytes": CHUNK_BYTES,
        "threads": 2,
        "loss_scale": LossScaling(initial=16.0),
        **CASES[case],
    }
    losses = Losses(verdicts, late_s=0.005)
    found: list[tuple[Any, ...]] = []

    def run(engine: OffloadEngine, model: nn.Module, steps: range) -> None:
        for number in steps:
            torch.manual_seed(number)
            engine.backward(losses(model, data[number]))
            if chance.random() < 0.5:
                engine.step()  # and its result is not waited for
            else:
                engine.step().result()

    def end(engine: OffloadEngine, model: nn.Module) -> None:
        found.append((engine_state(engine), engine_weights(engine, model), engine.counters()))

    model = clone(start)
    with OffloadEngine(model, optimizer=SETTINGS, device=SeparateMemory(seed), **options) as engine:
        run(engine, model, range(cut))
        counters = engine.counters()
        kept = engine_state(engine)
        run(engine, model, range(cut, STEPS))
        end(engine, model)
    losses.resume(cut)
    model = clone(start)
    with OffloadEngine(model, optimizer=SETTINGS, device=SeparateMemory(seed + 1), **options) as engine:
        for name, tensor in engine.state():
            assert isinstance(tensor, Tensor)
            tensor.copy_(kept[name])
        engine.restore(counters)
        run(engine, model, range(cut, STEPS))
        end(engine, model)
    (state, weights, after), (state_again, weights_again, after_again) = found
    assert after == after_again
    assert len(after["verdicts"]) == min(STEPS, LOOKED_AT)
    for one, other in ((state, state_again), (weights, weights_again)):
        assert one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def test_the_rule_stops_where_verdicts_go_against_it_and_begins_again() -> None:
    rule = SpeculationRule(possible=True)
    said = []
    for verdict in [True] * 3 + [False] * 10 + [True] * 10:
        said.append(rule.speculates)
        rule.after(verdict)
    stops = 3 + MOST_AGAINST + 1
    begins = 13 + LOOKED_AT - MOST_AGAINST
    assert said == [True] * stops + [False] * (begins - stops) + [True] * (23 - begins)
    again = SpeculationRule(possible=True)
    again.load(rule.as_dict())
    assert again.as_dict() == rule.as_dict() == {"verdicts": [True] * LOOKED_AT}
    assert not SpeculationRule(possible=False).speculates


def test_every_step_clipped_it_costs_nothing_after_a_few() -> None:
    given = "^" * STEPS
    found = train(MODELS["llama"](), SeparateMemory(1), given).speculation
    assert any(each.undone for each in found[: MOST_AGAINST + 1])
    assert not any(each.speculated for each in found[MOST_AGAINST + 1 :])


def test_nothing_goes_up_before_the_verdict() -> None:
    model = MODELS["llama"]()
    uploads: list[int] = []
    with OffloadEngine(
        model,
        optimizer=SETTINGS,
        device=SeparateMemory(),
        chunk_bytes=CHUNK_BYTES,
        gradient_clipping=CLIPPING,
        speculation=1.0,
        precision="bf16",
    ) as engine:
        losses = Losses("=" * 4)
        for ids in batches(4):
            engine.backward(losses(model, ids))
            spans = engine.step().result().spans
            verdict = next(span for span in spans if span.kind is Kind.VERDICT)
            ahead = [span for span in spans if span.kind is Kind.SPECULATE and span.start_s < verdict.start_s]
            uploads.append(len(ahead))
            assert all(span.start_s >= verdict.stop_s for span in spans if span.kind is Kind.UPLOAD)
    assert all(uploads)
