"""`--fit`: the fastest configuration that fits and trains the same model; where none does, the nearest and what would.

Searched are the placement, the state format, activation checkpointing, where activations wait, how the step's
sequences are cut into micro-batches, and the 16-bit format that suits the GPU. What changes results (state format,
precision) is said beside the change, and is taken only where it makes a step shorter by `REAL_GAIN`, or where nothing
else fits.

Invariant: what comes out breaks no rule of the configuration, has the same sequences a step, and every field that
differs is named.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from workbench.config import RunConfig, fields
from workbench.config.rules import CONTRADICTIONS
from workbench.errors import ConfigurationError
from workbench.formatting import gib
from workbench.layout import MOMENTS, StateFormat
from workbench.plan.planner import FRACTIONS, Plan, Planner, check_positions, placed

FIELDS = (
    "offload.weights",
    "offload.state",
    "offload.device_fraction",
    "offload.state_format",
    "offload.activations",
    "train.activation_checkpointing",
    "train.micro_batch_size",
    "train.gradient_accumulation",
    "parallel.gpus",
    "train.precision",
)
"""The fields that a fit may change."""
CHANGE_RESULTS = ("offload.state_format", "train.precision")
REAL_GAIN = 0.03
"""Of a step's time, what a field of `CHANGE_RESULTS` has to save."""
MOST_SPLITS = 16
FEWER_SEQUENCES = (
    "changes results: fewer sequences make a step, unless train.gradient_accumulation rises as much"
)
LARGEST = {field.name: int(field.maximum) for field in fields() if field.maximum is not None}
"""The allowed values, by field."""


@dataclass(frozen=True)
class Change:
    """A field that is different; `note` says where that changes what is trained."""

    field: str
    before: Any
    after: Any
    note: str = ""


@dataclass(frozen=True)
class Fit:
    """The outcome of a search. `plan`: of the fastest that fits, else of the nearest.

    `advice`: sentences about other ways. `tried`: the number of configurations that were planned.
    """

    plan: Plan
    changes: tuple[Change, ...]
    advice: tuple[str, ...]
    tried: int

    @property
    def fits(self) -> bool:
        return self.plan.fits


def fit(planner: Planner, config: RunConfig, keep: frozenset[str] = frozenset()) -> Fit:
    """Search around `config` on the planner's machine; fields of `keep` stay as they are.

    Raises:
        ConfigurationError: a field of `keep` cannot be kept (see `check_keep`), the machine has no such device,
            sequences are longer than the model's positions, or nothing is left to try.
    """
    check_keep(config, keep)
    planner.machine.check_device(config)
    check_positions(config, planner.model_profile)
    own = config.offload.state_format
    formats = (own, *(f for f in MOMENTS if f != own))
    tried = [
        planner.plan_fixed(variant, timed=False)
        for counted in _with_gpus(planner, config)
        for precision in (config.train.precision, *_other_precisions(planner, config))
        for state_format in formats
        for variant in _variants(planner, with_field(counted, "train.precision", precision), state_format)
        if _keeps(config, variant, keep)
    ]
    if not tried:
        raise ConfigurationError(
            f"--keep {', '.join(sorted(keep))}: no configuration with these values can run here"
        )
    fitting = [p for p in tried if p.fits]
    if fitting:
        best = _fastest(planner, config, fitting)
        return Fit(best, changes(config, best.config), _as_it_is(planner, config, best, fitting), len(tried))
    nearest = min(tried, key=lambda p: (p.memory.missing_bytes, len(changes(config, p.config))))
    nearest = planner.plan_fixed(nearest.config)
    return Fit(nearest, changes(config, nearest.config), _hardware(planner, config, keep, tried), len(tried))


def check_keep(config: RunConfig, keep: frozenset[str]) -> None:
    """Refuse to keep what a search does not change, or what is left to it.

    Raises:
        ConfigurationError: a field of `keep` is none of `FIELDS`, or "auto".
    """
    for field in sorted(keep):
        if field not in FIELDS:
            near = difflib.get_close_matches(field, FIELDS, n=1)
            raise ConfigurationError(
                f"--keep {field}: a search does not change it; "
                + (f"did you mean {near[0]}?" if near else f"it changes {', '.join(FIELDS)}")
            )
        if get_field(config, field) == "auto" and field != "train.precision":
            raise ConfigurationError(
                f'--keep {field}: it is "auto", which a search chooses; give it a value with --set {field}=VALUE'
            )


