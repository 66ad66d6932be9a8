"""What a well-formed configuration may still not ask for: fields that contradict each other.

A table of data. Nothing here is ever ignored quietly: a configuration that breaks a rule is refused with a sentence.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from workbench.config.problems import toml_value
from workbench.config.schema import RunConfig
from workbench.config.tokenizers import BPE, LARGEST, SMALLEST, bpe_size


class Broken(NamedTuple):
    """A rule that a configuration breaks; `field` is the dotted name of the field it is reported at."""

    field: str
    wrong: str
    right: str


class Contradiction(NamedTuple):
    """Fields that must agree, or one of which more than its type is asked.

    Reported at the first of them, and only when all of them are well formed.
    """

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
        ("model.config", "model.architecture"),
        lambda run: bool(run.model.config) and not run.model.architecture,
        "sizes are given and no architecture has them",
        "name the architecture, or leave [model.config] out",
    ),
    Contradiction(
        ("model.revision", "model.pretrained"),
        lambda run: bool(run.model.revision) and not run.model.pretrained,
        "a revision is named of nothing",
        "name the hub id in model.pretrained, or leave it out",
    ),
    Contradiction(
        ("data.tokenizer",),
        lambda run: run.data.tokenizer.startswith(BPE) and bpe_size(run.data.tokenizer) is None,
        "no BPE of such a size can be trained",
        f'must be "{BPE}SIZE" with a whole number from {SMALLEST} (all bytes, and the end of a text) to {LARGEST:,}',
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
    Contradiction(
        ("loss_scale.minimum", "loss_scale.initial_power"),
        lambda run: run.loss_scale.minimum > 2.0**run.loss_scale.initial_power,
        "the scale would start below its minimum",
        "must be at most 2 to that power",
    ),
)


def broken_rules(config: RunConfig, ill_formed: frozenset[str] = frozenset()) -> Iterator[Broken]:
    """Every rule that `config` breaks, but for those about a field that is `ill_formed` (dotted names)."""
    for rule in CONTRADICTIONS:
        if ill_formed.isdisjoint(rule.fields) and rule.broken(config):
            first, *others = rule.fields
            with_values = ", ".join(f"{other} = {toml_value(_value(config, other))}" for other in others)
            yield Broken(first, f"{rule.wrong} ({with_values})" if others else rule.wrong, rule.right)


def _value(config: RunConfig, field: str) -> Any:
    value: Any = config
    for name in field.split("."):
        value = getattr(value, name)
    return value
