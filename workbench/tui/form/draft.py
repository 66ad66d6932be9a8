"""A preset while it is edited: its text, the changed values, and their problems. Imports no textual.

Invariant: `toml()` is the original text with exactly the changed values in it; comments and order are kept.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

from workbench.config import RunConfig, parse_config
from workbench.config.schema import TABLES
from workbench.errors import ConfigurationError
from workbench.presets import edited_preset
from workbench.system.foreign import parse_toml
from workbench.tui.form.fields import FIELDS, UnreadableError, kind_of, parse_text
from workbench.tui.form.problems import Checked, FieldProblem, check


class Draft:
    """One preset being edited. `name` stands for its file in messages.

    `unreadable` is the error of a text that is not TOML, which can only be edited as a text. `preset` is the text that
    fields are reset to; `text` where it is not given.
    """

    def __init__(self, text: str, name: str, preset: str | None = None) -> None:
        self.name = name
        self.text = text
        self.unreadable = ""
        self._written = self._parse(text)
        self._preset = self._written if preset is None else self._parse(preset, quietly=True)
        self._values = copy.deepcopy(self._written)
        self._unread: dict[str, tuple[str, str]] = {}
        """By field: typed text that is no value, and why."""
        self._checked: Checked | None = None

    # Values

    def value(self, field: str) -> Any:
        """Return the value of `field`; its default where the draft does not have it."""
        return _value_in(self._values, field)

    def preset_value(self, field: str) -> Any:
        """Return the value that the preset has."""
        return _value_in(self._preset, field)

    def values(self) -> dict[str, Any]:
        """Return a copy of all values, as those of a document."""
        return copy.deepcopy(self._values)

    def typed_text(self, field: str) -> str | None:
        """Return the text that was typed where it is no value, else None."""
        return self._unread[field][0] if field in self._unread else None

    def type(self, field: str, text: str) -> None:
        """Set `field` from the text of its input."""
        try:
            value = parse_text(text, kind_of(FIELDS[field]))
        except UnreadableError as error:
            self._unread[field] = text, str(error)
            self._checked = None
        else:
            self.set(field, value)

    def set(self, field: str, value: Any) -> None:
        """Set `field`; a default that the text does not name is left out of the text."""
        self._unread.pop(field, None)
        self._checked = None
        if _same(value, FIELDS[field].default) and not _is_in(self._written, field):
            self._remove(field)
            return
        table, key = _split(field)
        if table and not isinstance(self._values.get(table), dict):
            self._values[table] = {}
        (self._values[table] if table else self._values)[key] = value

    def reset(self, field: str) -> None:
        """Set `field` to the value of the preset."""
        if _is_in(self._preset, field):
            self.set(field, copy.deepcopy(self.preset_value(field)))
        else:
            self._unread.pop(field, None)
            self._checked = None
            self._remove(field)

    def is_changed(self, field: str) -> bool:
        """Return whether the value differs from the preset's."""
        return field in self._unread or not _same(self.value(field), self.preset_value(field))

    @property
    def changed(self) -> tuple[str, ...]:
        """The changed fields, in the order of a preset."""
        return tuple(field for field in FIELDS if self.is_changed(field))

    # Problems

    def check(self) -> Checked:
        """Return the configuration, or its problems."""
        if self._checked is None:
            config, problems = check(self._values)
            unread = [
                FieldProblem(
                    _split(field)[0], field, f"{why}; must be {FIELDS[field].must_be}", _split(field)
                )
                for field, (_, why) in self._unread.items()
            ]
            problems = (*unread, *(problem for problem in problems if problem.field not in self._unread))
            if self.unreadable:
                problems = (FieldProblem("", "", self.unreadable, ("",)),)
            self._checked = Checked(None if problems else config, problems)
        return self._checked

    @property
    def config(self) -> RunConfig | None:
        """The configuration; None while there are problems."""
        return self.check().config

    @property
    def has_unknown(self) -> bool:
        """True where there are keys or tables that no configuration has."""
        return any(problem.is_unknown for problem in self.check().problems)

    def drop_unknown(self) -> int:
        """Remove every key and table that no configuration has; return how many there were."""
        unknown = [problem.path for problem in self.check().problems if problem.is_unknown]
        for path in unknown:
            inner = self._values
            for part in path[:-1]:
                inner = inner[str(part)]
            inner.pop(str(path[-1]), None)
        self._checked = None
        return len(unknown)

    # Text

    def toml(self) -> str:
        """Return the text with the changes in it."""
        return self.text if self.unreadable else edited_preset(self.text, dict(self._edits()))

    def _edits(self) -> Iterator[tuple[str, Any]]:
        """Yield the differences from the text by dotted name; None removes one."""
        for name in dict.fromkeys((*self._written, *self._values)):
            old, new = self._written.get(name), self._values.get(name)
            if name in TABLES and isinstance(new, dict):
                before = old if isinstance(old, dict) else {}
                for key in dict.fromkeys((*before, *new)):
                    if key not in new or key not in before or not _same(before[key], new[key]):
                        yield f"{name}.{key}", new.get(key)
            elif not _same(old, new):
                yield name, new

    def _remove(self, field: str) -> None:
        table, key = _split(field)
        inner = self._values.get(table) if table else self._values
        if isinstance(inner, dict):
            inner.pop(key, None)
            if table and not inner and table not in self._written:
                del self._values[table]

    def _parse(self, text: str, *, quietly: bool = False) -> dict[str, Any]:
        try:
            values: dict[str, Any] = parse_toml(text)
            return values
        except ValueError as error:
            if not quietly:
                self.unreadable = str(error)
                try:
                    parse_config(text, self.name)
                except ConfigurationError as refusal:
                    self.unreadable = str(refusal)
            return {}


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
    """Return whether two values are the same in TOML: 1 and true are not, an array and a tuple are."""
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        return len(one) == len(other) and all(map(_same, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return list(one) == list(other) and all(_same(one[key], other[key]) for key in one)
    return isinstance(one, bool) == isinstance(other, bool) and bool(one == other)
