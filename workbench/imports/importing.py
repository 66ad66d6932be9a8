"""Another tool's configuration in, a preset and a verdict on every key out. Nothing is written here."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workbench.config import parse_config, read_text
from workbench.errors import ConfigurationError
from workbench.imports.deepspeed import reading as deepspeed
from workbench.imports.deepspeed.keys import is_known
from workbench.imports.findings import Assumed, Findings, Setting, Verdict, shown
from workbench.imports.lenient_json import LONGEST_TEXT, Document, Repair, read_document
from workbench.imports.preset_text import names_a_model, preset_text
from workbench.imports.recipes import accelerate, axolotl, llama_factory, torchtune
from workbench.imports.recipes.yaml_document import looks_like_yaml, read_yaml
from workbench.system.terminal import on_one_line

_Values = Mapping[str, Any]
_RECIPES: tuple[tuple[str, Callable[[_Values], bool], Callable[[Findings, Path], None]], ...] = (
    (torchtune.NAME, lambda values: any(_has_component(each) for each in values.values()), torchtune.read),
    (axolotl.NAME, lambda values: "base_model" in values, axolotl.read),
    (llama_factory.NAME, lambda values: "model_name_or_path" in values, llama_factory.read),
    (
        accelerate.NAME,
        lambda values: not {"compute_environment", "distributed_type", "mixed_precision"}.isdisjoint(values),
        accelerate.read,
    ),
)
"""Each tool, how its files are told, and the reader that judges every key."""
_NO_DATA = "THE DATA: the file names none. Name a file, a folder or a dataset; nothing trains without it."
_OF_A_WARM_UP = ("schedule.warmup_type", "schedule.warmup_ratio")
_KINDS = "DeepSpeed (JSON), LLaMA-Factory, Axolotl, Accelerate and torchtune (YAML)"


def _has_component(value: Any) -> bool:
    return isinstance(value, Mapping) and "_component_" in value


@dataclass(frozen=True)
class Imported:
    """The outcome of an import. `preset` is empty where `refused`, a sentence for each reason, is not."""

    name: str
    repairs: tuple[Repair, ...]
    verdicts: tuple[Verdict, ...]
    assumed: tuple[Assumed, ...]
    names_model: bool
    names_data: bool
    tool: str
    refused: tuple[str, ...]
    preset: str


def import_file(
    path: Path, *, architecture: str = "", pretrained: str = "", overrides: Sequence[str] = ()
) -> Imported:
    """Read the configuration at `path`; the model may be given where its name is not in it.

    `overrides`: "table.key=value" of Workbench's own fields, which go before what the file says.

    Raises:
        ConfigurationError: the file cannot be read, is not JSON that can be repaired or YAML, or of no known tool.
    """
    text = read_text(path, "a configuration, a JSON or YAML file", LONGEST_TEXT)
    return import_text(text, str(path), architecture=architecture, pretrained=pretrained, overrides=overrides)


def import_text(
    text: str, name: str, *, architecture: str = "", pretrained: str = "", overrides: Sequence[str] = ()
) -> Imported:
    """Do the same as `import_file` with a text; `name` stands for the file in messages."""
    tool, found, repairs = _read(text, name)
    settings = found.settings
    for key, value in (("architecture", architecture), ("pretrained", pretrained)):
        if value:
            settings[f"model.{key}"] = Setting(value, f"--{key}")
    set_here = {override.partition("=")[0].replace(" ", "") for override in overrides}
    refused = [
        on_one_line(f"{name}:{verdict.line}: {verdict.key} = {shown(verdict.value)}: {verdict.reason}")
        for verdict in found.refused()
    ]
    source = Path(name).name
    wrong = _override(settings, preset_text(settings, source, tool), name, overrides)
    pretrained = settings["model.pretrained"].value if "model.pretrained" in settings else ""
    if pretrained and "data.tokenizer" not in settings:
        found.fill("data.tokenizer", "data.tokenizer", "the model's own", pretrained)
    if not settings.setdefault("data.source", Setting("", _NO_DATA)).value:
        found.assume("data.source", "no data is named, and nothing trains without: --set data.source=NAME")
    idle = {field for field in _OF_A_WARM_UP if field not in set_here} if not _warms_up(settings) else set()
    for field in idle & settings.keys():
        del settings[field]
        for verdict in [each for each in found.in_order() if each.fields == (field,)]:
            found.judge(verdict.key, "meaningless here", "there is no warm-up")
    # Other mistakes than in --set follow from the refused keys, if there are any.
    refused += [line for line in wrong if not refused or line.startswith("--set")]
    return Imported(
        name=name,
        repairs=tuple(sorted(repairs)),
        verdicts=tuple(found.in_order()),
        assumed=tuple(each for each in found.assumed if each.field not in {*set_here, *idle}),
        names_model=names_a_model(settings),
        names_data=bool(settings["data.source"].value),
        tool=tool,
        refused=tuple(refused),
        preset="" if refused else preset_text(settings, source, tool),
    )


def _warms_up(settings: Mapping[str, Setting]) -> bool:
    lengths = (settings.get(f"schedule.{key}") for key in ("warmup_steps", "warmup_fraction"))
    return any(length is not None and length.value for length in lengths)


def _read(text: str, name: str) -> tuple[str, Findings, list[Repair]]:
    """Return the tool that a text was written for, what was found in it, and how it was repaired."""
    if Path(name).suffix.lower() in (".yaml", ".yml") or looks_like_yaml(text):
        document = read_yaml(text, name)
        for tool, tells, read in _RECIPES:
            if tells(document.values):
                found = Findings(document.values, document.lines)
                read(found, Path(name).parent)
                return tool, found, []
        raise _no_known_kind(document, name)
    document = read_document(text, name)
    found, moves = deepspeed.read(document.values, document.lines)
    if document.values and not found.refused() and not any(is_known(path) for path in found.members):
        raise _no_known_kind(document, name)
    return "DeepSpeed", found, [*document.repairs, *moves]


def _no_known_kind(document: Document, name: str) -> ConfigurationError:
    keys = ", ".join(f'"{on_one_line(key)[:40]}"' for key in list(document.values)[:3])
    return ConfigurationError(
        f"{on_one_line(name)}: has keys such as {keys}, and is of no tool that is read here: {_KINDS}"
    )


def _override(
    settings: dict[str, Setting], preset: str, name: str, overrides: Sequence[str]
) -> Sequence[str]:
    """Put `overrides` on top of the settings of `preset`. Return the mistakes in the whole, a sentence each.

    A model that is still to be named is no mistake.
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
        table, field, *_ = [*key.split("."), ""]
        if field:
            settings[f"{table}.{field}"] = Setting(values[table][field], "--set")
        else:
            settings[table] = Setting(values[table], "--set")
    return ()
