"""The model of a [model] table on the meta device. The one place that knows what such a table may ask for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from workbench.errors import ConfigurationError
from workbench.model.build import build_on_meta, model_config

LONG_WINDOW = 2048
"""Runs are seldom longer than wider windows: those blocks are run as if there were none."""


def model_name(table: Mapping[str, Any]) -> str:
    return str(table.get("architecture") or table.get("pretrained") or "")


def shape_of(table: Mapping[str, Any]) -> Any:
    """The transformers configuration of a [model] table.

    Raises:
        ConfigurationError: it names no model that can be built.
    """
    if table.get("pretrained"):
        return _pretrained_shape(str(table["pretrained"]))
    return model_config(str(table.get("architecture", "")), dict(table.get("config") or {}))


def meta_model(table: Mapping[str, Any], *, windows_below: int | None = None) -> nn.Module:
    """The model in training mode. `windows_below`: attention windows are made shorter than so many tokens.

    Raises:
        ConfigurationError: it cannot be built.
    """
    shape = shape_of(table)
    if windows_below is not None:
        _narrow_windows(shape.get_text_config(), windows_below)
    return build_on_meta(shape)


def _pretrained_shape(name: str) -> Any:
    raise ConfigurationError(f'model.pretrained = "{name}": no census of pretrained weights can be taken yet')


def _narrow_windows(text: Any, below: int) -> None:
    """A window matters only where it is shorter than the sequence: then attention gets a mask."""
    for name in ("sliding_window", "attention_chunk_size"):
        window = getattr(text, name, None)
        if isinstance(window, int) and below <= window <= LONG_WINDOW:
            setattr(text, name, max(1, below // 2))
