"""A DeepSpeed configuration in, a preset and a verdict on every key out. Nothing is written here.

The order of the readers matters once: the scheduler comes after the optimizer, whose learning rate it may replace.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workbench.config import parse_config, read_text
from workbench.errors import ConfigurationError
from workbench.imports.deepspeed.batch import read_batch
from workbench.imports.deepspeed.keys import ZERO, is_known, judge_leftovers, place
from workbench.imports.deepspeed.optimizer import read_optimizer, read_scheduler
from workbench.imports.deepspeed.placement import read_placement
from workbench.imports.deepspeed.precision import read_precision
from workbench.imports.findings import Assumed, Auto, Findings, Setting, Verdict, shown
from workbench.imports.lenient_json import LONGEST_TEXT, KeyPath, Repair, read_document
from workbench.imports.preset_text import names_a_model, preset_text
from workbench.system.terminal import on_one_line


@dataclass(frozen=True)
class Imported:
    """The outcome of an import. `preset` is empty where `refused`, a sentence for each reason, is not."""

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
        ConfigurationError: the file cannot be read, or is not JSON that can be repaired.
    """
    text = read_text(path, "a DeepSpeed configuration, a JSON file", LONGEST_TEXT)
    return import_text(text, str(path), architecture=architecture, pretrained=pretrained, overrides=overrides)


def import_text(
    text: str, name: str, *, architecture: str = "", pretrained: str = "", overrides: Sequence[str] = ()
) -> Imported:
    """Do the same as `import_file` with a text; `name` stands for the file in messages."""
    document = read_document(text, name)
    values, lines, moves = _put_in_place(document.values, document.lines)
    found = Findings(values, lines)
    for read in (read_batch, read_precision, read_optimizer, read_scheduler, read_placement, _read_logging):
        read(found)
    judge_leftovers(found)
    settings = found.settings
    for key, value in (("architecture", architecture), ("pretrained", pretrained)):
        if value:
            settings[f"model.{key}"] = Setting(value, f"--{key}")
    refused = [
        on_one_line(f"{name}:{verdict.line}: {verdict.key} = {shown(verdict.value)}: {verdict.reason}")
        for verdict in found.refused()
    ]
    source = Path(name).name
    wrong = _override(settings, preset_text(settings, source), name, overrides)
    # Other mistakes than in --set follow from the refused keys, if there are any.
    refused += [line for line in wrong if not refused or line.startswith("--set")]
    return Imported(
        name=name,
        repairs=tuple(sorted((*document.repairs, *moves))),
        verdicts=tuple(found.in_order()),
        assumed=tuple(found.assumed),
        names_model=names_a_model(settings),
        refused=tuple(refused),
        preset="" if refused else preset_text(settings, source),
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


def _read_logging(found: Findings) -> None:
    """Set [log] from steps_per_print and TensorBoard."""
    key, events = "steps_per_print", "tensorboard.enabled"
    member = found.get(key)
    if member is not None and isinstance(member.value, (int, float)) and member.value > 10**6:
        found.judge(
            key, "meaningless here", "never in a run's length; log.every says how often a line is printed"
        )
    else:
        steps = found.whole(key)
        if isinstance(steps, Auto):
            found.auto("log.every", key)
        elif steps is not None:
            found.put("log.every", steps, key, "steps between progress lines")
    section = found.members.get(("tensorboard",))
    if section is not None and isinstance(section.value, dict) and found.switch(events) is True:
        found.put("log.tracker", ["tensorboard"], events, "metrics are also written as TensorBoard events")
    else:
        found.judge(events, "meaningless here", "no events are written, as by default")


# Keys in the wrong place

_Values = dict[str, Any]
_Lines = dict[KeyPath, int]


def _put_in_place(values: _Values, lines: Mapping[KeyPath, int]) -> tuple[_Values, _Lines, list[Repair]]:
    """Return the file with its keys where DeepSpeed has them, their lines, and the repairs.

    A configuration whose braces were lost has its keys too deep: a key that its section does not have, and a section
    around that one has, moves out there, unless one of that name is there already. A whole that is wrapped in one more
    key is unwrapped; a whole that is the inside of `zero_optimization` gets that key around it.
    """
    lines, repairs = dict(lines), []
    names = list(values)
    inner = values[names[0]] if len(names) == 1 and not is_known((names[0],)) else None
    if isinstance(inner, dict) and any(is_known((key,)) for key in inner):
        repairs.append(Repair(lines[(names[0],)], f'read the inside of "{names[0]}" as the whole'))
        values, lines = inner, {path[1:]: line for path, line in lines.items() if len(path) > 1}
    elif values and all(is_known((ZERO, key)) and not is_known((key,)) for key in values):
        first = min(lines.values())
        repairs.append(Repair(first, f'read the whole as the inside of "{ZERO}"'))
        values = {ZERO: values}
        lines = {(ZERO,): first, **{(ZERO, *path): line for path, line in lines.items()}}
    # A section that has moved out may hold keys that belong farther out: search again from the start.
    while (found := next(_misplaced((), values, [values]), None)) is not None:
        path, home = found
        source, target = _inside(values, path[:-1]), _inside(values, home)
        target[path[-1]] = source.pop(path[-1])
        words = f'moved "{path[-1]}" out of {".".join(path[:-1])}; it belongs {place(".".join(home))}'
        repairs.append(Repair(lines[path], words))
        for old in [each for each in lines if each[: len(path)] == path]:
            lines[home + path[-1:] + old[len(path) :]] = lines.pop(old)
    return values, lines, repairs


def _misplaced(at: KeyPath, section: _Values, around: list[_Values]) -> Iterator[tuple[KeyPath, KeyPath]]:
    """Yield each misplaced key's path and its right section; `around`: the whole and the sections on the way."""
    for key, value in section.items():
        path = (*at, key)
        if is_known(path):
            if isinstance(value, dict):
                yield from _misplaced(path, value, [*around, value])
            continue
        homes = (depth for depth in range(len(at) - 1, -1, -1) if is_known((*at[:depth], key)))
        depth = next(homes, None)
        if depth is not None and key not in around[depth]:
            yield path, at[:depth]


def _inside(whole: _Values, path: KeyPath) -> _Values:
    for name in path:
        whole = whole[name]
    return whole
