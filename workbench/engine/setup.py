"""What an engine's arguments mean before any memory is taken: whether they go together, and who does the arithmetic."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from workbench.engine.arithmetic.tier_arithmetic import Arithmetic, TorchArithmetic
from workbench.optimizer.extension import MissingExtensionWarning, missing_extension
from workbench.optimizer.settings import AdamW
from workbench.state_formats import MOMENTS, StateFormat


def check_arguments(
    *,
    optimizer: object,
    weights: str,
    state: str,
    state_format: str,
    gradient_accumulation: int,
    gradient_clipping: float,
    overlap: str,
    delay_warmup: int,
    activation_checkpointing: bool,
    activations: str,
    disk_path: str | Path | None,
) -> None:
    """Raise ValueError where one is out of range, or two contradict each other, TypeError for a foreign optimizer."""
    if not isinstance(optimizer, AdamW | None):
        raise TypeError(
            f"optimizer: expected AdamW of workbench.engine, which holds the numbers of one; got {type(optimizer)}"
        )
    for name, value, known in (
        ("weights", weights, ("device", "host", "disk")),
        ("state", state, ("device", "host", "disk")),
        ("state_format", state_format, tuple(MOMENTS)),
        ("overlap", overlap, ("serial", "exact", "delayed")),
        ("activations", activations, ("device", "host")),
    ):
        _check_choice(name, value, known)
    if state == "device" and state_format != "exact":
        raise ValueError(f"state_format = {state_format!r}: on the device the state is exact")
    if gradient_accumulation < 1:
        raise ValueError(f"gradient_accumulation = {gradient_accumulation}: expected 1 or more")
    if not gradient_clipping >= 0:
        raise ValueError(f"gradient_clipping = {gradient_clipping}: expected 0 (off) or more")
    if delay_warmup < 0:
        raise ValueError(f"delay_warmup = {delay_warmup}: expected 0 or more")
    if "disk" in (weights, state) and not disk_path:
        raise ValueError("disk_path: the disk tier needs a folder on a fast disk")
    if activations == "host" and not activation_checkpointing:
        raise ValueError("activations = 'host' needs activation checkpointing")


def _check_choice(name: str, value: object, known: Sequence[str]) -> None:
    if value not in known:
        raise ValueError(f"{name} = {value!r}: expected {' or '.join(map(repr, known))}")


def host_arithmetic(threads: int | Literal["auto"], state_format: StateFormat) -> Arithmetic:
    """The native host optimizer; torch's operations, with a warning, where its extension is missing.

    Raises:
        ValueError: `state_format` needs the extension.
    """
    missing = missing_extension()
    if missing is None:
        from workbench.engine.arithmetic.host_arithmetic import HostArithmetic

        return HostArithmetic(threads)
    if state_format != "exact":
        raise ValueError(f"state_format = {state_format!r}: {missing}; without it the state is kept exact")
    warnings.warn(
        f"{missing}; until then torch's fused AdamW does its work, slower", MissingExtensionWarning, 4
    )
    return TorchArithmetic()
