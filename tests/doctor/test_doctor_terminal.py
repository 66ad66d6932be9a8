"""The terminal: size, encoding, kind and colours."""

from __future__ import annotations

from pathlib import Path

import pytest
from forged_machine import around, only

from workbench.doctor.findings import Terminal
from workbench.doctor.host_checks import check_terminal

COLOURFUL = {"TERM": "xterm-256color", "COLORTERM": "truecolor"}


@pytest.mark.parametrize(
    ("terminal", "environ", "finding"),
    [
        (Terminal((120, 40), "utf-8"), COLOURFUL, "120x40, UTF-8, TERM=xterm-256color, all colours"),
        (
            Terminal((60, 16), "UTF8"),
            {"TERM": "xterm"},
            "60x16 (80x24 shows more), UTF-8, TERM=xterm, few colours",
        ),
        (Terminal((80, 24), "utf_8"), {**COLOURFUL, "NO_COLOR": "1"}, "no colours, by NO_COLOR"),
        (Terminal((80, 24), "utf-8"), {**COLOURFUL, "NO_COLOR": ""}, "all colours"),
        (Terminal((80, 24), "utf-8"), {"TERM": "screen-256color"}, "256 colours"),
        (Terminal(None, ""), {}, "skipped"),
    ],
)
def test_a_terminal_that_does_is_ok(
    tmp_path: Path, terminal: Terminal, environ: dict[str, str], finding: str
) -> None:
    found = only(check_terminal(around(tmp_path, terminal=terminal, environ=environ)))
    assert found.status == "ok" and finding in found.finding


@pytest.mark.parametrize(
    ("terminal", "environ", "remedy"),
    [
        (Terminal((59, 40), "utf-8"), COLOURFUL, "80x24"),
        (Terminal((120, 15), "utf-8"), COLOURFUL, "stty cols 80 rows 24"),
        (Terminal((120, 40), "utf-8"), {"TERM": "dumb"}, "`export TERM=xterm-256color`"),
        (Terminal((120, 40), "utf-8"), {}, "`export TERM=xterm-256color`"),
        (Terminal((120, 40), "iso8859-1"), COLOURFUL, "`export LANG=C.UTF-8`"),
        (Terminal((120, 40), ""), COLOURFUL, "`export LANG=C.UTF-8`"),
    ],
)
def test_what_the_screen_cannot_be_drawn_in_is_a_warning(
    tmp_path: Path, terminal: Terminal, environ: dict[str, str], remedy: str
) -> None:
    found = only(check_terminal(around(tmp_path, terminal=terminal, environ=environ)))
    assert found.status == "warning" and remedy in found.remedy
