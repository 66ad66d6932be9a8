"""A DeepSpeed configuration in, a preset and a verdict on every key out.

The order of the readers matters once: the scheduler comes after the optimizer, whose learning rate it may replace.
Nothing is written here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from workbench.config import parse_config
from workbench.errors import ConfigurationError
from workbench.imports.deepspeed.batch import read_batch
from workbench.imports.deepspeed.keys import judge_leftovers
from workbench.imports.deepspeed.log import read_logging
from workbench.imports.deepspeed.misplaced_keys import put_in_place
from workbench.imports.deepspeed.optimizer import read_optimizer
from workbench.imports.deepspeed.placement import read_placement
from workbench.imports.deepspeed.precision import read_precision
from workbench.imports.deepspeed.scheduler import read_scheduler
from workbench.imports.findings import Assumed, Findings, Setting, Verdict
from workbench.imports.lenient_json import LONGEST_TEXT, Repair, read_document
from workbench.imports.preset_text import names_a_model, preset_text


@dataclass(frozen=True)
class Imported:
    """What became of a file. `preset` is empty where `refused` is not; `refused` has a sentence for each reason."""

    name: str
    repairs: tuple[Repair, ...]
    verdicts: tuple[Verdict, ...]
    assumed: tuple[Assumed, ...]
    names_model: bool
    refused: tuple[str, ...]
    preset: str


def import_file(
    path: Path, *, architecture: str = "", pretrained: str = "", overrides: Sequence[str] = ()
) -> Imported:
    """Read the DeepSpeed configuration at `path`; the model's name is not in it and may be given.

    `overrides`: "table.key=value" of Workbench's own fields, which go before what the file says.

    Raises:
        ConfigurationError: the file cannot be read, or is no JSON that can be mended.
    """
    text = _read(path)
    return import_text(text, str(path), architecture=architecture, pretrained=pretrained, overrides=overrides)


def import_text(
    text: str, name: str, *, architecture: str = "", pretrained: str = "", overrides: Sequence[str] = ()
) -> Imported:
    """The same as `import_file` on a text; `name` stands for the file in messages."""
    document = read_document(text, name)
    values, lines, moves = put_in_place(document.values, document.lines)
    found = Findings(values, lines)
    for read in (read_batch, read_precision, read_optimizer, read_scheduler, read_placement, read_logging):
        read(found)
    judge_leftovers(found)
    settings = found.settings
    for key, value in (("architecture", architecture), ("pretrained", pretrained)):
        if value:
            settings[f"model.{key}"] = Setting(value, f"--{key}")
    refused = [_sentence(name, verdict) for verdict in found.refused()]
    preset = preset_text(settings, Path(name).name)
    # Where a key is refused there are no other problems of the whole than those of what it was not asked for.
    wrong = _set(settings, preset, name, overrides)
    refused += [line for line in wrong if not refused or line.startswith("--set")]
    preset = preset_text(settings, Path(name).name)
    return Imported(
        name=name,
        repairs=tuple(sorted((*document.repairs, *moves))),
        verdicts=tuple(found.in_order()),
        assumed=tuple(found.assumed),
        names_model=names_a_model(settings),
        refused=tuple(refused),
        preset="" if refused else preset,
    )


def _sentence(name: str, verdict: Verdict) -> str:
    from workbench.config.toml_text import on_one_line
    from workbench.imports.findings import shown

    return on_one_line(f"{name}:{verdict.line}: {verdict.key} = {shown(verdict.value)}: {verdict.reason}")


def _set(settings: dict[str, Setting], preset: str, name: str, overrides: Sequence[str]) -> Sequence[str]:
    """Put `overrides` on top of the settings of `preset`; what Workbench has against the whole, a sentence each.

    A model that is still to be named is nothing against it.
    """
    keys = [override.partition("=")[0].replace(" ", "") for override in overrides]
    named = names_a_model(settings) or any(key in ("model.architecture", "model.pretrained") for key in keys)
    stand_in = () if named else ("model.architecture=gpt2",)
    try:
        config = parse_config(preset, f"the preset of {name}", (*stand_in, *overrides))
    except ConfigurationError as error:
        return str(error).split("\n")
    values = config.model_dump()
    for key in keys:
        table, _, rest = key.partition(".")
        field = rest.partition(".")[0]
        settings[f"{table}.{field}" if field else table] = Setting(
            values[table][field] if field else values[table], "--set"
        )
    return ()


def _read(path: Path) -> str:
    try:
        if path.is_dir():
            raise ConfigurationError(f"{path}: is a folder; name a DeepSpeed configuration, a JSON file")
        if path.exists() and not path.is_file():
            raise ConfigurationError(
                f"{path}: is not a plain file; name a DeepSpeed configuration, a JSON file"
            )
        if path.stat().st_size > LONGEST_TEXT:
            raise ConfigurationError(f"{path}: is too large for a DeepSpeed configuration; name a JSON file")
        raw = path.read_bytes()
    except FileNotFoundError:
        raise ConfigurationError(f"{path}: there is no such file") from None
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        reason = error.strerror if isinstance(error, OSError) else error
        raise ConfigurationError(f"{path}: cannot be read: {reason}") from None
    encoding = "utf-16" if raw[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"
    try:
        text = raw.decode(encoding)
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        raise ConfigurationError(f"{path}:{line}: is not text in UTF-8; name a JSON file") from None
    if "\0" in text:
        line = text[: text.index("\0")].count("\n") + 1
        raise ConfigurationError(f"{path}:{line}: is not text (it has a zero byte); name a JSON file")
    return text