def remedies(planner: Planner, config: RunConfig) -> list[str]:
    """Return single changes with which `config`, whose placement is chosen, would fit.

    Those that change results, which is said, only where none of the others is enough.
    """
    found: dict[bool, list[str]] = {False: [], True: []}
    for field, values in _single_changes(planner, config):
        for value in values:
            variant = with_field(config, field, value)
            if _broken(variant) or not planner.machine.computes(variant):
                continue
            if planner.plan_fixed(variant, timed=False).fits:
                note = FEWER_SEQUENCES if field == "train.micro_batch_size" else _note(field, variant)
                found[bool(note)].append(f"{field} = {_toml(value)}{f' ({note})' if note else ''}")
                break
    return found[False] or found[True]


def why_not(plan: Plan) -> list[str]:
    """Return a sentence for each tier that lacks something: the largest of its needs."""
    sentences = []
    kept = plan.config.offload.state_format
    for tier in plan.memory.tiers:
        if tier.fits:
            continue
        rows = sorted(tier.needs.items(), key=lambda row: -row[1])[:3]
        largest = ", ".join(f"{name} {gib(size)}" for name, size in rows)
        state = sum(tier.needs.get(name, 0) for name in ("master weights", "exp_avg and exp_avg_sq"))
        of_state = f"; the state, kept {kept}, is {gib(state)} of it" if state > tier.needed_bytes / 3 else ""
        sentences.append(
            f"{tier.tier}: {gib(tier.needed_bytes)} are needed and {gib(tier.free_bytes)} are free: "
            f"{largest}{of_state}"
        )
    return sentences


def changes(before: RunConfig, after: RunConfig) -> tuple[Change, ...]:
    """Return the fields that differ, of those that a fit may change."""
    found = []
    for field in FIELDS:
        old, new = get_field(before, field), get_field(after, field)
        if old != new:
            found.append(Change(field, old, new, _note(field, after)))
    return tuple(found)


def get_field(config: RunConfig, field: str) -> Any:
    table, key = field.split(".")
    return getattr(getattr(config, table), key)


def _keeps(config: RunConfig, variant: RunConfig, keep: frozenset[str]) -> bool:
    return all(get_field(variant, field) == get_field(config, field) for field in keep)


def with_field(config: RunConfig, field: str, value: Any) -> RunConfig:
    table, key = field.split(".")
    return config.model_copy(update={table: getattr(config, table).model_copy(update={key: value})})


def _note(field: str, after: RunConfig) -> str:
    if field == "parallel.gpus":
        return "the same sequences make a step"
    if field == "offload.state_format":
        return "changes results: the optimizer's moments are rounded differently"
    if field == "offload.device_fraction" and after.offload.state_format != "exact":
        return "changes results: the state that stays on the device is kept exact"
    if field == "train.precision":
        precision = after.train.precision
        scaled = "is scaled" if precision == "fp16" else "is not scaled"
        return f"changes results: weights and activations are {precision}, and the loss {scaled}"
    if field == "train.micro_batch_size":
        return "the same sequences make a step; sums are rounded in another order"
    return ""


# The search


