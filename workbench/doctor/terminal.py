"""The terminal that the screen will be drawn in. Runs need none, so nothing here is worse than a warning."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator

from workbench.doctor.findings import Finding, ok, warning
from workbench.doctor.surroundings import Surroundings, Terminal

SMALLEST = (60, 16)
RECOMMENDED = (80, 24)


def this_terminal() -> Terminal:
    """Of standard output, else standard error, else standard input."""
    encoding = getattr(sys.stdout, "encoding", None) or ""
    for stream in (sys.stdout, sys.stderr, sys.stdin):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            columns, lines = os.get_terminal_size(stream.fileno())
            return Terminal((columns, lines), encoding)
    return Terminal(None, encoding)


def check_terminal(around: Surroundings) -> Iterator[Finding]:
    """One line if all is right, else one for each thing that is not."""
    terminal, name = around.terminal, around.environ.get("TERM", "")
    if terminal.size is None:
        yield ok("terminal", "not looked at: this does not run in one")
        return
    columns, lines = terminal.size
    size = f"{columns}x{lines}"
    wrong = []
    # A serial line says 0 for what it does not know.
    if columns < SMALLEST[0] or lines < SMALLEST[1]:
        wrong.append(
            warning(
                "terminal",
                f"{size} is too small for the screen, which needs {_size(SMALLEST)}",
                f"enlarge the window to {_size(RECOMMENDED)} or more, or `stty cols 80 rows 24` where it is larger",
            )
        )
    if name in ("", "dumb", "unknown"):
        wrong.append(
            warning(
                "terminal",
                f'TERM is "{name}": nothing can be drawn'
                if name
                else "TERM is not set: nothing can be drawn",
                "`export TERM=xterm-256color`",
            )
        )
    if terminal.encoding.lower().replace("-", "").replace("_", "") != "utf8":
        wrong.append(
            warning(
                "terminal",
                f"text goes out as {terminal.encoding or 'an unknown encoding'}, not as UTF-8: charts need it",
                "`export LANG=C.UTF-8`, and unset LC_ALL and PYTHONIOENCODING",
            )
        )
    yield from wrong
    if not wrong:
        small = columns < RECOMMENDED[0] or lines < RECOMMENDED[1]
        yield ok(
            "terminal",
            f"{size}{f' ({_size(RECOMMENDED)} shows more)' if small else ''}, UTF-8, TERM={name}, {_colours(around)}",
        )


def _colours(around: Surroundings) -> str:
    if around.environ.get("NO_COLOR"):
        return "no colours, by NO_COLOR"
    if around.environ.get("COLORTERM", "").lower() in ("truecolor", "24bit"):
        return "all colours"
    return "256 colours" if "256" in around.environ.get("TERM", "") else "few colours"


def _size(size: tuple[int, int]) -> str:
    return f"{size[0]}x{size[1]}"
