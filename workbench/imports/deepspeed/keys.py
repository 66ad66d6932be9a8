"""The keys and sections that DeepSpeed has, and the verdict on every key of a file that no reader has judged."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from typing import Any

from workbench.imports.deepspeed import batch, log, optimizer, placement, precision, scheduler
from workbench.imports.deepspeed.known_keys import HARMFUL, MEANINGLESS
from workbench.imports.findings import Findings, Member
from workbench.imports.lenient_json import KeyPath

_READERS = (batch, precision, optimizer, scheduler, placement, log)

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


# The keys that no reader has judged

_COMMENTS = ("_", "//", "#", "$", "comment")
MOST_NEIGHBOURS_LOOKED_FOR = 20


def judge_leftovers(found: Findings) -> None:
    """Give a verdict to every key that has none yet; a section gets one only where it is judged as a whole."""
    looked_for = 0
    for path, member in found.members.items():
        around = next((path[:n] for n in range(1, len(path)) if path[:n] in found.verdicts), None)
        if path in found.verdicts:
            continue
        if around is not None:
            _judge_within(found, member, around)
        elif member.key in HARMFUL:
            _judge_harmful(found, member)
        elif (reason := why_meaningless(path)) is not None:
            if not _is_filled(member.value):
                found.judge(member, "meaningless here", reason)
        elif not is_known(path):
            looked_for += 1
            _judge_unknown(found, member, look=looked_for <= MOST_NEIGHBOURS_LOOKED_FOR)
        elif not _is_filled(member.value):
            idle = "it says nothing" if member.value == {} else "not worked out: what it goes with is refused"
            found.judge(member, "meaningless here", idle)


def _is_filled(value: Any) -> bool:
    return isinstance(value, Mapping) and bool(value)


def _judge_within(found: Findings, member: Member, around: KeyPath) -> None:
    """A key inside a section that is judged as a whole shares its verdict."""
    whole = found.verdicts[around]
    found.judge(member, whole.judgement, f"part of {whole.key}", within=whole.key)


def _judge_harmful(found: Findings, member: Member) -> None:
    harm = HARMFUL[member.key]
    value = member.value
    idle = _all_off(value) if isinstance(value, Mapping) else _is_one_of(value, harm.harmless)
    if idle:
        found.judge(member, "meaningless here", "it is off")
    else:
        found.refuse(member, harm.reason)


def _is_one_of(value: Any, harmless: tuple[Any, ...]) -> bool:
    return any(value is each or (isinstance(each, str) and value == each) for each in harmless)


def _all_off(section: Mapping[str, Any]) -> bool:
    """Whether a section says that nothing in it is enabled; an empty one does too."""
    enabled = list(_enabled(section))
    return not section or (bool(enabled) and not any(each not in (False, "auto") for each in enabled))


def _enabled(section: Mapping[str, Any]) -> Iterator[Any]:
    for key, value in section.items():
        if key == "enabled":
            yield value
        elif isinstance(value, Mapping):
            yield from _enabled(value)


def _judge_unknown(found: Findings, member: Member, look: bool) -> None:
    name, table = member.path[-1], member.path[:-1]
    if name.lower().startswith(_COMMENTS):
        found.judge(member, "meaningless here", "a note for readers")
        return
    homes = [key for key in sorted(DECIDING) if key.rpartition(".")[2] == name]
    if isinstance(member.value, Mapping) and any(decides(key) for key in member.value):
        found.refuse(member, "holds a configuration of its own; name a file that holds this alone")
        return
    near = nearest_key(name, table) if look else None
    if homes and not _is_filled(member.value):
        where = " or ".join(place(key.rpartition(".")[0]) for key in homes[:4])
        found.refuse(
            member,
            f"it does not belong {place('.'.join(table))} and would be passed over; it belongs {where}",
        )
    elif near is not None and changes_results(near):
        found.refuse(
            member,
            f'DeepSpeed has no such key {place(".".join(table))}; did you mean "{near.rpartition(".")[2]}"?',
        )
    else:
        hint = f'; did you mean "{near.rpartition(".")[2]}"?' if near else ""
        reason = f"neither DeepSpeed nor Workbench has such a key {place('.'.join(table))}, so it is left out{hint}"
        found.judge(member, "unknown", reason)
