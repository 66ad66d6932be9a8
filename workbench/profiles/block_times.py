"""Measures the seconds of a model's pieces on this machine: one block of each kind, and all that is no block.

Run as a program it is the process that measures models for others; with `ship` it writes the model profiles that
shipped presets lack beside this file instead.

Times are taken at the run's own sizes, with weights that come from memory, on an idle device.

Invariant: each piece is timed by itself, never by a difference of two others, with its own code and its full width.
"""

from __future__ import annotations

import contextlib
import sys
import time
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from workbench.config import load_config
from workbench.engine.loss.chunked_loss import ChunkedLoss
from workbench.engine.precision import DTYPES
from workbench.errors import WorkbenchError
from workbench.formatting import GIB
from workbench.presets import shipped_folder
from workbench.profiles.block_costs import take_model_profile
from workbench.profiles.meta_model import (
    Call,
    capture,
    cut,
    first_blocks,
    hidden_of,
    materialise,
    meta_model,
    pass_blocks,
    quiet_transformers,
    seeded,
)
from workbench.profiles.model_profile import BlockKind, KindTimes, ModelProfile, ModelTimes, model_table
from workbench.profiles.obtain import model_profile_text, shipped_name
from workbench.system.child_process import Report, serve
from workbench.system.free_space import free_host_bytes

FEWEST_TOKENS = 16
LEAST_ROUNDS, MOST_ROUNDS = 3, 7
WORK_OF_A_ROUND = 5
"""Forwards that a round comes to: one without a graph, two with, and a backward of two."""
CACHE_BYTES = 128 << 20
"""More than caches hold."""
FOLDER = Path(__file__).parent / "models"
_SMALLEST = {
    "architecture": "gpt2",
    "config": {"n_layer": 1, "n_embd": 8, "n_head": 1, "n_positions": 32, "vocab_size": 16},
}
MATRIX = {"cpu": 1536, "cuda": 4096}


def measure_times(
    table: Mapping[str, Any],
    profile: ModelProfile,
    *,
    sequences: int,
    tokens: int,
    dtype: str,
    device: str = "cpu",
    budget_s: float = 30.0,
    fingerprint: str = "",
    report: Callable[[str], None] | None = None,
) -> ModelTimes:
    """Return the times of the model's pieces for a micro-batch of `sequences` x `tokens` computed in `dtype`.

    Where the fewest rounds of that would take more than `budget_s`, fewer sequences are taken, then fewer tokens; the
    result says how many. `dtype`: "float32", "bfloat16" or "float16". `fingerprint`: of this machine. The times are
    medians of several rounds.

    Raises:
        ConfigurationError: the table describes no model that can be built.
        WorkbenchError: one block of each kind does not fit in memory.
    """
    quiet_transformers()
    where, computed_in = torch.device(device), DTYPES[dtype]
    needed, free = room_needed(profile), free_host_bytes()
    if needed > free:
        raise WorkbenchError(
            f"the blocks of {profile.model} cannot be timed: that takes {needed / GIB:,.1f} GiB of host memory, "
            f"and {free / GIB:,.1f} GiB are free"
        )
    stopwatch = Stopwatch(where)
    matrix_flops_per_s = _matrix_speed(stopwatch, where, computed_in)
    affords = matrix_flops_per_s * budget_s / (LEAST_ROUNDS + 1)
    sequences, tokens = affordable(profile, sequences, tokens, affords)
    if report is not None:
        report(f"timing {sequences} x {tokens} tokens")
    names = first_blocks(profile)
    model = _real_model(table, profile, where, computed_in)
    with seeded():
        ids = torch.randint(0, profile.vocab_size, (sequences, tokens)).to(where)
        calls = capture(model, names, ids)
        loss = ChunkedLoss(model)
        if not profile.loss_in_chunks:
            loss.refusal = "the model profile says so"
        kept: dict[str, int] = {}
        began = time.perf_counter()
        for number in range(MOST_ROUNDS + 1):
            for name in names:
                _time_block(model.get_submodule(name), calls[name], computed_in, name, stopwatch, kept)
            _time_outer(model, loss, ids, stopwatch)
            if number == 0:
                stopwatch.reset()  # that was to warm up
            elif number >= LEAST_ROUNDS and time.perf_counter() - began > budget_s / 2:
                break
    return ModelTimes(
        fingerprint=fingerprint,
        sequences=sequences,
        tokens=tokens,
        dtype=dtype,
        kinds=tuple(
            KindTimes(
                forward_s=stopwatch.median(f"{name} forward"),
                graph_s=stopwatch.median(f"{name} graph"),
                again_s=stopwatch.median(f"{name} again"),
                backward_s=stopwatch.median(f"{name} backward"),
            )
            for name in names
        ),
        outer_forward_s=stopwatch.median("outer forward"),
        outer_backward_s=stopwatch.median("outer backward"),
        matrix_flops_per_s=matrix_flops_per_s,
    )


