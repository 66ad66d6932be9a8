"""Options that are right in themselves and do nothing in this configuration or on this machine: told, never refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from workbench.config.problems import toml_value
from workbench.config.schema import OffloadConfig, RunConfig


class NoEffect(NamedTuple):
    """`idle(run, shared_memory)`: whether the offload field `key` does nothing; `because` says why."""

    key: str
    idle: Callable[[RunConfig, bool], bool]
    because: str


_DEFAULTS = OffloadConfig()

NO_EFFECT: tuple[NoEffect, ...] = (
    NoEffect(
        "delay_warmup",
        lambda run, shared: (
            run.offload.delay_warmup != _DEFAULTS.delay_warmup and run.offload.overlap != "delayed"
        ),
        'offload.overlap is not "delayed"',
    ),
    NoEffect(
        "disk_path",
        lambda run, shared: (
            bool(run.offload.disk_path) and not {"disk", "auto"} & {run.offload.weights, run.offload.state}
        ),
        "neither weights nor state are on disk",
    ),
    NoEffect(
        "activations",
        lambda run, shared: run.offload.activations == "host" and shared,
        "the device computes in the host's memory",
    ),
    NoEffect(
        "weights",
        lambda run, shared: run.offload.weights == "host" and shared,
        "the device computes in the host's memory",
    ),
    NoEffect(
        "device_fraction",
        lambda run, shared: run.offload.device_fraction > 0 and shared and run.offload.state != "disk",
        "the device computes in the host's memory",
    ),
)


def without_effect(config: RunConfig, *, shared_memory: bool) -> Iterator[str]:
    """A sentence for every option that does nothing. `shared_memory`: the device computes in the host's memory."""
    for row in NO_EFFECT:
        if row.idle(config, shared_memory):
            value = toml_value(getattr(config.offload, row.key))
            yield f"offload.{row.key} = {value} has no effect: {row.because}"
