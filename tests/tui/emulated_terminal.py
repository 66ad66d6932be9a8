"""A command in a real terminal, and what that terminal shows: every cell's character and colours.

pyte works them out from what was written.
"""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, NamedTuple

import pexpect
import pyte

PATIENCE_S = 60.0
QUIET_S = 0.15
"""Silence after which a picture counts as whole."""
Rgb = tuple[int, int, int]
XTERM: dict[str, str] = {
    "black": "000000",
    "red": "cd0000",
    "green": "00cd00",
    "brown": "cdcd00",
    "blue": "0000ee",
    "magenta": "cd00cd",
    "cyan": "00cdcd",
    "white": "e5e5e5",
    "brightblack": "7f7f7f",
    "brightred": "ff0000",
    "brightgreen": "00ff00",
    "brightbrown": "ffff00",
    "brightblue": "5c5cff",
    "bfightmagenta": "ff00ff",  # pyte's own spelling
    "brightmagenta": "ff00ff",
    "brightcyan": "00ffff",
    "brightwhite": "ffffff",
}
"""xterm's first 16 colours, by pyte's names: what a terminal has that nobody has set up."""
DARK: tuple[Rgb, Rgb] = (229, 229, 229), (0, 0, 0)
LIGHT: tuple[Rgb, Rgb] = (0, 0, 0), (255, 255, 255)
"""The default colours of a terminal: text, background."""


class Cell(NamedTuple):
    sign: str
    text: Rgb
    background: Rgb
    is_bold: bool = False
    is_underlined: bool = False


class _Screen(pyte.Screen):
    """With dim text, which pyte leaves out: kept where it keeps that text blinks."""

    def select_graphic_rendition(self, *attributes: int, **options: Any) -> None:
        super().select_graphic_rendition(*attributes, **options)
        if 2 in attributes and not {38, 48} & {*attributes}:
            self.cursor.attrs = self.cursor.attrs._replace(blink=True)
        if 22 in attributes:
            self.cursor.attrs = self.cursor.attrs._replace(blink=False)


class EmulatedTerminal:
    """`command` in a terminal of `size` (columns, rows) with the default colours `defaults`, in a `with` block."""

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        size: tuple[int, int],
        defaults: tuple[Rgb, Rgb] = DARK,
        folder: str | None = None,
    ) -> None:
        self._command, self._folder = command, folder
        self._environment = {
            name: value for name, value in environment.items() if name not in ("COLUMNS", "LINES")
        }
        """Without the size of another terminal, which goes before the size of this one."""
        self.size, self._defaults = size, defaults
        self._screen = _Screen(*size)
        self._stream = pyte.ByteStream(self._screen)

    def __enter__(self) -> EmulatedTerminal:
        self._terminal = pexpect.spawn(
            self._command[0],
            list(self._command[1:]),
            cwd=self._folder,
            env={
                **self._environment,
                "TERM": "xterm-256color",
                "COLORTERM": "truecolor",
                "LC_ALL": "C.UTF-8",
            },
            dimensions=(self.size[1], self.size[0]),
        )
        self._terminal.delaybeforesend = None
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._terminal.kill(signal.SIGTERM)
        deadline = time.monotonic() + 5
        while self._terminal.isalive() and time.monotonic() < deadline:
            self._read(0.02)  # else it waits for a reader
        self._terminal.close(force=True)

    @property
    def lines(self) -> list[str]:
        return self._screen.display

    def until(self, met: Callable[[str], bool]) -> None:
        """Read until `met` holds for all that is shown, and then nothing is written for a while."""
        deadline = time.monotonic() + PATIENCE_S
        while not met("\n".join(self.lines)):
            assert time.monotonic() < deadline, "it was not shown within a minute:\n" + "\n".join(self.lines)
            self._read(0.05)
        self.settle()

    def shows(self, *words: str) -> None:
        """Read until all `words` are shown."""
        self.until(lambda shown: all(word in shown for word in words))

    def settle(self, most_s: float = 3.0) -> None:
        """Read until nothing is written for a while; what moves without end is read for `most_s`."""
        deadline = time.monotonic() + most_s
        while self._read(QUIET_S) and time.monotonic() < deadline:
            pass

    def press(self, keys: str) -> None:
        self._terminal.send(keys)
        self.settle()

    def cells(self) -> Iterator[tuple[int, int, Cell]]:
        """Yield every cell as (column, row, cell)."""
        for row in range(self.size[1]):
            for column in range(self.size[0]):
                found = self._screen.buffer[row][column]
                text, background = (
                    self._colour(name, place) for place, name in enumerate((found.fg, found.bg))
                )
                if found.reverse:
                    text, background = background, text
                if found.blink:
                    text = tuple((a + b) // 2 for a, b in zip(text, background, strict=True))  # type: ignore[assignment]
                yield column, row, Cell(found.data, text, background, found.bold, found.underscore)

    def _colour(self, name: str, place: int) -> Rgb:
        if name == "default":
            return self._defaults[place]
        return tuple(bytes.fromhex(XTERM.get(name, name)))  # type: ignore[return-value]

    def _read(self, timeout_s: float) -> bool:
        ready, _, _ = select.select([self._terminal.child_fd], [], [], timeout_s)
        if not ready:
            return False
        try:
            self._stream.feed(os.read(self._terminal.child_fd, 1 << 16))
        except OSError:  # the terminal's other end is closed
            return False
        return True
