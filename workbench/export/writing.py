"""Chooses how a changed export is written: its tensors converted one by one, or an adapter merged unit by unit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch

from workbench.config import RunConfig
from workbench.export.conversion import convert, stored_bytes, stored_tensors, weight_files
from workbench.export.export import DTYPES, Tell, Wish
from workbench.export.merging import merged_bytes, write_merged
from workbench.export.quiet import quiet_transformers
from workbench.export.run_model import open_adapted, run_config
from workbench.runs import RunDirectory
from workbench.runs.checkpoints import SavedStep


def write_changed(
    run: RunDirectory,
    saved: SavedStep,
    working: Path,
    wish: Wish,
    check_room: Callable[[int], None],
    tell: Tell,
) -> None:
    """Write the model of `saved` as wished into the folder `working`; `check_room` is given its bytes before.

    Raises:
        ConfigurationError, WorkbenchError, DamagedFileError, OSError: see `convert` and `write_merged`.
    """
    with quiet_transformers():
        _write_changed(run, saved, working, wish, check_room, tell)


def _write_changed(
    run: RunDirectory,
    saved: SavedStep,
    working: Path,
    wish: Wish,
    check_room: Callable[[int], None],
    tell: Tell,
) -> None:
    dtype = None if wish.dtype is None else torch_dtype(DTYPES[wish.dtype])
    if wish.merge:
        config = run_config(run)
        model = open_adapted(config, saved, tell, merging=True)
        dtype = dtype or run_dtype(config, saved)
        check_room(merged_bytes(model, dtype))
        tell("merging the adapter, a block at a time")
        write_merged(model, saved, working, dtype=dtype, largest_file_bytes=wish.largest_file_bytes)
        return
    entries = stored_tensors(weight_files(saved))
    check_room(stored_bytes(entries, dtype))
    convert(saved, entries, working, dtype=dtype, largest_file_bytes=wish.largest_file_bytes)


def run_dtype(config: RunConfig, saved: SavedStep) -> torch.dtype:
    """What the run stored its weights in."""
    known = saved.manifest.get("weights_dtype") or DTYPES.get(config.train.precision, "float32")
    return torch_dtype(known)


def torch_dtype(name: str) -> torch.dtype:
    dtype = getattr(torch, name)
    assert isinstance(dtype, torch.dtype)
    return dtype
