"""`overhead`: tokens a second of the engine beside a plain torch loop and the Hugging Face Trainer.

The contenders take turns in one process, in short samples and in an order drawn anew each time, so that whatever
disturbs the machine for a while disturbs all of them, and none always follows the same other.
"""

from __future__ import annotations

import contextlib
import gc
import math
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.engine.packages import MissingPackageError, load_accelerate
from benchmarks.engine.processes import tell
from benchmarks.engine.shapes import Shape, shape_of
from benchmarks.host_optimizer.report import NOTHING, Table

SHAPES = {
    "0.1M": shape_of(100_000, layers=2),
    "1M": Shape("1M", 4, 128, 4, vocab_size=1024),
    "5M": Shape("5M", 6, 256, 8, vocab_size=512),
    "50M": Shape("50M", 8, 640, 10, vocab_size=16_384),
    "124M": Shape("124M", 12, 768, 12, vocab_size=50_257),
}
TOKENS = (64, 256, 1024)
REPETITIONS = 31
SAMPLE_S = 0.1
"""A sample is at least this long, and follows a step that is not timed."""
PLAIN, TRAINER, AUTO, HOST = "plain torch", "HF Trainer", "engine auto", "engine host"
GOALS = {AUTO: 1.0, HOST: 0.95}
SAME_LOSS = 0.02


@dataclass(frozen=True)
class Sampled:
    """One contender at one size: seconds a step, a sample each, and the mean loss of its first sample."""

    contender: str
    tokens: int
    step_s: tuple[float, ...]
    first_loss: float

    @property
    def tokens_per_s(self) -> float:
        return self.tokens / statistics.median(self.step_s)


@dataclass(frozen=True)
class Overhead:
    """All that was measured. `met`: every goal, at every size, against all that was there."""

    tables: tuple[Table, ...]
    notes: tuple[str, ...]
    rows: tuple[dict[str, object], ...]
    met: bool


def measure_overhead(
    sizes: Sequence[str], tokens: Sequence[int], repetitions: int, packages: Path | None
) -> Overhead:
    """Measure every size with every number of tokens."""
    notes = []
    try:
        notes.append(load_accelerate(packages))
        trainer = True
    except MissingPackageError as error:
        notes.append(f"{TRAINER} skipped: {error}")
        trainer = False
    tell(notes[-1])
    tables: list[Table] = []
    rows: list[dict[str, object]] = []
    met = True
    with tempfile.TemporaryDirectory(prefix="workbench-benchmark-") as folder:
        for size in sizes:
            shape = SHAPES[size]
            sampled = _take_turns(shape, tokens, repetitions, Path(folder) if trainer else None)
            for count in tokens:
                group = [s for s in sampled if s.tokens == count]
                table, kept = _table(shape, count, group)
                tables.append(table)
                met &= kept
                rows.extend(_row(size, s) for s in group)
                notes.extend(_differing(size, count, group))
    return Overhead(tuple(tables), tuple(notes), tuple(rows), met)


def _take_turns(
    shape: Shape, tokens: Sequence[int], repetitions: int, trainer_folder: Path | None
) -> list[Sampled]:
    from benchmarks.engine.contenders import Contender, Engine, HuggingFaceTrainer, PlainTorch, batch

    makers: dict[str, Callable[[], Contender]] = {PLAIN: lambda: PlainTorch(shape)}
    if trainer_folder is not None:
        folder = trainer_folder
        makers[TRAINER] = lambda: HuggingFaceTrainer(shape, folder)
    makers[AUTO] = lambda: Engine(shape, "device")
    makers[HOST] = lambda: Engine(shape, "host")
    sampled = []
    for count in tokens:
        with contextlib.ExitStack() as stack:
            contenders: dict[str, Contender] = {}
            for name, make in makers.items():
                contenders[name] = make()
                stack.callback(contenders[name].close)
                contenders[name].set_batch(batch(shape, count))
            tell(f"measuring {shape.parameters:,} parameters, {count} tokens a step")
            first_loss, steps = {}, 2
            for name, contender in contenders.items():
                begin = time.perf_counter()
                contender.seconds(3)
                first_loss[name] = contender.mean_loss
                if name == PLAIN:
                    steps = max(1, math.ceil(SAMPLE_S / ((time.perf_counter() - begin) / 4)))
            step_s: dict[str, list[float]] = {name: [] for name in contenders}
            order = random.Random(count)
            for _ in range(repetitions):
                for name in order.sample(list(contenders), len(contenders)):
                    step_s[name].append(contenders[name].seconds(steps) / steps)
            sampled += [Sampled(n, count, tuple(step_s[n]), first_loss[n]) for n in contenders]
        del contenders
        gc.collect()  # the next one needs the memory
    return sampled


def _table(shape: Shape, tokens: int, sampled: Sequence[Sampled]) -> tuple[Table, bool]:
    """The table of one size, and whether its goals are met."""
    references = [s for s in sampled if s.contender in (PLAIN, TRAINER)]
    columns = ("contender", "tokens/s", "ms a step", *(f"x {r.contender}" for r in references), "goal", "met")
    rows, all_met = [], True
    for one in sampled:
        ratios = [one.tokens_per_s / r.tokens_per_s for r in references]
        goal = GOALS.get(one.contender)
        met = goal is None or min(ratios) >= goal
        all_met &= met
        rows.append(
            (
                one.contender,
                f"{one.tokens_per_s:,.0f}",
                f"{1e3 * statistics.median(one.step_s):.2f}",
                *(f"{ratio:.3f}" for ratio in ratios),
                NOTHING if goal is None else f"{goal:.2f}",
                NOTHING if goal is None else "yes" if met else "no",
            )
        )
    title = f"{shape.parameters:,} parameters, {tokens} tokens a step"
    return Table(title, columns, tuple(rows)), all_met


def _row(size: str, one: Sampled) -> dict[str, object]:
    return {
        "size": size,
        "tokens": one.tokens,
        "contender": one.contender,
        "tokens_per_s": float(f"{one.tokens_per_s:.5g}"),
        "step_s": [float(f"{s:.5g}") for s in one.step_s],
        "first_loss": one.first_loss,
    }


def _differing(size: str, tokens: int, sampled: Sequence[Sampled]) -> list[str]:
    """Contenders whose first steps had another loss than plain torch's: then they do not train the same."""
    plain = next(s.first_loss for s in sampled if s.contender == PLAIN)
    return [
        f"{s.contender} at {size}, {tokens} tokens: its loss {s.first_loss:.4f} is not plain torch's {plain:.4f}"
        for s in sampled
        if not abs(s.first_loss - plain) <= SAME_LOSS * plain
    ]
