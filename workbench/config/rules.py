"""What a well-formed configuration may still not ask for: contradictions, and features not built yet.

Both are tables of data. Nothing here is ever ignored quietly: a configuration that breaks a rule is refused
with a sentence. When a feature is built, its row in `NOT_BUILT_YET` is deleted and nothing else changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from workbench.config.problems import toml_value
from workbench.config.schema import RunConfig


class Broken(NamedTuple):
    """A rule that a configuration breaks; `field` is the dotted name of the field it is reported at."""

    field: str
    wrong: str
    right: str


class Contradiction(NamedTuple):
    """Fields that must agree; reported at the first of them, and only when all of them are well formed."""

    fields: tuple[str, ...]
    broken: Callable[[RunConfig], bool]
    wrong: str
    right: str


CONTRADICTIONS: tuple[Contradiction, ...] = (
    Contradiction(
        ("model.architecture", "model.pretrained"),
        lambda run: not run.model.architecture and not run.model.pretrained,
        "no model is named",
        'name one, for example architecture = "gpt2"',
    ),
    Contradiction(
        ("model.architecture", "model.pretrained"),
        lambda run: bool(run.model.architecture and run.model.pretrained),
        "two models are named",
        "give exactly one of the two",
    ),
    Contradiction(
        ("train.activation_checkpointing", "offload.weights"),
        lambda run: run.offload.weights in ("host", "disk") and not run.train.activation_checkpointing,
        "weights that leave the device cannot be trained without activation checkpointing",
        'set it to true, or offload.weights = "device"',
    ),
    Contradiction(
        ("offload.disk_path", "offload.weights", "offload.state"),
        lambda run: "disk" in (run.offload.weights, run.offload.state) and not run.offload.disk_path,
        "the disk tier has no folder",
        "name a folder on a fast disk",
    ),
    Contradiction(
        ("offload.state", "offload.weights"),
        lambda run: run.offload.weights in ("host", "disk") and run.offload.state == "device",
        "the state cannot stay on the device when the weights leave it",
        'must be "host" or "disk"',
    ),
    Contradiction(
        ("offload.state", "offload.weights"),
        lambda run: run.offload.weights == "disk" and run.offload.state == "host",
        "the weights are on disk, and the state is larger than they are",
        'must be "disk" as well',
    ),
    Contradiction(
        ("offload.state_format", "offload.state"),
        lambda run: run.offload.state_format != "exact" and run.offload.state == "device",
        "on the device the state is kept exact",
        'must be "exact", or offload.state = "host"',
    ),
    Contradiction(
        ("offload.device_fraction", "offload.state"),
        lambda run: run.offload.device_fraction > 0 and run.offload.state == "device",
        "all of the state is on the device already",
        'must be 0, or offload.state = "host"',
    ),
    Contradiction(
        ("offload.overlap", "offload.weights"),
        lambda run: run.offload.overlap == "delayed" and run.offload.weights == "disk",
        "a delayed update keeps the weights twice, and the disk would be read and written twice for it",
        'must be "exact" or "serial", or offload.weights = "host"',
    ),
    Contradiction(
        ("offload.activations", "train.activation_checkpointing"),
        lambda run: run.offload.activations == "host" and not run.train.activation_checkpointing,
        "what moves to the host is what activation checkpointing keeps",
        'must be "device", or train.activation_checkpointing = true',
    ),
)


class NotBuiltYet(NamedTuple):
    """A field of which only some values have an implementation behind them."""

    field: str
    works: tuple[Any, ...]
    """The values that work today."""
    missing: str
    """What is not built, as the subject of a sentence."""


NOT_BUILT_YET: tuple[NotBuiltYet, ...] = (
    NotBuiltYet("model.pretrained", ("",), "starting from pretrained weights"),
    NotBuiltYet("model.trust_remote_code", (False,), "code that comes with a model"),
    NotBuiltYet("data.tokenizer", ("bytes",), "any other tokenizer"),
    NotBuiltYet("schedule.type", ("constant", "linear", "cosine"), "the wsd schedule"),
    NotBuiltYet("log.tensorboard", (False,), "writing TensorBoard events"),
    NotBuiltYet("adapter", (None,), "training an adapter"),
)


def broken_rules(config: RunConfig, ill_formed: frozenset[str] = frozenset()) -> Iterator[Broken]:
    """Every rule that `config` breaks, but for those about a field that is `ill_formed` (dotted names)."""
    for rule in CONTRADICTIONS:
        if ill_formed.isdisjoint(rule.fields) and rule.broken(config):
            first, *others = rule.fields
            with_values = ", ".join(f"{other} = {toml_value(_value(config, other))}" for other in others)
            yield Broken(first, f"{rule.wrong} ({with_values})", rule.right)
    for row in NOT_BUILT_YET:
        if row.field not in ill_formed and _value(config, row.field) not in row.works:
            yield Broken(row.field, f"{row.missing} is not built yet", today(row))


def today(row: NotBuiltYet) -> str:
    """Which values of a field work today, in words."""
    if row.works == (None,):
        return f"leave [{row.field}] out"
    if row.works == ("",):
        return "must stay empty today"
    *others, last = map(toml_value, row.works)
    return f"today {', '.join(others)} or {last} works" if others else f"today only {last} works"


def _value(config: RunConfig, field: str) -> Any:
    value: Any = config
    for name in field.split("."):
        value = getattr(value, name)
    return value
