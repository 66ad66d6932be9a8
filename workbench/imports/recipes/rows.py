"""A table of a tool's keys: each is taken as it is, means nothing here, or is refused unless it is off.

A tool's own functions judge first what needs more than a row; what no row and no function knows is left out, and said.
"""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NamedTuple

from workbench.config import read_text
from workbench.errors import ConfigurationError
from workbench.imports.deepspeed.optimizer import TRAINERS_BETAS, TRAINERS_RATE
from workbench.imports.deepspeed.placement import read_placement
from workbench.imports.deepspeed.precision import read_precision
from workbench.imports.findings import DOCUMENTED, Auto, Findings, Member
from workbench.imports.lenient_json import LONGEST_TEXT, read_document

TRAINERS = "the Hugging Face Trainer's default"
_NEAR = 0.85
"""Of the same letters in the same order: a misspelling, and no other key of the tool."""
OFF = (False, None, "", 0, "none", "no", "auto", "NO")


class Take(NamedTuple):
    """The key decides this field, with its own value."""

    field: str
    reason: str = "the same"


class Off(NamedTuple):
    """The key is refused unless it is off."""

    reason: str


Row = Take | Off | str
"""A str: the reason for which the key means nothing here."""


def judge(found: Findings, table: Mapping[str, Row], tool: str) -> None:
    """Give a verdict to every key of the file that has none yet. A row of a section goes for all within it."""
    for path, member in found.members.items():
        if path in found.verdicts:
            continue
        around = next((path[:n] for n in range(1, len(path)) if found.is_refused(".".join(path[:n]))), None)
        if around is not None:
            found.judge(member, "refused", f"part of {'.'.join(around)}", within=".".join(around))
            continue
        names = [".".join(path[:length]) for length in range(len(path), 0, -1)]
        row = next((table[name] for name in names if name in table), None)
        if isinstance(member.value, Mapping) and (row is None or isinstance(row, str)) and member.value:
            continue
        if member.value is None or member.value in ("", [], {}):
            found.judge(member, "meaningless here", "nothing is set")
        elif row is None:
            _judge_unknown(found, member, table, tool)
        elif isinstance(row, str):
            found.judge(member, "meaningless here", row)
        elif isinstance(row, Off):
            if any(member.value is each or member.value == each for each in OFF):
                found.judge(member, "meaningless here", "it is off")
            else:
                found.refuse(member, row.reason)
        else:
            take(found, member.key, row)


def _judge_unknown(found: Findings, member: Member, table: Mapping[str, Row], tool: str) -> None:
    """Leave a key out, or refuse it where it is nearly one that decides something."""
    reason = f"{tool}'s reader here does not know it"
    near = next(iter(get_close_matches(member.key, sorted({*table, *found.asked}), n=1, cutoff=_NEAR)), None)
    if near is None:
        found.judge(member, "unknown", f"{reason}, so it is left out")
    elif isinstance(table.get(near), str):
        found.judge(member, "unknown", f'{reason}, so it is left out; did you mean "{near}"?')
    else:
        found.refuse(member, f'{reason}; did you mean "{near}"? If not, leave it out')


def take(found: Findings, key: str, row: Take) -> None:
    """Set a field from a key of the file, by the field's own type."""
    default = DOCUMENTED[row.field].default
    value: Any
    if isinstance(default, bool):
        value = found.switch(key)
    elif isinstance(default, int):
        value = found.whole(key)
    elif isinstance(default, float):
        value = found.number(key)
        value = float(value) if isinstance(value, int) else value
    else:
        value = found.word(key)
    if isinstance(value, Auto):
        found.auto(row.field, key)
    elif value is not None:
        found.put(row.field, value, key, row.reason, "used")


def fill(found: Findings, values: Mapping[str, Any], reason: str) -> None:
    """Set each field that the file has not decided to the tool's own default."""
    for field, value in values.items():
        if field not in found.settings:
            found.fill(field, field, reason, value)


TRAINERS_OPTIMIZER = {
    "optimizer.learning_rate": TRAINERS_RATE,
    "optimizer.betas": TRAINERS_BETAS,
    "optimizer.eps": 1e-8,
    "optimizer.weight_decay": 0.0,
}

# Keys that several tools have, each under a name of its own

_SHAPES = {
    "constant": "constant",
    "constant_with_warmup": "constant",
    "linear": "linear",
    "cosine": "cosine",
    "cosine_with_min_lr": "cosine",
    "warmup_stable_decay": "wsd",
}


def read_schedule(
    found: Findings, key: str, warmup: str = "warmup_steps", ratio: str = "warmup_ratio"
) -> None:
    """Judge the kind of schedule and its warm-up, in steps or as a share of all."""
    shape = found.word(key)
    if shape is not None and shape in _SHAPES:
        found.put("schedule.type", _SHAPES[shape], key, "the learning rate's way after the warm-up")
    elif shape is not None:
        found.refuse(key, f"not a schedule that is built; these are: {', '.join(_SHAPES)}")
    shares = [found.number(name) for name in (warmup, ratio)]
    steps, share = (None if isinstance(each, Auto) else each for each in shares)
    if steps is not None and not 0 < steps < 1:
        take(found, warmup, Take("schedule.warmup_steps", "steps of the warm-up"))
        found.judge(ratio, "meaningless here", f"{warmup} decides")
        return
    name, share = (warmup, steps) if steps is not None else (ratio, share)
    if share is None:
        return
    found.put("schedule.warmup_fraction", float(share), name, "the warm-up, as a share of all steps", "used")


