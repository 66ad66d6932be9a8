"""The findings of an import: a verdict for every key of the file, and the settings of the preset.

The readers of the sections write here and nowhere else. Every key gets one verdict; whoever judges again replaces it,
but a refusal stays, and a second one joins it. A value that Workbench's own field does not take is refused here, so
that no reader has to know the fields' ranges.

Invariant: what is refused does not keep the rest from being read, so that all mistakes are reported at once.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, Final, Literal, NamedTuple, get_args

from pydantic import ValidationError

from workbench.config.schema import TABLES, fields
from workbench.config.toml_text import LONGEST_VALUE_SHOWN
from workbench.imports.lenient_json import KeyPath
from workbench.system.terminal import on_one_line

Judgement = Literal["used", "mapped", "meaningless here", "unknown", "refused"]
JUDGEMENTS: tuple[Judgement, ...] = get_args(Judgement)
_LARGEST = 1e300


class Auto(Enum):
    """The value "auto", which the Hugging Face Trainer fills in."""

    AUTO = "auto"


AUTO: Final = Auto.AUTO


class Member(NamedTuple):
    """One key of the file with its value; `line` counts from 1."""

    path: KeyPath
    value: Any
    line: int

    @property
    def key(self) -> str:
        """The dotted name."""
        return ".".join(self.path)


@dataclass(frozen=True)
class Verdict:
    """The verdict on a key. It decides `fields` of the preset; `within` is the section that is judged as a whole."""

    key: str
    line: int
    value: Any
    judgement: Judgement
    reason: str
    fields: tuple[str, ...] = ()
    within: str = ""


class Assumed(NamedTuple):
    """Something that the file does not say, and what was taken for it: for `field` of the preset, if for one."""

    key: str
    reason: str
    field: str = ""


class Setting(NamedTuple):
    """A value of the preset; `why` says where it comes from."""

    value: Any
    why: str


DOCUMENTED = {field.name: field for field in fields()}


class Findings:
    """The keys of a file, by path, and what has been found about them.

    `asked`: the dotted names that readers looked for.
    """

    def __init__(self, values: Mapping[str, Any], lines: Mapping[KeyPath, int]) -> None:
        self.asked: set[str] = set()
        self.members: dict[KeyPath, Member] = {}
        self.verdicts: dict[KeyPath, Verdict] = {}
        self.settings: dict[str, Setting] = {}
        self.assumed: list[Assumed] = []
        self._add((), values, lines)

    def _add(self, at: KeyPath, values: Mapping[str, Any], lines: Mapping[KeyPath, int]) -> None:
        for key, value in values.items():
            path = (*at, key)
            self.members[path] = Member(path, value, lines[path])
            if isinstance(value, Mapping):
                self._add(path, value, lines)

    # Values of the file

    def get(self, key: str) -> Member | None:
        """Return the key of this dotted name; None where it is not there, or null, which means the same."""
        self.asked.add(key)
        member = self.members.get(tuple(key.split(".")))
        if member is not None and member.value is None:
            self.judge(member, "meaningless here", "null means that the key is absent")
            return None
        return member

    def has_section(self, key: str) -> bool:
        """Return True if the object of this name is there; anything else in its place is refused."""
        member = self.get(key)
        if member is None:
            return False
        if not isinstance(member.value, Mapping):
            self.refuse(member, f'must be an object, written "{member.path[-1]}": {{...}}')
            return False
        return True

    def inside(self, section: str) -> list[Member]:
        """Return the keys in the section of this dotted name."""
        at = tuple(section.split("."))
        return [member for path, member in self.members.items() if path[:-1] == at]

    def number(self, key: str) -> float | Auto | None:
        """Return a number, AUTO, or None where there is none; another kind of value is refused.

        A number in quotes is refused too, and returned all the same, so that what depends on it can be checked.
        """
        member = self.get(key)
        if member is None or member.value == "auto":
            return None if member is None else AUTO
        value = member.value
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) < _LARGEST:
            quoted = _number_in(value) if isinstance(value, str) else None
            self.refuse(member, "must be a number" + ("" if quoted is None else ", without quotes"))
            return quoted
        return value

    def whole(self, key: str) -> int | Auto | None:
        """Return a whole number (2e8 is one), AUTO, or None where there is none."""
        value = self.number(key)
        if value is None or isinstance(value, Auto):
            return value
        if value != int(value):
            self.refuse(key, "must be a whole number")
            return None
        return int(value)

    def switch(self, key: str) -> bool | Auto | None:
        """Return True or False, AUTO, or None where there is none."""
        member = self.get(key)
        if member is None:
            return None
        value = member.value.lower() if isinstance(member.value, str) else member.value
        if value == "auto":
            return AUTO
        if value in ("true", "false"):
            return bool(value == "true")
        if not isinstance(value, bool):
            self.refuse(member, "must be true or false")
            return None
        return value

    def word(self, key: str) -> str | None:
        """Return a text, or None where there is none."""
        member = self.get(key)
        if member is not None and not isinstance(member.value, str):
            self.refuse(member, "must be a string in quotes")
            return None
        return None if member is None else member.value

    # Verdicts and settings

    def judge(
        self, key: str | Member, judgement: Judgement, reason: str, *decides: str, within: str = ""
    ) -> None:
        """Give the verdict on a key, if the file has it; `decides` are fields of the preset."""
        member = self.members.get(tuple(key.split("."))) if isinstance(key, str) else key
        if member is not None and not self.is_refused(member.key):
            self.verdicts[member.path] = Verdict(
                member.key, member.line, member.value, judgement, reason, decides, within
            )

    def refuse(self, key: str | Member, reason: str) -> None:
        """Refuse a key, which the file has: nothing is imported. A second reason joins the first."""
        path = tuple(key.split(".")) if isinstance(key, str) else key.path
        before = self.verdicts.get(path)
        if before is None or before.judgement != "refused":
            self.judge(key, "refused", reason)
        elif reason not in before.reason:
            self.verdicts[path] = replace(before, reason=f"{before.reason}; and {reason}")

    def is_refused(self, key: str) -> bool:
        verdict = self.verdicts.get(tuple(key.split(".")))
        return verdict is not None and verdict.judgement == "refused"

    def put(self, field: str, value: Any, key: str, reason: str, judgement: Judgement = "mapped") -> None:
        """Set a field of the preset from a key of the file, with its verdict: refused if the field does not take it."""
        member = self.members[tuple(key.split("."))]
        if not _takes(field, value):
            named = f" ({shown(value)})" if value != member.value else ""
            self.refuse(member, f"Workbench's {field}{named} must be {DOCUMENTED[field].must_be}")
            return
        before = self.verdicts.get(member.path)
        others = [] if before is None else [each for each in before.fields if each != field]
        self.judge(member, judgement, reason, *others, field)
        self.settings[field] = Setting(value, f"{member.key}, line {member.line}: {reason}")

    def fill(self, field: str, key: str, reason: str, value: Any = None) -> None:
        """Set a field that no key decides: to `value`, else to Workbench's own default."""
        taken = DOCUMENTED[field].default if value is None else value
        self.settings[field] = Setting(taken, f"{key}: {reason}")
        self.assumed.append(Assumed(key, f"{reason}: {field} = {shown(taken)}", field))

    def auto(self, field: str, key: str, reason: str = "Workbench's default", value: Any = None) -> None:
        """Set a field whose key says "auto"."""
        taken = DOCUMENTED[field].default if value is None else value
        becomes = 'stays "auto"' if taken == "auto" else f'"auto" becomes {shown(taken)}'
        self.put(field, taken, key, f"{becomes}, {reason}")

    def number_field(
        self,
        field: str,
        key: str,
        reason: str,
        *,
        default: float | None = None,
        default_reason: str = "DeepSpeed's default",
        auto: float | None = None,
        judgement: Judgement = "used",
    ) -> float | None:
        """Set a field that takes a key's number as it is, and return the number if the file has one.

        Without the key the field is `default` (None: it is not set); "auto" stands for `auto`, or, if that is None,
        for Workbench's own default.
        """
        is_whole = isinstance(DOCUMENTED[field].default, int)
        value = self.whole(key) if is_whole else self.number(key)
        if isinstance(value, Auto):
            self.auto(field, key, "Workbench's default" if auto is None else default_reason, auto)
        elif value is not None:
            value = value if is_whole else float(value)
            self.put(field, value, key, reason, judgement)
            return value
        elif default is not None and not self.is_refused(key):
            self.fill(field, key, default_reason, default)
        return None

    def assume(self, key: str, reason: str) -> None:
        """Note a value that was assumed because the file does not have it."""
        self.assumed.append(Assumed(key, reason))

    def refused(self) -> list[Verdict]:
        """Return the verdicts that stop the import, in the order of the file; a section counts once."""
        return [each for each in self.in_order() if each.judgement == "refused" and not each.within]

    def in_order(self) -> list[Verdict]:
        """Return all verdicts in the order of the file."""
        places = {path: (member.line, place) for place, (path, member) in enumerate(self.members.items())}
        return [self.verdicts[path] for path in sorted(self.verdicts, key=places.__getitem__)]


def shown(value: Any) -> str:
    """Return a value as JSON writes it, on one line and not too long."""
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) > 10**40:
        return "a number too large"
    text = on_one_line(json.dumps(value, ensure_ascii=False))
    if isinstance(value, float) and len(short := f"{value:g}") < len(text) and float(short) == value:
        return short
    return text if len(text) <= LONGEST_VALUE_SHOWN else text[: LONGEST_VALUE_SHOWN - 1] + "…"


def _takes(field: str, value: Any) -> bool:
    table, _, key = field.partition(".")
    try:
        TABLES[table].model_validate({key: value})
    except ValidationError:
        return False
    return True


def _number_in(text: str) -> int | float | None:
    """Return the number that a text is; None where it is none, or none that JSON could hold."""
    try:
        value = float(text)
    except ValueError:
        return None
    if not abs(value) < _LARGEST:
        return None
    return int(value) if value == int(value) else value
