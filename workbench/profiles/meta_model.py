"""The model of a [model] table on the meta device: its parameters unit by unit, and which of its blocks are alike.

Units, names, order and ties are the engine's own: `find_units` finds them. This is the one place that knows what a
[model] table may say.

Invariant: two blocks are of one kind only where the same operations run on the same shapes in both.
"""

from __future__ import annotations

import logging
from collections.abc import Hashable, Mapping
from typing import Any

from torch import nn

from workbench.config.schema import AdapterConfig
from workbench.engine.blocks.discovery import FoundUnit, find_units
from workbench.engine.loss.chunked_loss import ChunkedLoss
from workbench.engine.precision import dtype_name
from workbench.errors import WorkbenchError
from workbench.model.adapter import add_adapter
from workbench.model.build import build_on_meta, model_config
from workbench.model.pretrained import find_pretrained, pretrained_config
from workbench.model.saving import has_adapter
from workbench.profiles.model_profile import BlockKind, Curve, ModelProfile, ParameterProfile

SOME_DROPOUT = 0.1
LONG_WINDOW = 2048
"""Runs are seldom longer than wider windows: those blocks are run as if there were none."""


def model_name(table: Mapping[str, Any]) -> str:
    return str(table.get("architecture") or table.get("pretrained") or "")


def shape_of(table: Mapping[str, Any]) -> Any:
    """Return the transformers configuration that a [model] table describes, else that of the pretrained files it names.

    Raises:
        ConfigurationError: the table names no model that can be built.
        WorkbenchError: the files' configuration cannot be fetched.
    """
    architecture = str(table.get("architecture") or "")
    if table.get("pretrained") and not architecture:
        return _pretrained_shape(table)
    return model_config(architecture, dict(table.get("config") or {}))


def meta_model(table: Mapping[str, Any], *, windows_below: int | None = None) -> nn.Module:
    """Return the model in training mode. `windows_below`: attention windows are made shorter than so many tokens.

    Raises:
        ConfigurationError: the model cannot be built.
    """
    shape = shape_of(table)
    if windows_below is not None:
        _narrow_windows(shape.get_text_config(), windows_below)
    model = build_on_meta(shape, trust_remote_code=bool(table.get("trust_remote_code")))
    adapter = table.get("adapter")
    if adapter:
        add_adapter(
            model,
            AdapterConfig(
                rank=adapter["rank"],
                dropout=SOME_DROPOUT if adapter["dropout"] else 0.0,
                targets=list(adapter["targets"]),
            ),
        )
    return model


def _pretrained_shape(table: Mapping[str, Any]) -> Any:
    trusted = bool(table.get("trust_remote_code"))
    files = find_pretrained(
        str(table["pretrained"]),
        str(table.get("revision") or ""),
        weights=False,
        fresh=False,
        trust_remote_code=trusted,
    )
    return pretrained_config(files, trust_remote_code=trusted)


def _narrow_windows(text: Any, below: int) -> None:
    """Shorten attention windows: only one that is shorter than the sequence gives attention a mask."""
    for name in ("sliding_window", "attention_chunk_size"):
        window = getattr(text, name, None)
        if isinstance(window, int) and below <= window <= LONG_WINDOW:
            setattr(text, name, max(1, below // 2))


def count_parts(model: nn.Module, name: str) -> ModelProfile:
    """Return the model profile of `model` (on any device, meta among them) without its blocks' costs.

    `flops` are those of the blocks' matrices, without attention. `name`: the model's name in the profile.

    Raises:
        WorkbenchError: a block owns a parameter that lies outside of it.
    """
    units = find_units(model)
    config: Any = getattr(model, "config", None)
    text = config.get_text_config() if config is not None else None
    head = _embedding(model, "get_output_embeddings")
    entry = _embedding(model, "get_input_embeddings")
    hidden = getattr(text, "hidden_size", None) or (0 if entry is None else entry.shape[1])
    outer = {s.name: tuple(_parameter(s, n, n) for n in s.parameters) for s in units if s.block is None}
    signatures: dict[Hashable, int] = {}
    kinds: list[BlockKind] = []
    blocks: list[tuple[str, int]] = []
    for unit in units:
        if unit.block is None:
            continue
        parameters = tuple(_parameter(unit, n, _inside(unit, n)) for n in unit.parameters)
        number = signatures.setdefault((parameters, signature(unit.block)), len(kinds))
        if number == len(kinds):
            kinds.append(BlockKind(parameters=parameters, flops=_matrix_flops(parameters), costs=None))
        blocks.append((unit.name, number))
    return ModelProfile(
        model=name,
        parameters=sum(p.numel() for s in units for p in s.parameters.values()),
        hidden_size=int(hidden),
        head_width=int(hidden if head is None else head.shape[1]),
        vocab_size=int(getattr(text, "vocab_size", None) or (0 if head is None else head.shape[0])),
        layers=len(blocks),
        positions=_whole(getattr(text, "max_position_embeddings", None)),
        before=outer.get("embedding", ()),
        after=outer.get("head", ()),
        kinds=tuple(kinds),
        blocks=tuple(blocks),
        loss_in_chunks=ChunkedLoss(model).refusal is None,
        adapter=has_adapter(model),
    )


def first_blocks(profile: ModelProfile) -> list[str]:
    """Return the name of the first block of each kind, in the order of the kinds."""
    names: dict[int, str] = {}
    for name, kind in profile.blocks:
        names.setdefault(kind, name)
    return [names[kind] for kind in sorted(names)]


def quiet_transformers() -> None:
    """Keep transformers' warnings out of a process that only profiles a model."""
    from transformers.utils import logging as transformers_logging

    transformers_logging.set_verbosity_error()
    logging.getLogger("transformers").setLevel(logging.ERROR)


def signature(block: nn.Module) -> Hashable:
    """Return what decides which operations a block runs: its modules' classes and their public switches.

    Switches are strings and booleans as they are; of a number only its presence counts (a sliding window).
    """
    return tuple(
        (
            name,
            type(module),
            tuple(
                (key, value if isinstance(value, (str, bool)) else value is None)
                for key, value in sorted(vars(module).items())
                if not key.startswith("_") and (value is None or isinstance(value, (str, bool, int)))
            ),
        )
        for name, module in block.named_modules()
    )


def _parameter(unit: FoundUnit, known: str, name: str) -> ParameterProfile:
    parameter = unit.parameters[known]
    embeds = any(isinstance(o.module, (nn.Embedding, nn.EmbeddingBag)) for o in unit.owners[known])
    return ParameterProfile(
        name=name,
        shape=tuple(parameter.shape),
        dtype=dtype_name(parameter.dtype),
        trainable=parameter.requires_grad,
        embeds=embeds,
    )


def _inside(unit: FoundUnit, known: str) -> str:
    prefix = f"{unit.name}."
    if not known.startswith(prefix):
        raise WorkbenchError(
            f"block {unit.name} owns {known}, which lies outside of it: no model profile of that"
        )
    return known[len(prefix) :]


def _matrix_flops(parameters: tuple[ParameterProfile, ...]) -> Curve:
    return Curve(per_token=2.0 * sum(p.numel for p in parameters if len(p.shape) > 1 and not p.embeds))


def _embedding(model: nn.Module, name: str) -> Any:
    """Return the weight of the input or output embedding; None where the model has none."""
    getter = getattr(model, name, None)
    module = getter() if callable(getter) else None
    weight = getattr(module, "weight", None)
    return weight if weight is not None and weight.dim() == 2 else None


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) else None
