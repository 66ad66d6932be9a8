"""All text can be read: 4.5:1 (WCAG 2.2, 1.4.3) in every cell that the real command draws in a real terminal, and with
every theme's colours."""

from __future__ import annotations

import os
import sys
import time
from collections import Counter
from functools import cache
from pathlib import Path

import pytest
from emulated_terminal import DARK, LIGHT, EmulatedTerminal, Rgb
from scenes.stored_runs import make_runs
from textual.color import Color
from textual.theme import BUILTIN_THEMES

from workbench.tui.contrast import (
    BACKGROUNDS,
    CURVES,
    LEAST,
    MUTED,
    ON_BACKGROUNDS,
    TEXTS,
    contrast,
    readable,
)

THEMES = ("textual-dark", "textual-light", "ansi-dark", "ansi-light")
SIZES = ((80, 24), (60, 16), (120, 40), (200, 60))
ESCAPE, ENTER, PAGE_DOWN = "\x1b", "\r", "\x1b[6~"


@cache
def contrast_of(text: Rgb, background: Rgb) -> float:
    return contrast(Color(*text), Color(*background))


def is_text(sign: str) -> bool:
    """Tell whether a cell is to be read: neither blank nor drawn with boxes, blocks or braille."""
    return bool(sign.strip()) and not ("─" <= sign[0] <= "▟" or "⠀" <= sign[0] <= "⣿")


class Seen:
    """What cannot be read on the screens that were looked at."""

    def __init__(self, terminal: EmulatedTerminal) -> None:
        self.terminal = terminal
        self.read = 0
        self.problems: Counter[str] = Counter()

    def look(self, screen: str) -> None:
        for _, row, cell in self.terminal.cells():
            if not is_text(cell.sign):
                continue
            self.read += 1
            found = contrast_of(cell.text, cell.background)
            if found < LEAST:
                line = self.terminal.lines[row].strip()
                self.problems[f"{screen}: {found:.1f}:1, {cell.text} on {cell.background}, in: {line}"] += 1


def combinations() -> list[object]:
    """Every theme at every size; by default each theme and each size once."""
    return [
        pytest.param(
            theme, size, id=f"{theme}-{size[0]}x{size[1]}", marks=() if at == place else pytest.mark.slow
        )
        for at, theme in enumerate(THEMES)
        for place, size in enumerate(SIZES)
    ]


@pytest.mark.parametrize(("theme", "size"), combinations())
def test_every_text_in_a_terminal_can_be_read(theme: str, size: tuple[int, int], tmp_path: Path) -> None:
    make_runs(tmp_path / "runs", time.time())
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("WORKBENCH_", "XDG_")) and name not in ("NO_COLOR", "SSH_CONNECTION")
    }
    environment.update(HOME=str(tmp_path), TEXTUAL_THEME=theme)
    command = (sys.executable, "-m", "workbench")
    defaults = LIGHT if theme == "ansi-light" else DARK
    with EmulatedTerminal(command, environment, size, defaults, str(tmp_path)) as terminal:
        seen = Seen(terminal)
        terminal.shows("quickstart", "fits")
        seen.look("presets")
        terminal.press(ENTER)
        terminal.shows("architecture")
        seen.look("form")
        terminal.press(PAGE_DOWN + PAGE_DOWN)
        terminal.press("x")
        terminal.press("\t")
        seen.look("form with a mistake")
        terminal.press(ESCAPE)
        terminal.shows("Leave the form?")
        seen.look("form with a dialog")
        terminal.press("y")
        terminal.shows("gpt2-124m")
        terminal.press("\x10")
        terminal.shows("Search for")
        seen.look("palette")
        terminal.press(ESCAPE)
        terminal.until(lambda shown: "Search for" not in shown)
        terminal.press("H")
        terminal.shows("STATE", "STEP")
        seen.look("runs")
        terminal.press("?")
        terminal.shows("Help ─")
        seen.look("help")
        terminal.press(ESCAPE)
        # A key that came with Escape would be another key.
        terminal.until(lambda shown: "Help ─" not in shown)
        terminal.press(ENTER)
        terminal.shows("charts", "training")
        for group in "123456":
            terminal.press(group)
            seen.look(f"run, {group}")
        terminal.press("s")
        seen.look("run with a dialog")
        terminal.press(ESCAPE)
        terminal.until(lambda shown: "Keep training" not in shown)
        terminal.press("M")
        terminal.shows("Memory")
        seen.look("top")
    assert not seen.problems, "\n".join(seen.problems)
    assert seen.read > 2000


@pytest.mark.parametrize("name", [name for name, theme in BUILTIN_THEMES.items() if not theme.ansi])
def test_every_theme_has_texts_that_can_be_read_on_its_grounds(name: str) -> None:
    theme = BUILTIN_THEMES[name]
    given = theme.to_color_system().generate() | theme.variables
    found = {
        variable: Color.parse(value)
        for variable, value in readable(given, ansi=False, dark=theme.dark).items()
        if variable
        in {*TEXTS, *MUTED, *CURVES, *BACKGROUNDS} | {each for pair in ON_BACKGROUNDS for each in pair}
    }
    for text in (*TEXTS, *MUTED, *CURVES):
        for background in BACKGROUNDS:
            assert contrast(found[text], found[background]) >= LEAST, (text, background)
    for text, background in ON_BACKGROUNDS:
        assert contrast(found[text], found[background]) >= LEAST, (text, background)


def test_what_can_be_read_already_stays_and_what_is_moved_stays_near() -> None:
    given = BUILTIN_THEMES["textual-light"].to_color_system().generate()
    found = readable(given, ansi=False, dark=False)
    assert found["text-error"] == given["text-error"] and found["foreground"] == given["foreground"]
    before, after = Color.parse(given["success"]), Color.parse(found["success"])
    assert contrast(before, Color.parse(given["background"])) < 2 < LEAST
    assert abs(before.hsl.h - after.hsl.h) < 0.02


def test_contrast_is_that_of_the_guidelines() -> None:
    """Figures of WCAG's own formula: black on white, and the greys next to 4.5:1 on white (#767676, #777777)."""
    white = Color(255, 255, 255)
    assert contrast(Color(0, 0, 0), white) == pytest.approx(21)
    assert contrast(Color.parse("#767676"), white) == pytest.approx(4.54, abs=0.01)
    assert contrast(Color.parse("#777777"), white) == pytest.approx(4.48, abs=0.01)
