"""The preset that an import gives: TOML, every value under a comment that says where it comes from.

A preset that is kept carries a checksum of itself, so that a later import can tell whether anybody has edited it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from textwrap import wrap
from typing import Any

from workbench.config.schema import TABLES
from workbench.config.toml_text import toml_key, toml_value
from workbench.imports.findings import Setting
from workbench.system.terminal import on_one_line

_WIDTH = 110
_SEAL = "# As imported: "
_SEAL_MEANS = " (checksum of all above; if it matches, a new import to this file replaces it)"

_NO_MODEL = (
    "THE MODEL: the file names none. Uncomment one of these lines and name yours, or give it with --set; "
    "nothing runs without it."
)


def preset_text(settings: Mapping[str, Setting], source: str, tool: str) -> str:
    """Return the preset of `settings` ("table.key", or "description"), imported from the file `source` of `tool`.

    Without a model, commented lines show where to name one.
    """
    description = settings.get("description")
    lines = [
        f"description = {toml_value(description.value if description else f'Imported from {on_one_line(source)}')}",
        "",
        *_comment(
            f"Made by `workbench import` from a configuration of {tool}. Keys that it does not set have their defaults."
        ),
    ]
    for table, model in TABLES.items():
        keys = [key for key in model.model_fields if f"{table}.{key}" in settings]
        missing = list(_missing(table, settings))
        if keys or missing:
            lines += ["", f"[{table}]", *missing]
        for key in keys:
            setting = settings[f"{table}.{key}"]
            lines += [*_comment(setting.why), f"{toml_key(key)} = {toml_value(_plain(setting.value))}"]
    return "\n".join(lines) + "\n"


def names_a_model(settings: Mapping[str, Setting]) -> bool:
    """Return True if `settings` name a model to train."""
    return "model.architecture" in settings or "model.pretrained" in settings


def _missing(table: str, settings: Mapping[str, Setting]) -> Iterator[str]:
    """Yield the lines in which to write a model where the file has none."""
    if table == "model" and not names_a_model(settings):
        yield from _comment(_NO_MODEL)
        yield '# pretrained = "a folder or hub id"'
        yield '# architecture = "gpt2"'


def _comment(text: str) -> list[str]:
    return wrap(
        on_one_line(text), width=_WIDTH, initial_indent="# ", subsequent_indent="# ", break_on_hyphens=False
    )


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


# Detection of edits after an import


def sealed(preset: str) -> str:
    """Return the preset with the checksum of its text on a line at its end."""
    return f"{preset}\n{_SEAL}{_checksum(preset)}{_SEAL_MEANS}\n"


def is_unedited(text: str) -> bool:
    """Return True if a file's text is a preset as `sealed` gave it."""
    preset, mark, _ = text.rpartition(f"\n{_SEAL}")
    return bool(mark) and text == sealed(preset)


def _checksum(preset: str) -> str:
    return hashlib.sha256(preset.encode()).hexdigest()[:16]
