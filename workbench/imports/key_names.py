"""Which keys and sections DeepSpeed has: those of the readers, and those of the tables in `known_keys`."""

from __future__ import annotations

from difflib import get_close_matches

from workbench.imports import batch, logging, optimizer, placement, precision, scheduler
from workbench.imports.forgiving_json import KeyPath
from workbench.imports.known_keys import HARMFUL, MEANINGLESS

_READERS = (batch, precision, optimizer, scheduler, placement, logging)

DECIDING: frozenset[str] = frozenset(key for reader in _READERS for key in reader.KEYS)
"""Keys that may decide a field of the preset."""

_ANYTHING_IN = frozenset(key.removesuffix(".*") for key in MEANINGLESS if key.endswith(".*"))
_EXACT = DECIDING | HARMFUL.keys() | {key for key in MEANINGLESS if not key.endswith(".*")}
LONGEST_NAME_LOOKED_FOR = 60
_SECTIONS = frozenset(
    ".".join(parts[:length])
    for key in (*_EXACT, *_ANYTHING_IN)
    for parts in [key.split(".")]
    for length in range(1, len(parts))
)


def is_known(path: KeyPath) -> bool:
    """Whether DeepSpeed has a key or a section of this path."""
    key = ".".join(path)
    within = (".".join(path[:length]) for length in range(1, len(path) + 1))
    return (
        key in _EXACT or key in _SECTIONS or any(name in _ANYTHING_IN or name in HARMFUL for name in within)
    )


def why_meaningless(path: KeyPath) -> str | None:
    """Why a key of this path means nothing here; None where the table does not say so."""
    key = ".".join(path)
    if key in MEANINGLESS:
        return MEANINGLESS[key]
    names = (".".join(path[:length]) for length in range(1, len(path) + 1))
    return next((MEANINGLESS[f"{name}.*"] for name in names if name in _ANYTHING_IN), None)


def decides(name: str) -> bool:
    """Whether a key or section of this name, at the top, may decide a field."""
    return any(key == name or key.startswith(f"{name}.") for key in DECIDING)


def nearest_key(name: str, table: KeyPath) -> str | None:
    """The dotted name of the key in this section that `name` was probably meant to be, if any."""
    if len(name) > LONGEST_NAME_LOOKED_FOR:
        return None
    prefix = ".".join((*table, ""))
    names = {
        key.removeprefix(prefix).split(".")[0]
        for key in (*_EXACT, *_SECTIONS, *_ANYTHING_IN)
        if key.startswith(prefix) and key != prefix
    }
    near = get_close_matches(name.lower(), sorted(names), n=1, cutoff=0.8)
    return prefix + near[0] if near else None


def place(section: str) -> str:
    """Where the keys of a section stand, in words; the empty one is the whole."""
    return f"in {section}" if section else "at the top"


def changes_results(key: str) -> bool:
    """Whether this key, or one in this section, may change what is computed."""
    return key in DECIDING or key in HARMFUL or key in _SECTIONS
