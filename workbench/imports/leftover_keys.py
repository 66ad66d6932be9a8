"""Every key that no reader has judged: what it means by the tables, or that nobody knows it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from workbench.imports.findings import Findings, Member
from workbench.imports.forgiving_json import KeyPath
from workbench.imports.key_names import (
    DECIDING,
    changes_results,
    decides,
    is_known,
    nearest_key,
    place,
    why_meaningless,
)
from workbench.imports.known_keys import HARMFUL

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
