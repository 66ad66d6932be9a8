"""The names of presets: in which order they are listed, and which are nearest to one that is not there.

Invariant: names alone decide; nothing is read.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

FIRST = "quickstart"
"""Trains anywhere, in minutes, with nothing to fetch."""
_PARTS = re.compile(r"(\d+(?:\.\d+)?)([mbt](?![a-z]))?|([^\d]+)")
_SIZES = {"m": 1e6, "b": 1e9, "t": 1e12}


def place_of(name: str) -> tuple[bool, list[tuple[int, float, str]]]:
    """Where a preset stands among all: the first to try, then by family and size ("gpt2-124m" before "gpt2-1.5b")."""
    parts: list[tuple[int, float, str]] = []
    for number, unit, text in _PARTS.findall(name.lower()):
        parts.append((0, float(number) * _SIZES.get(unit, 1.0), unit) if number else (1, 0.0, text))
    return name != FIRST, [*parts, (0, 0.0, name)]


def near_names(name: str, names: Iterable[str]) -> list[str]:
    """Those of `names` that `name` may have meant, the likeliest first; at most three."""
    return difflib.get_close_matches(name.lower(), sorted(names), n=3, cutoff=0.5)


def did_you_mean(near: list[str]) -> str:
    """A half sentence with the names of `near`, of which there is one at least."""
    quoted = " or ".join(f'"{known}"' for known in near)
    return f"did you mean {quoted}? (`workbench presets` lists them)"
