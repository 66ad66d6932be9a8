"""Checkpoints: a Hugging Face folder, the optimizer's raw state beside it, and a marker written last.

    checkpoints/step-00000200/
        model.safetensors, config.json, tokenizer.json, …   what `from_pretrained` loads
        state/0003-transformer.h.2.exp_avg, …                the engine's tensors, raw
        state/manifest.json                                  their dtypes, lengths and checksums; all else to resume
        DONE                                                 the manifest's checksum

Weights and state come from the engine a shard and a piece at a time, from whatever tier they are in, and go back into
whatever tier they are in then: names, dtypes and lengths are the same in all.

Invariant: a folder named `step-*` with a `DONE` that fits its manifest was whole when it was renamed into place. An
older checkpoint is removed only after a newer one is.
"""

from __future__ import annotations

import json
import os
import shutil
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from workbench.data.tokenizers import Tokenizer
from workbench.engine import OffloadEngine
from workbench.engine.disk import DiskError
from workbench.errors import WorkbenchError
from workbench.layout import ITEM_BYTES
from workbench.model.folder import has_adapter, save_model
from workbench.runs.checkpoints import (
    FORMAT_VERSION,
    DamagedFileError,
    SavedStep,
    checkpoint_name,
    step_folders,
    step_of,
)
from workbench.training.raw_files import StoredTensor, read_tensor, write_tensor

MARGIN_BYTES = 16 << 20


def save_checkpoint(
    root: Path,
    step: int,
    *,
    engine: OffloadEngine,
    model: nn.Module,
    tokenizer: Tokenizer,
    progress: dict[str, Any],
    keep: int,
) -> Path:
    """Write the checkpoint of `step` under `root` and remove all but the newest `keep`.

    `progress` is what the training loop needs to go on; it comes back in the manifest.

    Raises:
        WorkbenchError: the disk has no room or refuses; nothing that was there before is touched.
    """
    target = root / checkpoint_name(step)
    working = root / f".{checkpoint_name(step)}.partial"
    try:
        root.mkdir(parents=True, exist_ok=True)
        remove_leftovers(root)
        _check_room(root, target, engine, model)
        (working / "state").mkdir(parents=True)
        save_model(model, engine.weights(), working)
        tokenizer.save_pretrained(working)
        files = _write_state(working / "state", engine.state())
        manifest = {
            "version": FORMAT_VERSION,
            "step": step,
            "files": files,
            "model_files": {p.name: p.stat().st_size for p in sorted(working.iterdir()) if p.is_file()},
            "engine": engine.counters(),
            "progress": progress,
        }
        text = json.dumps(manifest).encode()
        (working / "state" / "manifest.json").write_bytes(text)
        for path in (*working.rglob("*"), working):
            _sync(path)
        (working / "DONE").write_text(json.dumps({"step": step, "manifest_crc32": zlib.crc32(text)}))
        _sync(working / "DONE")
        _sync(working)
        _put_in_place(working, target)
        _sync(root)
    except (OSError, DiskError) as error:
        shutil.rmtree(working, ignore_errors=True)
        reason = getattr(error, "strerror", None) or error
        raise WorkbenchError(
            f"the checkpoint of step {step} could not be written to {root}: {reason}; "
            "checkpoints that were there before are untouched"
        ) from error
    _remove_old(root, keep)
    return target


def load_state(saved: SavedStep, engine: OffloadEngine) -> None:
    """Read a checkpoint's state straight to where the engine keeps it, in whatever tier it was when it was saved.

    Raises:
        DamagedFileError: a file is missing, of another length or damaged, or the state is of another configuration;
            the engine's state is then undefined, and another checkpoint or initialisation must follow.
        DiskError: the engine's own disk tier does not take it.
    """
    files = saved.manifest["files"]
    needed = {name: (_dtype_name(tensor), tensor.numel()) for name, tensor in engine.state()}
    if set(files) != set(needed):
        odd = sorted(set(files).symmetric_difference(needed))[0]
        raise DamagedFileError(
            f"{saved.path} holds the state of another model, precision, state format or overlap ({odd})"
        )
    for name, (dtype, elements) in needed.items():
        entry = files[name]
        if (entry["dtype"], entry["elements"]) != (dtype, elements):
            raise DamagedFileError(
                f"{saved.path}: {name} has {entry['elements']:,} elements of {entry['dtype']}, "
                f"the run needs {elements:,} of {dtype}"
            )
    # One at a time: a tensor on disk keeps a record of itself in memory.
    for name, tensor in engine.state():
        entry = files[name]
        read_tensor(saved.path / "state" / entry["file"], tensor, entry["crc32"])
    engine.restore(saved.manifest["engine"])


def remove_leftovers(root: Path) -> None:
    """Clear up after a save that was cut off; call only as the run's one trainer."""
    for path in root.glob(".step-*.replaced"):
        target = root / path.name.removeprefix(".").removesuffix(".replaced")
        if not target.exists():
            path.rename(target)
    for path in root.glob(".step-*"):
        shutil.rmtree(path, ignore_errors=True)


def set_aside_after(root: Path, step: int) -> None:
    """Rename what stands under `root` as later than `step`: it was found damaged, and must not count as kept."""
    for path in step_folders(root):
        if step_of(path) > step:
            aside = root / f"damaged-{path.name}"
            shutil.rmtree(aside, ignore_errors=True)
            path.rename(aside)


def _write_state(folder: Path, state: Iterable[tuple[str, Tensor | StoredTensor]]) -> dict[str, Any]:
    files = {}
    for name, tensor in state:
        file = name.replace("/", ".")
        checksum = write_tensor(folder / file, tensor)
        files[name] = {
            "file": file,
            "dtype": _dtype_name(tensor),
            "elements": tensor.numel(),
            "crc32": checksum,
        }
    return files


def _dtype_name(tensor: Tensor | StoredTensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _check_room(root: Path, target: Path, engine: OffloadEngine, model: nn.Module) -> None:
    need = MARGIN_BYTES + sum(tensor.numel() * tensor.element_size() for _, tensor in engine.state())
    for shard in engine.layout.shards:
        need += sum(segment.numel * ITEM_BYTES[segment.dtype] for segment in shard.segments)
        if not has_adapter(model):
            need += sum(parameter.bytes for parameter in shard.frozen)
    free = shutil.disk_usage(root).free
    if free < need:
        raise WorkbenchError(
            f"no room for the checkpoint {target}: it needs {need / 2**20:,.0f} MiB and the disk has "
            f"{free / 2**20:,.0f} MiB free; make room, or lower checkpoint.keep. Checkpoints that were there "
            "before are untouched"
        )


def _put_in_place(working: Path, target: Path) -> None:
    if target.exists():
        # The same step saved twice (a damaged one, or a run resumed from an earlier step): move the old one aside
        # first, since a folder cannot be renamed over one that is not empty.
        aside = target.with_name(f".{target.name}.replaced")
        shutil.rmtree(aside, ignore_errors=True)
        target.rename(aside)
        working.rename(target)
        shutil.rmtree(aside, ignore_errors=True)
    else:
        working.rename(target)


def _remove_old(root: Path, keep: int) -> None:
    for path in step_folders(root)[:-keep]:
        # Without its marker a folder that is only half removed is no checkpoint.
        (path / "DONE").unlink(missing_ok=True)
        shutil.rmtree(path, ignore_errors=True)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
