"""Write a run's model with its adapter merged: W + scale x B A in fp32, rounded once to what is written.

Invariant: one unit of the base is in memory at a time, and no optimizer state is needed.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

from workbench.engine.storage.heap import give_large_blocks_back
from workbench.export.conversion import copy_beside_weights, rounded
from workbench.export.run_model import AdaptedModel
from workbench.model.adapter import CONFIG_FILE
from workbench.model.folder import save_model
from workbench.model.safetensors_files import LARGEST_FILE_BYTES
from workbench.runs.checkpoints import SavedStep


def merged_bytes(model: AdaptedModel, dtype: torch.dtype) -> int:
    """What the weights will take in `dtype`."""
    return sum(
        p.numel() * (dtype if p.is_floating_point() else p.dtype).itemsize for p in model.plain.parameters()
    )


def write_merged(
    model: AdaptedModel,
    saved: SavedStep,
    working: Path,
    *,
    dtype: torch.dtype,
    largest_file_bytes: int | None,
) -> None:
    """Write the base with the adapter of `saved` merged into it, in `dtype`, and what lies beside it, into `working`.

    Raises:
        WorkbenchError: a value is beyond what `dtype` holds, or the base's files cannot be read.
        OSError: the disk does not take it.
    """
    give_large_blocks_back()
    copy_beside_weights(saved, working)
    for name in (CONFIG_FILE, "README.md"):
        (working / name).unlink(missing_ok=True)
    save_model(
        model.plain,
        _rounded(model, dtype),
        working,
        largest_file_bytes=largest_file_bytes or LARGEST_FILE_BYTES,
    )


def _rounded(model: AdaptedModel, dtype: torch.dtype) -> Iterator[dict[str, Tensor]]:
    for unit in model.merged():
        yield {name: rounded(name, tensor, dtype) for name, tensor in unit.items()}
        del unit
