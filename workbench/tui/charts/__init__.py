"""Charts and the small graphs inside panels: series that grow, axes, a braille canvas, bars and sparklines.

Everything but `chart` is arithmetic on plain values that knows no widget. Invariant: with `glyphs.ascii` nothing here
draws a character above U+007F, and a value that is not finite is shown as missing, never raised.
"""
