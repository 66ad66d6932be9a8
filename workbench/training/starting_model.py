"""The model that a run starts from: random weights, pretrained ones, or what its own last checkpoint describes.

A pretrained model's shape is that of its files; a [model] table beside them only has to agree. A run that goes on needs
those files no more: its newest checkpoint says what model it is, and the state beside it holds every trained weight.

Invariant: the description comes first and costs next to nothing; no weight is fetched before the run is known to fit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from workbench.config import RunConfig
from workbench.config.schema import AdapterConfig, ModelConfig
from workbench.engine.blocks.discovery import FoundUnit
from workbench.errors import ConfigurationError
from workbench.model.adapter import AdapterUnits, add_adapter, store_base_as
from workbench.model.build import UnitInitializer, build_on_meta, model_config
from workbench.model.loading import PretrainedUnits
from workbench.model.pretrained import (
    PretrainedFiles,
    check_description,
    files_in,
    find_pretrained,
    local_folder,
    pretrained_config,
)
from workbench.profiles.model_profile import model_table
from workbench.runs import RunDirectory
from workbench.runs.checkpoints import DamagedFileError, check_model_files, find_checkpoints

Report = Callable[[str], None]
Materialize = Callable[[FoundUnit], None]


@dataclass(frozen=True)
class StartingModel:
    """`shape`: the transformers configuration. `model`: built of it, on the meta device. `files`: of pretrained
    weights, or of a checkpoint that `resumed` says the run goes on from."""

    settings: ModelConfig
    shape: Any
    model: nn.Module
    files: PretrainedFiles | None = None
    resumed: bool = False
    plain: nn.Module | None = None
    """The model as it was before an adapter was put on it, where one was."""

    def with_adapter(
        self, adapter: AdapterConfig | None, storage: torch.dtype, report: Report
    ) -> StartingModel:
        """Return the same with `adapter` on its model, whose own weights are then frozen, and stored as `storage`.

        Raises:
            ConfigurationError: peft is missing, or `adapter` names what is not there.
        """
        if adapter is None:
            return self
        if self.files is None:
            report(
                "warning: [adapter]: its base weights are random and are not trained; name trained ones in "
                "model.pretrained, or leave the table out"
            )
        commit = "" if self.files is None else self.files.commit
        base = self.settings.pretrained
        plain = add_adapter(self.model, adapter, base=base, revision=commit, log=report)
        store_base_as(self.model, storage)
        return replace(self, plain=plain)

    def table(self, config: RunConfig) -> dict[str, Any]:
        """Return the [model] table of `config`, with its files where they are now."""
        table = model_table(config)
        if self.resumed and self.files is not None:
            table |= {"pretrained": str(self.files.folder), "revision": ""}
        return table

    @property
    def is_here(self) -> bool:
        """True where nothing has to be fetched for it."""
        return self.files is None or not self.files.commit

    def weights(self, seed: int, report: Report, model: nn.Module | None = None) -> Materialize:
        """Return a function that gives a unit of `model` (default: its own) its first values; fetch missing files.

        Raises:
            ConfigurationError: files are missing, damaged, or another model's.
            WorkbenchError: they cannot be fetched.
        """
        if self.plain is not None and model is None:
            return AdapterUnits(self.model, self.plain, self.weights(seed, report, self.plain), seed)
        model = self.model if model is None else model
        if self.files is None:
            return UnitInitializer(model, seed)
        files = self.files
        if not self.resumed:
            files = find_pretrained(
                files.name,
                files.commit,
                trust_remote_code=self.settings.trust_remote_code,
                log=report,
            )
        units = PretrainedUnits(model, files, seed, blank=self.resumed)
        for sentence in units.warnings:
            report(f"warning: {sentence}")
        return units


def starting_model(config: RunConfig, directory: RunDirectory | None, report: Report) -> StartingModel:
    """Return the model of `config`, on the meta device; `directory` is the run's own, which may have checkpoints.

    Raises:
        ConfigurationError: there is no such model, it cannot be built, or table and files differ.
        WorkbenchError: what describes it cannot be fetched.
    """
    settings = config.model
    described = model_config(settings.architecture, dict(settings.config)) if settings.architecture else None
    if not settings.pretrained:
        assert described is not None, "the configuration names one or the other"
        return StartingModel(settings, described, build_on_meta(described))
    # An adapter's checkpoints have nothing of the model beneath it.
    if directory is not None and config.adapter is None:
        saved = _saved_model(settings, directory)
        if saved is not None:
            return saved
    if settings.revision and local_folder(settings.pretrained) is not None:
        report(
            f'warning: model.revision = "{settings.revision}" has no effect: model.pretrained is a folder, '
            "which has no revisions"
        )
    trusted = settings.trust_remote_code
    files = find_pretrained(
        settings.pretrained, settings.revision, weights=False, trust_remote_code=trusted, log=report
    )
    start = _built(settings, files)
    if described is not None:
        check_description(described, settings.config, start.shape, start.model, str(files.folder))
    if config.data.tokenizer == "bytes":
        report(
            'warning: data.tokenizer = "bytes": bytes mean nothing to a pretrained model; its own tokenizer is at the '
            f'same place (data.tokenizer = "{settings.pretrained}")'
        )
    return start


def give_token_ids(start: StartingModel, end_of_text: int) -> None:
    """Set the token that begins and ends texts in the model's configurations where they have none."""
    named = start.settings.config
    model: Any = start.model
    for described in (model.config, getattr(model, "generation_config", None)):
        for key in ("bos_token_id", "eos_token_id"):
            if described is None or (start.files is None and key in named):
                continue
            if start.files is None or getattr(described, key, None) is None:
                setattr(described, key, end_of_text)


def _built(settings: ModelConfig, files: PretrainedFiles, *, resumed: bool = False) -> StartingModel:
    trusted = settings.trust_remote_code
    shape = pretrained_config(files, trust_remote_code=trusted)
    model: Any = build_on_meta(shape, trust_remote_code=trusted)
    generation = _generation_config(files)
    if generation is not None:
        model.generation_config = generation
    return StartingModel(settings, shape, model, files, resumed)


def _saved_model(settings: ModelConfig, directory: RunDirectory) -> StartingModel | None:
    """Return the model of the newest checkpoint with a readable description; None where there is none."""
    for saved in find_checkpoints(directory.checkpoints, lambda _: None):
        try:
            check_model_files(saved, weights=False)
            return _built(settings, files_in(saved.path, str(saved.path)), resumed=True)
        except (ConfigurationError, DamagedFileError):
            continue
    return None


def _generation_config(files: PretrainedFiles) -> Any:
    """Return the model's generation configuration, which is saved with it; None where it has none that can be saved."""
    from transformers import GenerationConfig

    if not (files.folder / "generation_config.json").is_file():
        return None
    try:
        found: Any = GenerationConfig.from_pretrained(files.folder)
    except Exception:
        return None
    # Saving holds it to more than loading does once anything in it was changed.
    for _ in range(2):
        try:
            found.validate(strict=True)
            return found
        except ValueError:
            found.do_sample = True
    return None
