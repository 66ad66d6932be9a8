"""The screen. The only package that imports textual; no torch in its process.

State lives outside: run directories, presets and monitors. Widgets hold what they draw and nothing else; what happens
goes up as messages, what is known comes down as attributes.
"""