def room_needed(profile: ModelProfile) -> int:
    """Return the bytes of a cut model in fp32, and of the largest block's gradients and activations beside it."""
    names = [name for name, _ in profile.blocks]
    last = max((names.index(name) for name in first_blocks(profile)), default=-1)
    kept = sum(_parameters(profile.kinds[kind]) for _, kind in profile.blocks[: last + 1])
    largest = max((_parameters(kind) for kind in profile.kinds), default=0)
    return 4 * (kept + sum(p.numel for p in (*profile.before, *profile.after)) + 2 * largest)


def affordable(profile: ModelProfile, sequences: int, tokens: int, most_flops: float) -> tuple[int, int]:
    """Return (sequences, tokens) of a round of at most `most_flops`, where that can be: first fewer sequences."""
    while work_of(profile, sequences, tokens) > most_flops and sequences > 1:
        sequences -= max(1, sequences // 4)
    while work_of(profile, sequences, tokens) > most_flops and tokens > FEWEST_TOKENS:
        tokens = max(FEWEST_TOKENS, tokens // 2)
    return sequences, tokens


def work_of(profile: ModelProfile, sequences: int, tokens: int) -> float:
    """Return the floating-point operations of one round: every kind of block once, and the head."""
    blocks = sum(kind.flops.at(sequences, tokens) for kind in profile.kinds)
    head = 2.0 * sequences * tokens * profile.head_width * profile.vocab_size
    return WORK_OF_A_ROUND * (blocks + head)


def _real_model(
    table: Mapping[str, Any], profile: ModelProfile, device: torch.device, dtype: torch.dtype
) -> nn.Module:
    """Return the cut model with real weights; an adapter's stay fp32."""
    model = meta_model(table)
    cut(model, first_blocks(profile))
    materialise(model, blocks=True)
    for parameter in model.parameters():
        stays = profile.adapter and parameter.requires_grad
        parameter.data = parameter.data.to(device=device, dtype=parameter.dtype if stays else dtype)
    for module in model.modules():
        module._buffers.update({n: b.to(device) for n, b in module._buffers.items() if b is not None})
    return model


def _time_block(
    block: nn.Module, call: Call, dtype: torch.dtype, name: str, stopwatch: Stopwatch, kept: dict[str, int]
) -> None:
    """Time one call of a block; `kept`: the number of tensors that its graph keeps, filled in the first time."""
    hidden, args, kwargs = call.fresh(dtype)
    with torch.no_grad(), stopwatch.timed(f"{name} forward"):
        result = block(*args, **kwargs)
    del result
    hidden.requires_grad_()
    if name not in kept:
        kept[name] = _compute_again(block, args, kwargs, None)
    with stopwatch.timed(f"{name} graph"):
        result = block(*args, **kwargs)
    result = hidden_of(result, hidden)
    gradient = torch.ones_like(hidden)
    # In training too a backward comes right after what it reads has been computed, mostly again.
    with stopwatch.timed(f"{name} backward", cold=False):
        result.backward(gradient)
    # As in training: gradients have been taken away when the next ones come.
    block.zero_grad(set_to_none=True)
    del result
    with stopwatch.timed(f"{name} again"):
        _compute_again(block, args, kwargs, kept[name])


class _EnoughError(Exception):
    """All is there that the graph keeps."""


def _compute_again(block: nn.Module, args: Any, kwargs: Any, most: int | None) -> int:
    """Run a forward with a graph, as a checkpoint does it again: up to its last kept tensor, the one of number `most`.

    None: to its end. Returns how many it has kept.
    """
    kept = 0

    def keep(tensor: Tensor) -> Tensor:
        nonlocal kept
        kept += 1
        if kept == most:
            raise _EnoughError
        return tensor

    with contextlib.suppress(_EnoughError), saved_tensors_hooks(keep, lambda tensor: tensor):
        block(*args, **kwargs)
    return kept


def _time_outer(model: nn.Module, loss: ChunkedLoss, ids: Tensor, stopwatch: Stopwatch) -> None:
    """Time all but the blocks, which return what they are given."""
    with pass_blocks(model):
        with torch.no_grad():  # blocks run once, to show the form of what they return
            model(input_ids=ids[:1, :FEWEST_TOKENS], use_cache=False)
        with stopwatch.timed("outer forward"):
            value = loss(ids, ids, use_cache=False)
        with stopwatch.timed("outer backward", cold=False):
            value.backward()
    model.zero_grad(set_to_none=True)


def _parameters(kind: BlockKind) -> int:
    return sum(p.numel for p in kind.parameters)


class Stopwatch:
    """Seconds by name. What is timed begins and ends with nothing left to do on the device."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._seconds: dict[str, list[float]] = defaultdict(list)
        self._flushed = torch.zeros(CACHE_BYTES // 4, device=device)

    @contextlib.contextmanager
    def timed(self, name: str, *, cold: bool = True) -> Iterator[None]:
        """Add the seconds of the `with` block to `name`; `cold`: caches are flushed first."""
        if cold:
            self._flushed.add_(1)
        self._wait()
        began = time.perf_counter()
        yield
        self._wait()
        self._seconds[name].append(time.perf_counter() - began)

    def reset(self) -> None:
        self._seconds.clear()

    def median(self, name: str) -> float:
        return median(self._seconds[name])

    def _wait(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)


def _matrix_speed(stopwatch: Stopwatch, device: torch.device, dtype: torch.dtype) -> float:
    """Return the floating-point operations a second of a large product, two for a multiplication with its addition."""
    size = MATRIX.get(device.type, MATRIX["cpu"])
    left, right = (torch.randn((size, size), device=device).to(dtype) for _ in range(2))
    result = torch.mm(left, right)  # to warm up
    for _ in range(LEAST_ROUNDS):
        with stopwatch.timed("product"):
            torch.mm(left, right, out=result)
    return 2 * size**3 / stopwatch.median("product")


# The process that measures


def _warm_up() -> None:
    """Profile a tiny model: only then all is imported that others need."""
    with contextlib.suppress(Exception):  # the first real question reports what is wrong
        answer({"ask": "model_profile", "model": _SMALLEST}, lambda sentence: None)


def answer(question: Mapping[str, Any], report: Report) -> dict[str, Any]:
    """Return the model profile or the times that `question` asks for, as plain data."""
    warnings.simplefilter("ignore")
    if question["ask"] == "model_profile":
        return take_model_profile(question["model"], report).model_dump(mode="json")
    sizes = ("sequences", "tokens", "dtype", "device", "fingerprint", "budget_s")
    return measure_times(
        question["model"],
        ModelProfile.model_validate(question["model_profile"]),
        **{name: question[name] for name in sizes},
        report=report,
    ).model_dump(mode="json")


def shipped_tables() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the name and the [model] table of every shipped preset."""
    for path in sorted(shipped_folder().glob("*.toml")):
        yield path.stem, model_table(load_config(path))


def ship() -> None:
    """Write the model profiles that shipped presets lack, and remove those that no preset has.

    Raises:
        WorkbenchError: a block could not be run on this machine.
    """
    tables = dict(shipped_tables())
    for name, table in tables.items():
        path = FOLDER / shipped_name(table)
        if path.exists():
            continue
        print(name, file=sys.stderr)
        profile = take_model_profile(table)
        problem = next((kind.problem for kind in profile.kinds if kind.problem), None)
        if problem is not None:
            raise WorkbenchError(f"the model profile of preset {name} cannot be shipped from here: {problem}")
        path.write_text(model_profile_text(profile), encoding="utf-8")
    for old in {path.name for path in FOLDER.glob("*.json")} - set(map(shipped_name, tables.values())):
        (FOLDER / old).unlink()


if __name__ == "__main__":
    if sys.argv[1:] == ["ship"]:
        ship()
    else:
        serve(answer, _warm_up if sys.argv[1:] == ["warm"] else None)
