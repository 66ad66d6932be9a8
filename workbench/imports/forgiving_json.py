"""Read JSON as people paste it: comments, commas too many or too few, braces that are missing, Python's words.

What is mended is told line by line in `Document.repairs`, and nothing is mended in silence. What can be read in more
than one way is not guessed at: that is one `ConfigurationError` with file, line, column and what was expected. The work
grows with the length of the text alone, and depth, keys and repairs are bounded.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, NoReturn

from workbench.config.problems import on_one_line
from workbench.errors import ConfigurationError
from workbench.imports.json_literals import (
    LONGEST_SHOWN,
    QUOTES,
    STARTS_A_VALUE,
    WORD,
    Literal,
    read_bare,
    read_string,
)

LONGEST_TEXT = 1 << 17
"""Characters; a configuration has a few thousand."""
DEEPEST = 32
MOST_KEYS = 1000
MOST_ITEMS = 10_000
"""Values in arrays, all together."""
MOST_REPAIRS = 100
MOST_COMMENTS = 1000

KeyPath = tuple[str, ...]


class Repair(NamedTuple):
    """What was mended; `line` counts from 1."""

    line: int
    what: str


@dataclass(frozen=True)
class Document:
    """An object as it was read: `lines` has the line of every key that is not inside an array, by its path."""

    values: dict[str, Any]
    lines: dict[KeyPath, int]
    repairs: tuple[Repair, ...]


def read_document(text: str, name: str) -> Document:
    """The object that `text` holds; `name` stands for the file in messages.

    Numbers become int or float, "null" None, an unquoted word a text. Of a key that is written twice the last one
    counts.

    Raises:
        ConfigurationError: it is no object, cannot be mended in one way only, or is far from any configuration.
    """
    if len(text) > LONGEST_TEXT:
        raise ConfigurationError(f"{on_one_line(name)}: is too large for a DeepSpeed configuration")
    # A comment ends where the line does, whatever system wrote it.
    reader = _Reader(text.replace("\r\n", "\n").replace("\r", "\n"), on_one_line(name))
    values = reader.read()
    return Document(values, reader.lines, tuple(sorted(reader.all_repairs())))


_BLANK = re.compile(r"[\s\ufeff\u200b]*")
_COMMENT = re.compile(r"//[^\n]*|#[^\n]*|/\*.*?\*/|```[^\n]*", re.DOTALL)
_OPENING = {"}": "{", "]": "["}


class _Reader:
    def __init__(self, text: str, name: str) -> None:
        self.text = text
        self.name = name
        self.at = 0
        self.lines: dict[KeyPath, int] = {}
        self.repairs: list[Repair] = []
        self._comments: list[tuple[int, int]] = []
        self._keys = 0
        self._items = 0
        self._open: list[str] = []
        self._starts = [found.end() for found in re.finditer("\n", text)]
        self._end = len(text.rstrip())

    def read(self) -> dict[str, Any]:
        values: dict[str, Any] = {}
        self._skip_blank()
        if self.at == len(self.text):
            raise ConfigurationError(f"{self.name}: is empty; a DeepSpeed configuration is a JSON object")
        if self._here() == "{":
            self.at += 1
            self._members(values, (), self.at - 1)
        elif self._key_is_here():
            self._mend("put braces around the whole: it starts with a key")
            self._members(values, (), None)
        else:
            self._refuse('"{"')
        self._rest(values)
        return values

    def all_repairs(self) -> Iterator[Repair]:
        """What was mended, in any order."""
        yield from self.repairs
        for first, last in self._comments:
            yield Repair(
                first, "left out a comment" if first == last else f"left out comments, up to line {last}"
            )

    def _rest(self, values: dict[str, Any]) -> None:
        """What stands behind the brace that closed the whole."""
        while True:
            self._skip_blank()
            here = self._here()
            if not here:
                return
            if here in "}],;":
                self._mend(f'left out a "{here}" that belongs to nothing')
                self.at += 1
            elif self._key_is_here():
                self._mend("went on reading: a brace had closed the whole too early")
                self._members(values, (), None)
            else:
                self._refuse("the end of the file")

    # Objects and arrays

    def _members(self, values: dict[str, Any], path: KeyPath | None, opened: int | None) -> None:
        """Read members up to the closing brace, or the end where it is missing.

        `opened`: where the brace stands; None for a whole without one. `path`: None inside an array.
        """
        self._enter("{")
        first = True
        while True:
            commas = self._commas("}")
            if self._ends("}", opened, commas):
                break
            self._between(commas, first, "key")
            first = False
            self._member(values, path)
        self._open.pop()

    def _member(self, values: dict[str, Any], path: KeyPath | None) -> None:
        start = self.at
        key = self._key()
        self._keys += 1
        if self._keys > MOST_KEYS:
            raise ConfigurationError(
                f"{self.name}: has more than {MOST_KEYS} keys; name a DeepSpeed configuration"
            )
        self._colon()
        inner = None if path is None else (*path, key)
        if key in values:
            self._mend(f'read "{key[:LONGEST_SHOWN]}" twice; the last one counts', start)
            if inner is not None:
                self.lines = {
                    known: line for known, line in self.lines.items() if known[: len(inner)] != inner
                }
        if inner is not None:
            self.lines[inner] = self._line(start)
        values[key] = self._value(inner)

    def _array(self, opened: int) -> list[Any]:
        self._enter("[")
        items: list[Any] = []
        while True:
            commas = self._commas("]")
            if self._ends("]", opened, commas):
                break
            self._between(commas, not items, "value")
            self._items += 1
            if self._items > MOST_ITEMS:
                raise ConfigurationError(
                    f"{self.name}: has more than {MOST_ITEMS} values in arrays; name a DeepSpeed configuration"
                )
            items.append(self._value(None))
        self._open.pop()
        return items

    def _enter(self, bracket: str) -> None:
        self._open.append(bracket)
        if len(self._open) > DEEPEST:
            raise ConfigurationError(
                f"{self._place()}: is nested more than {DEEPEST} deep; a DeepSpeed configuration has four levels"
            )

    def _ends(self, closing: str, opened: int | None, commas: int) -> bool:
        """Whether what is open ends here: by its own bracket, or because one further out or the end closes it."""
        here = self._here()
        if here and here not in "}]":
            return False
        if here != closing:
            if opened is not None:
                self._mend(
                    f'added the missing "{closing}" of the "{self.text[opened]}" in line {self._line(opened)}'
                )
            return True
        if commas:
            self._mend(f'left out the comma before "{closing}"')
        self.at += 1
        return True

    def _commas(self, closing: str) -> int:
        """Pass blank, commas, and brackets that close nothing; how many commas there were."""
        commas = 0
        while True:
            self._skip_blank()
            here = self._here()
            if here and here in "}]" and here != closing and _OPENING[here] not in self._open[:-1]:
                self._mend(f'left out a "{here}" that belongs to nothing')
            elif here and here in ",;":
                if here == ";":
                    self._mend('read ";" as a comma')
                commas += 1
                if commas > 1:
                    self._mend("left out a comma too many")
            else:
                return commas
            self.at += 1

    def _between(self, commas: int, first: bool, what: str) -> None:
        if first and commas:
            self._mend(f"left out the comma before the first {what}")
        elif not first and not commas:
            self._mend(f"added the missing comma before this {what}")

    # Keys and values

    def _key_is_here(self) -> bool:
        """Whether a key with its colon stands here; nothing is passed or mended."""
        quoted = read_string(self.text, self.at)
        word = WORD.match(self.text, self.at)
        if quoted is None and word is None:
            return False
        behind = _BLANK.match(self.text, quoted.end if quoted else word.end() if word else self.at)
        return behind is not None and self.text[behind.end() : behind.end() + 1] in (":", "=")

    def _key(self) -> str:
        quoted = read_string(self.text, self.at)
        if quoted:
            return str(self._taken(quoted))
        word = WORD.match(self.text, self.at)
        if not word:
            self._refuse('a key in quotes or "}"')
        self._mend(f"put quotes around the key {word[0][:LONGEST_SHOWN]}")
        self.at = word.end()
        return word[0]

    def _colon(self) -> None:
        self._skip_blank()
        if self._here() == ":":
            self.at += 1
        elif self._here() == "=":
            self._mend('read "=" as ":"')
            self.at += 1
        elif STARTS_A_VALUE.match(self.text, self.at):
            self._mend('added the missing ":" behind a key')
        else:
            self._refuse('":"')
        self._skip_blank()

    def _value(self, path: KeyPath | None) -> Any:
        here = self._here()
        if here == "{":
            inner: dict[str, Any] = {}
            self.at += 1
            self._members(inner, path, self.at - 1)
            return inner
        if here == "[":
            self.at += 1
            return self._array(self.at - 1)
        found = read_string(self.text, self.at) or read_bare(self.text, self.at)
        if found is None and here in QUOTES:
            end = self.text.find("\n", self.at)
            self.at = len(self.text) if end < 0 else end
            self._refuse("the closing quote of a text that begins in this line")
        if found is None:
            self._refuse("a value")
        return self._taken(found)

    def _taken(self, found: Literal) -> Any:
        """Go on behind a literal; its value."""
        for what in found.mended:
            self._mend(what)
        self.at = found.end
        return found.value

    # Places

    def _here(self) -> str:
        return self.text[self.at : self.at + 1]

    def _skip_blank(self) -> None:
        while True:
            blank = _BLANK.match(self.text, self.at)
            self.at = blank.end() if blank else self.at
            comment = _COMMENT.match(self.text, self.at)
            if comment:
                self._leave_out_comment(comment.end())
            elif self.text.startswith("/*", self.at):
                self._mend("left out a comment that does not end")
                self.at = len(self.text)
            else:
                return

    def _leave_out_comment(self, end: int) -> None:
        """Pass a comment; those on lines that follow each other are told as one."""
        first, last = self._line(self.at), self._line(max(self.at, end - 1))
        if self._comments and self._comments[-1][1] >= first - 1:
            self._comments[-1] = (self._comments[-1][0], last)
        else:
            self._comments.append((first, last))
        if len(self._comments) > MOST_COMMENTS:
            raise ConfigurationError(f"{self._place()}: has more than {MOST_COMMENTS} comments")
        self.at = end

    def _line(self, at: int) -> int:
        """Of what is behind the last character, the line of that."""
        return bisect_right(self._starts, min(at, self._end)) + 1

    def _place(self) -> str:
        line = self._line(self.at)
        column = min(self.at, self._end) - (self._starts[line - 2] if line > 1 else 0) + 1
        return f"{self.name}:{line}:{column}"

    def _mend(self, what: str, at: int | None = None) -> None:
        self.repairs.append(Repair(self._line(self.at if at is None else at), on_one_line(what)))
        if len(self.repairs) > MOST_REPAIRS:
            raise ConfigurationError(
                f"{self._place()}: is not JSON: more than {MOST_REPAIRS} things would have to be mended; "
                f"the first is in line {self.repairs[0].line}: {self.repairs[0].what}"
            )

    def _refuse(self, expected: str) -> NoReturn:
        rest = self.text[self.at : self.at + 20].split("\n")[0]
        found = f"{rest!r}" if rest else "the end of the line" if self._here() else "the end of the file"
        raise ConfigurationError(
            on_one_line(f"{self._place()}: is not JSON: there is {found} where {expected} was expected")
        )
