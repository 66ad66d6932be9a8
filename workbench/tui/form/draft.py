"""A preset while it is edited: its text, the values that were changed, and what is wrong with them. No textual.

Invariant: `toml()` is the text it came from with exactly the changed values in it, comments and order kept.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Iterator
from typing import Any

from workbench.config import DocumentedField, RunConfig, fields, parse_config
from workbench.config.schema import TABLES
from workbench.errors import ConfigurationError
from workbench.presets import edited_preset
from workbench.tui.form.checking import Checked, FieldProblem, check
from workbench.tui.form.values import UnreadableError, kind_of, typed

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # type: ignore[import-not-found, unused-ignore]

FIELDS: dict[str, DocumentedField] = {field.name: field for field in fields()}
"""Every field by its dotted name, in a preset's order."""


class Draft:
    """One preset being edited. `name` stands for its file in messages.

    `unreadable`: why the text is no TOML; then it can only be edited as a text. `preset`: the text that a field is
    reset to, the same as `text` where it is not given.
    """

    def __init__(self, text: str, name: str, preset: str | None = None) -> None:
        self.name = name
        self.text = text
        self.unreadable = ""
        self._written = self._parsed(text)
        self._preset = self._written if preset is None else self._parsed(preset, quietly=True)
        self._values = copy.deepcopy(self._written)
        self._unread: dict[str, tuple[str, str]] = {}
        self._checked: Checked | None = None

    # Values

    def value(self, field: str) -> Any:
        """What the draft says of `field`; its default where it says nothing."""
        return _value_in(self._values, field)

    def preset_value(self, field: str) -> Any:
        """What the preset says of it."""
        return _value_in(self._preset, field)

    def values(self) -> dict[str, Any]:
        """A copy of all that it says, as a document's values."""
        return copy.deepcopy(self._values)

    def typed_text(self, field: str) -> str | None:
        """What was typed where that is no value; else None."""
        return self._unread[field][0] if field in self._unread else None

    def type(self, field: str, text: str) -> None:
        """Take what was typed into the input of `field`."""
        try:
            value = typed(text, kind_of(FIELDS[field]))
        except UnreadableError as error:
            self._unread[field] = text, str(error)
            self._checked = None
        else:
            self.set(field, value)

    def set(self, field: str, value: Any) -> None:
        """Give `field` a value; where that is its default and the text does not name it, the text stays without it."""
        self._unread.pop(field, None)
        self._checked = None
        if _same(value, FIELDS[field].default) and not _is_in(self._written, field):
            self._take_away(field)
            return
        table, key = _split(field)
        inner = self._values
        if table:
            if not isinstance(self._values.get(table), dict):
                self._values[table] = {}
            inner = self._values[table]
        inner[key] = value

    def reset(self, field: str) -> None:
        """Give `field` what the preset says of it."""
        if _is_in(self._preset, field):
            self.set(field, copy.deepcopy(self.preset_value(field)))
        else:
            self._unread.pop(field, None)
            self._checked = None
            self._take_away(field)

    def is_changed(self, field: str) -> bool:
        """Whether the draft and the preset say something else of `field`."""
        return field in self._unread or not _same(self.value(field), self.preset_value(field))

    @property
    def changed(self) -> tuple[str, ...]:
        """The fields that are changed, in a preset's order."""
        return tuple(field for field in FIELDS if self.is_changed(field))

    # What is wrong

    def check(self) -> Checked:
        """The configuration, or what is wrong with it."""
        if self._checked is None:
            config, problems = check(self._values)
            unread = [
                FieldProblem(
                    _split(field)[0], field, f"{why}; must be {FIELDS[field].must_be}", _split(field)
                )
                for field, (_, why) in self._unread.items()
            ]
            problems = (*unread, *(p for p in problems if p.field not in self._unread))
            if self.unreadable:
                problems = (FieldProblem("", "", self.unreadable, ("",)),)
            self._checked = Checked(None if problems else config, problems)
        return self._checked

    @property
    def config(self) -> RunConfig | None:
        """What the draft says; None while there are problems."""
        return self.check().config

    def drop_unknown(self) -> int:
        """Take away every key and table that no configuration has; how many there were."""
        unknown = [
            problem.path for problem in self.check().problems if problem.path[0] and problem.is_unknown
        ]
        for path in unknown:
            inner = self._values
            for part in path[:-1]:
                inner = inner[str(part)]
            inner.pop(str(path[-1]), None)
        self._checked = None
        return len(unknown)

    # Text

    def toml(self) -> str:
        """The preset with the changes, its comments kept."""
        return self.text if self.unreadable else edited_preset(self.text, dict(self._edits()))

    def _edits(self) -> Iterator[tuple[str, Any]]:
        """What differs from the text, by dotted name; None: taken away."""
        for name in dict.fromkeys((*self._written, *self._values)):
            old, new = self._written.get(name), self._values.get(name)
            if name in TABLES and isinstance(new, dict):
                before = old if isinstance(old, dict) else {}
                for key in dict.fromkeys((*before, *new)):
                    if key not in new or key not in before or not _same(before[key], new[key]):
                        yield f"{name}.{key}", new.get(key)
            elif not _same(old, new):
                yield name, new

    def _take_away(self, field: str) -> None:
        table, key = _split(field)
        inner = self._values.get(table) if table else self._values
        if isinstance(inner, dict):
            inner.pop(key, None)
            if table and not inner and table not in self._written:
                del self._values[table]

    def _parsed(self, text: str, *, quietly: bool = False) -> dict[str, Any]:
        try:
            values: dict[str, Any] = tomllib.loads(text)
        except (ValueError, RecursionError) as error:
            if not quietly:
                self.unreadable = str(error)
                try:
                    parse_config(text, self.name)
                except ConfigurationError as said:
                    self.unreadable = str(said)
            return {}
        return values


def _split(field: str) -> tuple[str, str]:
    table, _, key = field.rpartition(".")
    return table, key


def _is_in(values: dict[str, Any], field: str) -> bool:
    table, key = _split(field)
    inner = values.get(table) if table else values
    return isinstance(inner, dict) and key in inner


def _value_in(values: dict[str, Any], field: str) -> Any:
    table, key = _split(field)
    if _is_in(values, field):
        return values[table][key] if table else values[key]
    return FIELDS[field].default


def _same(one: Any, other: Any) -> bool:
    """Whether two values are the same in TOML: 1 and true are not, an array and a tuple are."""
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        return len(one) == len(other) and all(map(_same, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return list(one) == list(other) and all(_same(one[key], other[key]) for key in one)
    return isinstance(one, bool) == isinstance(other, bool) and bool(one == other)