def fill_end_of_schedule(found: Findings) -> None:
    """Let the learning rate fall to 0, as it does in the tools that are read here, where the file says nothing else."""
    if found.settings["schedule.type"].value != "constant":
        fill(found, {"schedule.min_ratio": 0.0}, "the learning rate falls to 0 there")


def read_precision_keys(found: Findings, bf16: tuple[str, ...], fp16: str) -> None:
    """Judge the switches of the 16-bit formats."""
    for key in (*bf16, fp16):
        wanted = "fp16" if key == fp16 else "bf16"
        value = found.switch(key)
        if value is True:
            found.put(
                "train.precision", wanted, key, f"weights and arithmetic in {wanted}, master weights in fp32"
            )
        elif isinstance(value, Auto):
            found.put(
                "train.precision", "auto", key, "bf16 on a GPU that computes in it, fp16 on an older one"
            )
        elif value is False:
            found.judge(key, "used", f"{wanted} is not used")
    fill(found, {"train.precision": "fp32"}, "no 16-bit format is on")


def read_optimizer_name(found: Findings, key: str) -> None:
    """Judge the name of a rule: AdamW in any of its implementations."""
    name = found.word(key)
    if name is None:
        return
    plain = name.lower().rpartition(".")[2].replace("_", "")
    if "8bit" in plain and "adamw" in plain:
        reason = 'AdamW with exact moments; offload.state_format = "compact" has 8-bit ones'
        found.put("optimizer.type", "adamw", key, reason)
    elif plain.startswith(("adamw", "pagedadamw")) and not plain.endswith(
        ("4bit", "anyprecision", "schedulefree")
    ):
        found.put("optimizer.type", "adamw", key, "decay apart from the gradient", "used")
    elif plain == "adam":
        found.put("optimizer.type", "adam", key, "decay through the gradient", "used")
    else:
        found.refuse(key, "another update rule than Workbench's; AdamW and Adam are built")


def read_held_out(found: Findings, key: str) -> None:
    """Judge the share of the data that is held out: a run always holds some out."""
    size = found.number(key)
    if size == 0:
        found.judge(key, "mapped", "a run always holds some out; data.validation_fraction has its default")
    elif isinstance(size, (int, float)) and size >= 1:
        found.refuse(key, "must be a share below 1 here, not a number of records")
    elif size is not None:
        take(found, key, Take("data.validation_fraction", "share of the data that is held out"))


def read_betas(found: Findings, first: str, second: str) -> None:
    values = [found.number(first), found.number(second)]
    betas = tuple(
        default if value is None or isinstance(value, Auto) else float(value)
        for value, default in zip(values, TRAINERS_BETAS, strict=True)
    )
    for key in (first, second):
        if found.get(key) is not None and not found.is_refused(key):
            found.put("optimizer.betas", betas, key, "decay rates of the two means", "used")


def read_trackers(found: Findings, key: str) -> None:
    member = found.get(key)
    if member is None:
        return
    names = member.value if isinstance(member.value, list) else [member.value]
    known = [name for name in names if name in ("tensorboard", "wandb", "trackio", "mlflow")]
    if known:
        found.put("log.tracker", known, key, "programs that get the metrics too")
    else:
        found.judge(
            key, "meaningless here", "metrics are in the run's folder; `workbench metrics` prints them"
        )


def is_there(path: Path) -> bool:
    """Return True for a file or a folder; False also for a name that none can have."""
    try:
        return path.expanduser().exists()
    except (OSError, ValueError, RuntimeError):
        return False


def read_deepspeed_file(found: Findings, key: str, folder: Path) -> None:
    """Take the placement and the loss scale from the DeepSpeed file that a recipe names, beside it or here."""
    name = found.word(key)
    if not name:
        return
    path = next(filter(is_there, (folder / name, folder / Path(name).name, Path(name))), None)
    if path is None:
        found.judge(
            key,
            "unknown",
            "there is no such file here, so nothing is offloaded by it; --set offload.state=host does",
        )
        return
    try:
        document = read_document(read_text(path, "a DeepSpeed configuration", LONGEST_TEXT), str(path))
    except ConfigurationError as error:
        found.refuse(key, str(error))
        return
    inner = Findings(document.values, document.lines)
    read_precision(inner)
    read_placement(inner)
    for verdict in inner.refused():
        found.refuse(key, f"{verdict.key} = {verdict.value!r:.80}: {verdict.reason}")
    taken = {
        field: setting
        for field, setting in inner.settings.items()
        if field.startswith(("offload.", "loss_scale."))
    }
    for field, setting in taken.items():
        found.settings.setdefault(field, setting._replace(why=f"{name}: {setting.why}"))
    found.judge(key, "mapped", "its placement is taken; the rest is this file's", *taken)


def read_fsdp(found: Findings) -> None:
    """Take what FSDP offloads and recomputes."""
    for key in ("fsdp_config.fsdp_offload_params", "fsdp_config.fsdp_cpu_offload"):
        if found.switch(key) is True:
            found.put("offload.weights", "host", key, "weights and state are on the host")
            found.settings["offload.state"] = found.settings["offload.weights"]._replace(value="host")
    key = "fsdp_config.fsdp_activation_checkpointing"
    if found.get(key) is not None:
        take(found, key, Take("train.activation_checkpointing", "blocks compute their forward again"))
