"""The colours of text in every theme, moved as little as makes them readable: 4.5:1 on each of the theme's backgrounds.

Themes choose colours for looks: yellow text on a light background has 1.8:1. The measure is that of WCAG 2.2, success
criterion 1.4.3. Invariant: no screen names a colour for text that is not made readable here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from textual.color import Color

LEAST = 4.5
_AIM = 4.6
"""The contrast that colours are moved to: they are rounded to whole numbers afterwards, more than once."""
BACKGROUNDS = ("background", "surface", "panel")
"""Backgrounds of text."""
TEXTS = (
    "foreground",
    "success",
    "warning",
    "error",
    "accent",
    *(f"text-{name}" for name in ("primary", "secondary", "success", "warning", "error", "accent")),
    "footer-foreground",
    "footer-key-foreground",
    "footer-description-foreground",
    "block-cursor-blurred-foreground",
)
MUTED = ("text-muted", "text-disabled", "foreground-muted", "foreground-disabled")
"""Less important text: as near to the background as it may be."""
ON_BACKGROUNDS = (
    ("block-cursor-foreground", "block-cursor-background"),
    ("input-selection-foreground", "input-selection-background"),
)
"""A text's colour and the background that it alone is drawn on; the background is moved."""
CURVES = {"curve-4": "#c678dd", "curve-5": "#2bbac5", "curve-7": "#7fb069", "curve-8": "#e08d79"}
"""Colours of curves beyond those of the theme: as in `Chart`, moved."""
_ANSI_DARK = {
    "ansi_blue": "ansi_cyan",
    "ansi_cyan": "ansi_bright_cyan",
    "ansi_red": "ansi_bright_red",
    "ansi_magenta": "ansi_bright_magenta",
}
_ANSI_LIGHT = {
    "ansi_green": "ansi_blue",
    "ansi_cyan": "ansi_magenta",
    "ansi_yellow": "ansi_magenta",
    "ansi_bright_red": "ansi_magenta",
}
_ANSI_CURVES = {
    True: ("ansi_bright_magenta", "ansi_bright_cyan", "ansi_green", "ansi_yellow"),
    False: ("ansi_magenta", "ansi_blue", "ansi_red", "ansi_default"),
}
"""Of the 16 colours, as xterm draws them, those that can be read in the place of those that cannot."""
_WHITE, _BLACK = Color(255, 255, 255), Color(0, 0, 0)


def luminance(colour: Color) -> float:
    """Return the relative luminance, from 0 for black to 1 for white."""
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in colour.normalized]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: Color, other: Color) -> float:
    """Return the contrast of two opaque colours, from 1 to 21."""
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def readable(variables: Mapping[str, str], *, ansi: bool, dark: bool) -> dict[str, str]:
    """Return a theme's variables with texts that can be read on its backgrounds."""
    if ansi:
        return _readable_ansi(variables, dark=dark)
    below = Color.parse(variables["background"])
    backgrounds = [_upon(below, variables[name]) for name in BACKGROUNDS]
    out = dict(variables)
    for name in TEXTS:
        out[name] = _moved(_upon(below, variables[name]), backgrounds).hex
    out.update((name, _moved(Color.parse(colour), backgrounds).hex) for name, colour in CURVES.items())
    muted = _muted(Color.parse(out["foreground"]), backgrounds).hex
    out.update(dict.fromkeys(MUTED, muted))
    for text, background in ON_BACKGROUNDS:
        back = _upon(below, variables[background])
        front = _upon(back, variables[text])
        out[text], out[background] = front.hex, _moved(back, [front]).hex
    return out


def _upon(background: Color, value: str) -> Color:
    """Return what a variable, as "#838ba7 30%" or "auto 87%", gives upon a background; "auto" is white or black."""
    name, _, share = value.partition(" ")
    if name == "auto":
        return background.get_contrast_text(1.0)
    colour = Color.parse(name)
    return background + colour.with_alpha(float(share.strip("%")) / 100 if share else colour.a)


def _readable_ansi(variables: Mapping[str, str], *, dark: bool) -> dict[str, str]:
    instead = _ANSI_DARK if dark else _ANSI_LIGHT
    out = dict(variables)
    for name in TEXTS:
        out[name] = instead.get(variables[name], variables[name])
    curves = dict(zip(CURVES, _ANSI_CURVES[dark], strict=True))
    return {**out, **dict.fromkeys(MUTED, "ansi_default"), **curves}


def _least(colour: Color, backgrounds: Iterable[Color]) -> float:
    return min(contrast(colour, background) for background in backgrounds)


def _moved(colour: Color, backgrounds: list[Color]) -> Color:
    """Return the nearest colour on the way to white or to black that can be read on all backgrounds."""
    end = max((_WHITE, _BLACK), key=lambda each: _least(each, backgrounds))
    steps = (colour.blend(end, step / 50, 1) for step in range(51))
    return next((each for each in steps if _least(each, backgrounds) >= _AIM), end)


def _muted(text: Color, backgrounds: list[Color]) -> Color:
    """Return the text's colour, as near to the first background as it may be, at most by a third of the way."""
    steps = (backgrounds[0].blend(text, share / 50, 1) for share in range(33, 51))
    return next((each for each in steps if _least(each, backgrounds) >= _AIM), text)