def _variants(planner: Planner, config: RunConfig, state_format: StateFormat) -> Iterator[RunConfig]:
    """Yield every configuration that may be tried with this format, the given one's own values first."""
    sequences = config.train.micro_batch_size * config.train.gradient_accumulation
    own_checkpointing = config.train.activation_checkpointing
    places = ["device"] if planner.machine.shared_memory else ["device", "host"]
    for checkpointing in (own_checkpointing, not own_checkpointing):
        for activations in places:
            for size in _splits(sequences, config.train.micro_batch_size):
                variant = config
                for field, value in (
                    ("offload.state_format", state_format),
                    ("train.activation_checkpointing", checkpointing),
                    ("offload.activations", activations),
                    ("train.micro_batch_size", size),
                    ("train.gradient_accumulation", sequences // size),
                ):
                    variant = with_field(variant, field, value)
                yield from (
                    v for v in _placed(planner, variant) if not _broken(v) and planner.machine.computes(v)
                )


def _with_gpus(planner: Planner, config: RunConfig) -> Iterator[RunConfig]:
    """Yield `config`, and where the number of GPUs is "auto", with fewer of them and as many sequences a step."""
    if config.parallel.gpus != "auto":
        yield config
        return
    most, _ = planner.ranks(config)
    micro_batches = most * config.train.gradient_accumulation
    for gpus in range(most, 0, -1):
        if micro_batches % gpus == 0 and micro_batches // gpus <= LARGEST["train.gradient_accumulation"]:
            counted = with_field(config, "parallel.gpus", gpus)
            yield with_field(counted, "train.gradient_accumulation", micro_batches // gpus)


def _other_precisions(planner: Planner, config: RunConfig) -> list[str]:
    """Return the 16-bit format that suits the GPU, where `config` asks for another precision.

    That is fp16 without bf16, and bf16 instead of fp16, which keeps its master weights beside its own.
    """
    machine, given = planner.machine, config.train.precision
    if machine.shared_memory:
        return []
    if machine.has_bfloat16:
        return ["bf16"] if given == "fp16" else []
    return ["fp16"] if given in ("bf16", "fp32") else []


def _splits(sequences: int, own: int) -> list[int]:
    """Return the micro-batch sizes that `sequences` a step may be cut into, `own` first, then the largest.

    Where there are more than `MOST_SPLITS`, only some, from the smallest to the largest.
    """
    most_at_once, most_micro_batches = (
        LARGEST[f"train.{n}"] for n in ("micro_batch_size", "gradient_accumulation")
    )
    low = [n for n in range(1, math.isqrt(sequences) + 1) if sequences % n == 0]
    sizes = sorted({*low, *(sequences // n for n in low)}, reverse=True)
    sizes = [n for n in sizes if n <= most_at_once and sequences // n <= most_micro_batches]
    if len(sizes) > MOST_SPLITS:
        last = len(sizes) - 1
        sizes = [sizes[round(place * last / (MOST_SPLITS - 1))] for place in range(MOST_SPLITS)]
    return [own, *(n for n in sizes if n != own)]


def _placed(planner: Planner, config: RunConfig) -> Iterator[RunConfig]:
    own = "auto" not in (config.offload.weights, config.offload.state)
    if own:
        yield config
    open_config = with_field(with_field(config, "offload.weights", "auto"), "offload.state", "auto")
    for variant in placed(with_field(open_config, "offload.device_fraction", 0.0), planner.machine):
        # A share on the device is kept exact: with another format that would change results once more.
        partial = 0 < variant.offload.device_fraction < 1
        if (own and variant == config) or (partial and config.offload.state_format != "exact"):
            continue
        yield variant


def _broken(config: RunConfig) -> bool:
    return any(rule.broken(config) for rule in CONTRADICTIONS)


def _fastest(planner: Planner, config: RunConfig, fitting: list[Plan]) -> Plan:
    """Return the fastest, of equals the one with the fewest changes; without a measured machine the first, as usual.

    One more field of `CHANGE_RESULTS` is changed only for `REAL_GAIN`.
    """
    timed = [planner.plan_fixed(p.config) for p in fitting]
    known = [(p.time.step_s, p) for p in timed if p.time is not None]
    if not known:
        return timed[0]
    best: tuple[float, Plan] | None = None
    for count in range(len(CHANGE_RESULTS) + 1):
        alike = [each for each in known if _results_changed(config, each[1].config) == count]
        if alike:
            fastest = min(alike, key=lambda each: (each[0], len(changes(config, each[1].config))))
            if best is None or fastest[0] <= (1 - REAL_GAIN) * best[0]:
                best = fastest
    assert best is not None, "each of them has some count"
    return best[1]


def _results_changed(before: RunConfig, after: RunConfig) -> int:
    return sum(get_field(before, field) != get_field(after, field) for field in CHANGE_RESULTS)


def _as_it_is(planner: Planner, config: RunConfig, best: Plan, fitting: list[Plan]) -> tuple[str, ...]:
    """Return a sentence for each field of `CHANGE_RESULTS` that `best` changes: what it saves, or that nothing fits."""
    sentences = []
    for field in CHANGE_RESULTS:
        own = get_field(config, field)
        if get_field(best.config, field) == own:
            continue
        same = [p for p in fitting if get_field(p.config, field) == own]
        if not same:
            sentences.append(f'with {field} = "{own}" nothing fits')
            continue
        kept = _fastest(planner, config, same)
        if kept.time is not None and best.time is not None:
            sentences.append(
                f'with {field} = "{own}" the fastest that fits takes {kept.time.step_s:,.3g} s a step instead of '
                f"{best.time.step_s:,.3g} s: {_in_words(kept.config, config)} (--keep {field} stays with it)"
            )
    return tuple(sentences)


# Where nothing fits


def _hardware(
    planner: Planner, config: RunConfig, keep: frozenset[str], tried: list[Plan]
) -> tuple[str, ...]:
    """Return sentences about more of one tier, or a disk, that would make something fit."""
    sentences = []
    least: dict[str, tuple[int, Plan]] = {}
    for plan in tried:
        short = [tier for tier in plan.memory.tiers if not tier.fits]
        if len(short) == 1:
            tier = short[0]
            if tier.tier not in least or tier.needed_bytes < least[tier.tier][0]:
                least[tier.tier] = tier.needed_bytes, plan
    for name, (needed, plan) in least.items():
        free = next(tier.free_bytes for tier in plan.memory.tiers if tier.tier == name)
        sentences.append(
            f"it would fit with {gib(needed)} of {name} free (there are {gib(free)}), "
            f"with {_in_words(plan.config, config)}"
        )
    if not config.offload.disk_path:
        sentences += _with_a_disk(planner, config, keep)
    if not sentences and tried:
        plan = min(tried, key=lambda p: p.memory.missing_bytes)
        sentences.append(
            f"the nearest, {_in_words(plan.config, config)}, lacks {plan.memory.lacking} together"
        )
    return tuple(sentences)


def _with_a_disk(planner: Planner, config: RunConfig, keep: frozenset[str]) -> list[str]:
    """Return a sentence about a folder for the disk tier, where that would help."""
    with_disk = with_field(
        with_field(config, "offload.disk_path", "a folder on a fast disk"), "offload.overlap", "exact"
    )
    with_disk = with_field(with_disk, "train.activation_checkpointing", True)
    for state_format in MOMENTS:
        for variant in _variants(planner, with_disk, state_format):
            on_disk = "disk" in (variant.offload.weights, variant.offload.state)
            if on_disk and _keeps(config, variant, keep):
                plan = planner.plan_fixed(variant, timed=False)
                short = [tier.tier for tier in plan.memory.tiers if not tier.fits]
                if not short or set(short) <= {"disk", "disk tier"}:
                    disk = sum(t.needed_bytes for t in plan.memory.tiers if t.tier in ("disk", "disk tier"))
                    return [
                        f"it would fit with offload.disk_path on a disk with {gib(disk)} free, "
                        f"as {_in_words(variant, config)}"
                    ]
    return []


def _single_changes(planner: Planner, config: RunConfig) -> Iterator[tuple[str, list[Any]]]:
    yield (
        "offload.state_format",
        ["half", "compact"] if config.offload.state_format == "exact" else ["compact"],
    )
    yield "train.precision", _other_precisions(planner, config)
    size = config.train.micro_batch_size
    smaller = []
    while size > 1:
        size //= 2
        smaller.append(size)
    yield "train.micro_batch_size", smaller
    yield "train.activation_checkpointing", [True]
    yield "offload.weights", ["host", "disk"]
    yield "offload.state", ["host", "disk"]
    if not planner.machine.shared_memory:
        yield "offload.activations", ["host"]
        yield "offload.device_fraction", [e / FRACTIONS for e in range(FRACTIONS - 1, 0, -1)]


def _in_words(config: RunConfig, given: RunConfig) -> str:
    """The placement, state format and micro-batch of `config`, and whatever else is not as in `given`."""
    always = ("offload.weights", "offload.state", "offload.state_format", "train.micro_batch_size")
    named = [
        field
        for field in (*FIELDS, "offload.overlap")
        if field in always or get_field(config, field) != get_field(given, field)
    ]
    return ", ".join(f"{field} = {_toml(get_field(config, field))}" for field in named)


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return (
        f'"{value}"' if isinstance(value, str) else f"{value:g}" if isinstance(value, float) else str(value)
    )
