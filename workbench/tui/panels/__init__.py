"""The live panels: one widget each, drawn by hand, given plain values and drawing nothing else.

A panel never samples, reads the clock or waits; screens give it what to show.
"""
