"""Every family of models, placement, overlap and option trains what plain torch trains.

The normal suite runs a selection of three families in which every two values meet, and each other family once;
`-m slow` runs the whole product. `exact` has the bits of `serial` in the same placement, and
`delayed` has its own bits again under another timing.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from families import FAMILIES, OVERLAPS, PLACEMENTS, Placement, make
from plain_torch import assert_same_bits, assert_trains_the_same, counted_tokens, train_engine, train_plain
from small_models import SeparateMemory, batches
from torch import Tensor

from workbench.engine.devices.device import CpuDevice, Device


def pairs_of(row: Mapping[str, Any]) -> set[tuple[str, Any, str, Any]]:
    """Every two values that meet in a row, each with its factor's name, factors in order."""
    return {(a, row[a], b, row[b]) for a, b in itertools.combinations(row, 2)}


def cover_pairs(factors: Mapping[str, Sequence[Any]], seed: int = 0) -> list[dict[str, Any]]:
    """Rows of one value for each factor that cover all pairs; the same for the same seed.

    Greedy, as in AETG (Cohen and others, 1997): a row starts with a pair that is still missing, takes the other factors
    in a random order and for each the value that covers most; the best of some such candidates is kept.
    """
    chance = random.Random(seed)
    missing = {
        (a, x, b, y)
        for a, b in itertools.combinations(factors, 2)
        for x, y in itertools.product(factors[a], factors[b])
    }
    rows = []
    while missing:
        # Sets have no order of their own: without sorting, the rows would change with the hashes of strings.
        first = min(missing, key=str)
        candidates = [_candidate(factors, missing, first, chance) for _ in range(30)]
        best = max(candidates, key=lambda row: len(missing & pairs_of(row)))
        missing -= pairs_of(best)
        rows.append(best)
    return rows


def _candidate(
    factors: Mapping[str, Sequence[Any]],
    missing: set[tuple[str, Any, str, Any]],
    first: tuple[str, Any, str, Any],
    chance: random.Random,
) -> dict[str, Any]:
    chosen = {first[0]: first[1], first[2]: first[3]}
    order = [name for name in factors if name not in chosen]
    chance.shuffle(order)
    for name in order:
        values = list(factors[name])
        chance.shuffle(values)

        def gain(value: Any, name: str = name) -> int:
            row = {n: value if n == name else chosen[n] for n in factors if n == name or n in chosen}
            return len(missing & pairs_of(row))

        chosen[name] = max(values, key=gain)
    return {name: chosen[name] for name in factors}


FACTORS: dict[str, tuple[Any, ...]] = {
    "family": tuple(FAMILIES),
    "placement": PLACEMENTS,
    "overlap": OVERLAPS,
    "accumulation": (1, 3),
    "clipped": (False, True),
    "adapters": (False, True),
    "dropout": (0.0, 0.1),
    "memory": ("shared", "separate"),
}
FEW_FACTORS = {**FACTORS, "family": ("gpt2", "gemma", "mixtral")}
FEW = cover_pairs(FEW_FACTORS, seed=4)
OTHERS = [name for name in FAMILIES if name not in ("gpt2", "gemma", "mixtral")]
QUICK = [*FEW, *({**row, "family": name} for name, row in zip(OTHERS, FEW, strict=False))]
STEPS = 5
DELAY_WARMUP = 2
LENGTHS = (24, 9, 17)  # of the micro-batches of a step: each weighs by its tokens
LEARNING_RATES = (1e-3, 2e-3, 3e-3, 2e-3, 1e-3)


def steps_of(accumulation: int) -> list[list[Tensor]]:
    data = iter(batches(STEPS * accumulation))
    return [[next(data)[:, :length] for length in LENGTHS[:accumulation]] for _ in range(STEPS)]


def open_memory(memory: str, seed: int | None) -> Device:
    return CpuDevice() if memory == "shared" else SeparateMemory(seed, longest_s=0.001)


def check(row: dict[str, Any], folder: Path) -> None:
    """Train one row of the matrix by the engine and by torch, and compare."""
    placement: Placement = row["placement"]
    overlap, accumulation = row["overlap"], row["accumulation"]
    start = make(row["family"], row["dropout"], row["adapters"])
    data = steps_of(accumulation)
    common: dict[str, Any] = {"tokens": counted_tokens, "learning_rates": LEARNING_RATES}
    if row["clipped"]:
        # A part of the model's own norm: what is clipped at one number in one family is not in another.
        common["gradient_clipping"] = train_plain(start, data[:1]).norms[0] / 3
    options: dict[str, Any] = {
        **common,
        "weights": placement.weights,
        "state": placement.state,
        "gradient_accumulation": accumulation,
    }
    if placement.device_fraction:
        options["device_fraction"] = placement.device_fraction
    if overlap == "delayed":
        options["delay_warmup"] = DELAY_WARMUP

    def train(overlap: str, name: str, seed: int | None) -> Any:
        if "disk" in (placement.weights, placement.state):
            options["disk_path"] = folder / name
            options["disk_path"].mkdir()
        return train_engine(start, data, open_memory(row["memory"], seed), overlap=overlap, **options)

    if overlap == "delayed" and placement.weights == "disk":
        with pytest.raises(ValueError, match="'delayed' with weights = 'disk'"):
            train(overlap, "first", seed=1)
        return
    ours = train(overlap, "first", seed=1)
    reference = train_plain(
        start, data, delay_warmup=DELAY_WARMUP if overlap == "delayed" else None, **common
    )
    assert_trains_the_same(ours, reference, start)
    if overlap == "exact":
        assert_same_bits(ours, train("serial", "second", seed=None))
    elif overlap == "delayed":
        assert_same_bits(ours, train("delayed", "second", seed=2))


def label(row: dict[str, Any]) -> str:
    """A row in short: what is off is left out."""
    words = [row["family"], str(row["placement"]), row["overlap"], row["memory"]]
    words += ["accumulation"] * (row["accumulation"] > 1) + ["clipped"] * row["clipped"]
    words += ["adapters"] * row["adapters"] + ["dropout"] * bool(row["dropout"])
    return "-".join(words)


def test_every_two_values_of_the_matrix_meet_in_the_selection() -> None:
    wanted = {
        (a, x, b, y)
        for a, b in itertools.combinations(FEW_FACTORS, 2)
        for x, y in itertools.product(FEW_FACTORS[a], FEW_FACTORS[b])
    }
    assert set().union(*map(pairs_of, FEW)) == wanted
    assert len(FEW) <= 30


@pytest.mark.parametrize("row", QUICK, ids=label)
def test_a_quick_selection_of_the_matrix_trains_what_torch_trains(
    row: dict[str, Any], tmp_path: Path
) -> None:
    check(row, tmp_path)


OPTIONS = ("accumulation", "clipped", "adapters", "dropout", "memory")
CELLS = [
    dict(zip(("family", "placement", "overlap"), cell, strict=True))
    for cell in itertools.product(FAMILIES, PLACEMENTS, OVERLAPS)
]


@pytest.mark.slow
@pytest.mark.parametrize("cell", CELLS, ids=lambda cell: "-".join(map(str, cell.values())))
def test_the_whole_matrix_trains_what_torch_trains(cell: dict[str, Any], tmp_path: Path) -> None:
    for number, values in enumerate(itertools.product(*(FACTORS[name] for name in OPTIONS))):
        row = {**cell, **dict(zip(OPTIONS, values, strict=True))}
        print(label(row))  # shown when it fails: which of the options it was
        folder = tmp_path / str(number)
        folder.mkdir()
        check(row, folder)
