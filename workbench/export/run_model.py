"""The model of a run's checkpoint with real weights: from its own files, or an adapter's from its base and the adapter.

The base of an adapter is what the run was started from: pretrained files, or random weights drawn again from the run's
seed, which gives the same ones.

Invariant: units come one at a time; whoever wants them all keeps them.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from workbench.config import RunConfig, parse_config
from workbench.config.schema import AdapterConfig
from workbench.engine.blocks.discovery import FoundUnit, find_units
from workbench.errors import ConfigurationError
from workbench.export.conversion import read, stored_tensors
from workbench.export.export import Tell
from workbench.model.adapter import (
    CONFIG_FILE,
    WEIGHTS_FILE,
    adapter_file_names,
    adapter_layers,
)
from workbench.model.adapter_targets import find_targets, shared_targets
from workbench.runs import RunDirectory
from workbench.runs.checkpoints import DamagedFileError, SavedStep
from workbench.training.start.starting_model import give_token_ids, starting_model


def is_adapter(saved: SavedStep) -> bool:
    """Whether a checkpoint holds an adapter, and not a whole model."""
    return CONFIG_FILE in saved.manifest["model_files"]


def run_config(run: RunDirectory) -> RunConfig:
    """The configuration that `run` was trained by.

    Raises:
        ConfigurationError: it cannot be read.
    """
    try:
        text = run.config.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"run {run.name}: its {run.config.name} cannot be read: {error}") from error
    return parse_config(text, str(run.config))


@dataclass(frozen=True)
class AdaptedModel:
    """A checkpoint's adapter on its base, on the meta device. `plain`: the base alone. `values`: of the adapter, by the
    names of their parameters in `model`."""

    model: Any
    plain: Any
    materialize: Callable[[FoundUnit], None]
    values: dict[str, Tensor]

    def units(self, dtype: torch.dtype = torch.float32) -> Iterator[FoundUnit]:
        """The units of `model` with real values in `dtype`, those of the adapter as saved, one after the other."""
        for unit in find_units(self.model):
            self.materialize(unit)
            for name, parameter in list(unit.parameters.items()):
                if name in self.values:
                    unit.replace(name, nn.Parameter(self.values[name].to(dtype), requires_grad=False))
                elif parameter.is_floating_point():
                    unit.replace(name, nn.Parameter(parameter.data.to(dtype), requires_grad=False))
            yield unit

    def whole(self, dtype: torch.dtype = torch.float32) -> Any:
        """`model` with all its values at once in `dtype`, on the CPU, ready to compute."""
        for _ in self.units(dtype):
            pass
        return self.model.eval()

    def merged(self) -> Iterator[dict[str, Tensor]]:
        """The base with the adapter added to it in fp32, by the names of `plain`'s parameters, a unit at a time."""
        plain = {unit.name: unit for unit in find_units(self.plain)}
        for unit in self.units():
            owners = {id(owner.module) for places in unit.owners.values() for owner in places}
            for layer in adapter_layers(self.model.modules()):
                if id(layer.get_base_layer()) in owners:
                    layer.merge(adapter_names=list(layer.active_adapters))
            source = plain.get(unit.name)
            if source is not None:
                yield {name: self._value(unit, name) for name in source.parameters}
            for name, parameter in list(unit.parameters.items()):
                unit.replace(name, nn.Parameter(parameter.data.to("meta"), requires_grad=False))

    def _value(self, unit: FoundUnit, name: str) -> Tensor:
        known = unit.parameters.get(name)
        if known is None:
            path, _, attribute = name.rpartition(".")
            known = unit.parameters[f"{path}.base_layer.{attribute}"]
        return known.data


def open_adapted(
    config: RunConfig, saved: SavedStep, tell: Tell = lambda _: None, *, merging: bool = False
) -> AdaptedModel:
    """The adapter that `saved` holds on the base that its run was started from; `tell` hears how far a download is.

    Raises:
        ConfigurationError: the base cannot be had, peft is missing, or (`merging`) the adapter cannot be merged.
        WorkbenchError: the base cannot be fetched.
        DamagedFileError: the adapter's file is not what was saved.
    """

    def progress(sentence: str) -> None:
        if not sentence.startswith("warning:"):  # the run has told them
            tell(sentence)

    adapter = _saved_adapter(config, saved)
    start = starting_model(config, None, progress)
    shared = shared_targets(start.model, find_targets(start.model, adapter.targets))
    if merging and shared:
        path, other = shared[0]
        raise ConfigurationError(
            f"export: --merge would change {other} as well: {path} shares its matrix with it; export the adapter itself"
        )
    end_of_text = _end_of_text(saved)
    if end_of_text is not None:
        give_token_ids(start, end_of_text)
    start = start.with_adapter(adapter, torch.float32, progress)
    materialize = start.weights(config.train.seed, progress)
    assert start.plain is not None
    return AdaptedModel(start.model, start.plain, materialize, read_adapter(saved, start.model))


def _end_of_text(saved: SavedStep) -> int | None:
    """What the saved tokenizer ends a text with; None where it says nothing, or there is none."""
    from transformers import AutoTokenizer

    load: Any = AutoTokenizer.from_pretrained
    with contextlib.suppress(Exception):
        found = load(saved.path).eos_token_id
        return found if isinstance(found, int) else None
    return None


def read_adapter(saved: SavedStep, model: nn.Module) -> dict[str, Tensor]:
    """The values of the adapter in `saved`, fp32, by the names of the parameters of `model`.

    Raises:
        DamagedFileError: its file cannot be read, or is of another adapter.
    """
    path = saved.path / WEIGHTS_FILE
    entries = stored_tensors([path])
    parameters = dict(model.named_parameters())
    values = {}
    for name, stored in adapter_file_names(model).items():
        entry = entries.get(stored)
        if entry is None or entry.shape != tuple(parameters[name].shape):
            raise DamagedFileError(f"{path} holds no {stored} of shape {list(parameters[name].shape)}")
        values[name] = read(entry).float()
    return values


def _saved_adapter(config: RunConfig, saved: SavedStep) -> AdapterConfig:
    """The run's adapter, with the rank and the scale that the checkpoint was saved with."""
    if config.adapter is None:
        raise ConfigurationError(
            f"{saved.path} holds an adapter, and the run's configuration has no [adapter]"
        )
    path = saved.path / CONFIG_FILE
    try:
        described = json.loads(path.read_text(encoding="utf-8"))
        kept = {"rank": int(described["r"]), "alpha": float(described["lora_alpha"])}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DamagedFileError(f"{path} cannot be read: {error}") from error
    return config.adapter.model_copy(update=kept)
