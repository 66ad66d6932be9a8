"""The commands about configurations: `config show`, `config check`, `config schema` and `presets`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from textwrap import wrap

from workbench.commands import report
from workbench.config import fields, load_config, to_toml
from workbench.config.toml_text import toml_value
from workbench.errors import EXIT_DONE, ConfigurationError
from workbench.presets import find_preset, list_presets


def show(*, preset: str, overrides: Sequence[str], as_json: bool) -> int:
    """Print the resolved configuration as TOML, or as JSON."""
    config = load_config(find_preset(preset), overrides)
    print(json.dumps(config.model_dump(), indent=2) if as_json else to_toml(config).rstrip())
    return EXIT_DONE


def check(*, preset: str, overrides: Sequence[str], as_json: bool) -> int:
    """Print one line when the configuration is right, warnings, and what was not checked; all of it with `as_json`.

    Raises ConfigurationError with every mistake in it, and every name in it that is not found; JSON has them instead.
    """
    from workbench.config.references import REFERENCES, not_checked
    from workbench.config.rules import warnings

    path = find_preset(preset)
    try:
        config = load_config(path, overrides, look_for=REFERENCES)
    except ConfigurationError as error:
        if not as_json:
            raise
        print(json.dumps({"path": str(path), "ok": False, "problems": str(error).splitlines()}, indent=2))
        return error.exit_code
    if as_json:
        told = {"problems": [], "warnings": list(warnings(config)), "not_checked": list(not_checked(config))}
        print(json.dumps({"path": str(path), "ok": True, **told}, indent=2))
        return EXIT_DONE
    for sentence in warnings(config):
        report(f"warning: {sentence}")
    report(f"not checked: {'; '.join(not_checked(config))}")
    print(f"{path}: ok")
    return EXIT_DONE


def schema(*, as_json: bool) -> int:
    """Print every field: as a commented preset of defaults, or as a JSON array of objects."""
    if as_json:
        print(json.dumps([asdict(field) for field in fields()], indent=2, ensure_ascii=False))
    else:
        print("\n".join(_schema_as_toml()))
    return EXIT_DONE


def presets(*, as_json: bool) -> int:
    """List the presets that can be named, and what is wrong with the broken ones."""
    found = list_presets()
    if as_json:
        print(json.dumps([{**preset._asdict(), "path": str(preset.path)} for preset in found], indent=2))
        return EXIT_DONE
    width = max((len(preset.name) for preset in found), default=0)
    for preset in found:
        print(f"{preset.name:<{width}}  {preset.origin:<7}  {preset.description}".rstrip())
        for line in (preset.error or "").splitlines():
            print(f"{'':<{width}}  broken   {line}")
    return EXIT_DONE


def _schema_as_toml() -> Iterator[str]:
    table = ""
    for field in fields():
        if field.table != table:
            table = field.table
            yield f"\n[{table}]"
        unit = f" ({field.unit})" if field.unit else ""
        for text in (field.help, f"{field.must_be[0].upper()}{field.must_be[1:]}{unit}."):
            yield from wrap(text, width=100, initial_indent="# ", subsequent_indent="# ")
        yield f"{field.key} = {toml_value(field.default)}"
