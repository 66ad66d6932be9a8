"""The model of a [model] table on the meta device. The one place that knows what such a table may ask for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from workbench.config.schema import AdapterConfig
from workbench.model.adapter import add_adapter
from workbench.model.build import build_on_meta, model_config
from workbench.model.pretrained import find_pretrained, pretrained_config

SOME_DROPOUT = 0.1
LONG_WINDOW = 2048
"""Runs are seldom longer than wider windows: those blocks are run as if there were none."""


def model_name(table: Mapping[str, Any]) -> str:
    return str(table.get("architecture") or table.get("pretrained") or "")


def shape_of(table: Mapping[str, Any]) -> Any:
    """The transformers configuration of a [model] table: of what it describes, else of the pretrained files it names.

    Raises:
        ConfigurationError: it names no model that can be built.
        WorkbenchError: the files' description cannot be fetched.
    """
    architecture = str(table.get("architecture") or "")
    if table.get("pretrained") and not architecture:
        return _pretrained_shape(table)
    return model_config(architecture, dict(table.get("config") or {}))


def meta_model(table: Mapping[str, Any], *, windows_below: int | None = None) -> nn.Module:
    """The model in training mode. `windows_below`: attention windows are made shorter than so many tokens.

    Raises:
        ConfigurationError: it cannot be built.
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
    """A window matters only where it is shorter than the sequence: then attention gets a mask."""
    for name in ("sliding_window", "attention_chunk_size"):
        window = getattr(text, name, None)
        if isinstance(window, int) and below <= window <= LONG_WINDOW:
            setattr(text, name, max(1, below // 2))
