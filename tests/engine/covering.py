"""Pairwise covering: few rows in which every two values of different factors meet at least once."""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping, Sequence
from typing import Any

CANDIDATES = 30


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
        candidates = [_candidate(factors, missing, first, chance) for _ in range(CANDIDATES)]
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
