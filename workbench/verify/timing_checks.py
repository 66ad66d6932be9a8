"""The checks that compare the engine with itself, bit by bit: other timings, and a run that was stopped and resumed."""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from workbench.data.tokenizers import ByteTokenizer
from workbench.engine import OffloadEngine
from workbench.engine.blocks.discovery import FoundUnit
from workbench.model.build import UnitInitializer, build_on_meta
from workbench.runs.checkpoints import Progress, find_checkpoints
from workbench.training.checkpoints.load import load_state
from workbench.training.checkpoints.save import save_checkpoint
from workbench.verify.engine_training import Bench, EngineOutcome, conclude, same_bits
from workbench.verify.recipe import Recipe
from workbench.verify.rows import Row, Trial, measured, stated
from workbench.verify.slow_lanes import slow_device
from workbench.verify.training_checks import verdict_of_weights

SEEDS = (1, 2)


def check_timing(trial: Trial) -> Iterator[Row]:
    """In memory apart from the host's, lanes that are held up at random change no bit; and it is plain torch's training
    there too."""
    overlap = trial.bench.config.offload.overlap
    other = "delayed" if overlap == "delayed" else "serial"

    def train(overlap: str, seed: int | None) -> EngineOutcome:
        return trial.bench.train(trial.recipe, slow_device(trial.like, seed), overlap=overlap)

    in_order = train(other, None)
    yield measured(
        "separate memory",
        f"{len(trial.recipe.steps)} steps against plain torch",
        verdict_of_weights(trial, in_order),
    )
    wrong = None
    for seed in SEEDS:
        wrong = wrong or difference(train(overlap, seed), in_order)
    beside = "delayed again" if overlap == "delayed" else "serial"
    yield stated("lanes held up", f"{overlap}: the bits of {beside}", wrong, f"{len(SEEDS)} timings")


def check_resume(trial: Trial) -> Iterator[Row]:
    """Saved by one engine and loaded into a fresh one, around a model of other weights, training goes on with the same
    bits."""
    recipe, bench = trial.recipe, trial.bench
    steps = len(recipe.steps)
    middle = max(1, steps - 2)
    resumed = EngineOutcome()
    with tempfile.TemporaryDirectory(prefix="workbench-verify-") as folder:
        with bench.engine(recipe) as engine:
            bench.take_steps(engine, recipe, resumed, 0, middle)
            save_checkpoint(
                Path(folder),
                middle,
                engine=engine,
                model=engine.model,
                tokenizer=ByteTokenizer(),  # any will do
                progress=Progress(),
                keep=1,
            )
        with _other_engine(bench, recipe) as engine:
            load_state(next(find_checkpoints(Path(folder), _raise)), engine)
            bench.take_steps(engine, recipe, resumed, middle)
            conclude(engine, resumed)
    yield stated(
        "save and resume",
        f"saved after step {middle}: the bits of a run that never stopped",
        difference(resumed, trial.ours),
        f"{steps} steps",
    )


@contextmanager
def _other_engine(bench: Bench, recipe: Recipe) -> Iterator[OffloadEngine]:
    """An engine around a model of other trainable weights; what is frozen is no part of a checkpoint."""
    seed = bench.subject.seed + 1
    if bench.subject.is_adapted:
        model = copy.deepcopy(bench.subject.start)
        generator = torch.Generator().manual_seed(seed)
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.data = torch.randn(parameter.shape, generator=generator)
        with bench.engine(recipe, model=model) as engine:
            yield engine
        return
    model, start = build_on_meta(bench.subject.shape), bench.subject.start
    initialize = UnitInitializer(model, seed)

    def materialize(unit: FoundUnit) -> None:
        initialize(unit)
        for name, parameter in unit.parameters.items():
            if not parameter.requires_grad:
                parameter.data.copy_(start.get_parameter(name))

    with bench.engine(recipe, model=model, materialize=materialize) as engine:
        yield engine


def difference(one: EngineOutcome, other: EngineOutcome) -> str | None:
    """The first thing in which two trainings are not the same to the last bit."""
    for what in ("losses", "norms", "skipped", "loss_scales", "counts"):
        if getattr(one, what) != getattr(other, what):
            return f"other {what.replace('_', ' ')}: {_first(getattr(one, what), getattr(other, what))}"
    odd = same_bits(one.raw, other.raw) or same_bits(one.weights, other.weights)
    return f"other bits in {odd}" if odd else None


def _first(one: object, other: object) -> str:
    if isinstance(one, list) and isinstance(other, list):
        for number, (mine, theirs) in enumerate(zip(one, other, strict=False), start=1):
            if mine != theirs:
                return f"number {number} is {mine!r}, not {theirs!r}"
    if isinstance(one, dict) and isinstance(other, dict):
        for name, mine in one.items():
            if other.get(name) != mine:
                return f"{name} has {mine!r}, not {other.get(name)!r}"
    return "not as many"


def _raise(message: str) -> None:
    raise ValueError(message)
