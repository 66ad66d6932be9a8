"""Checkpoints: a Hugging Face folder, the optimizer's raw state beside it, and a marker written last.

    checkpoints/step-00000200/
        model.safetensors, config.json, tokenizer.json, …   what `from_pretrained` loads
        state/0003-transformer.h.2.exp_avg, …                the engine's tensors, raw
        state/manifest.json                                  their dtypes, lengths and checksums; all else to resume
        DONE                                                 the manifest's checksum

Weights and state come from the engine a unit and a piece at a time, from whatever tier they are in, and go back into
whatever tier they are in then: names and lengths are the same in all. Under another precision, state format or overlap
they are converted: see `saved_state`.

Invariant: a folder named `step-*` with a `DONE` that fits its manifest was whole when it was renamed into place. An
older checkpoint is removed only after a newer one is.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from workbench.data.tokenizers import Tokenizer
from workbench.engine import OffloadEngine
from workbench.engine.disk_files import DiskError
from workbench.engine.precision import dtype_name
from workbench.errors import WorkbenchError
from workbench.layout import ITEM_BYTES
from workbench.model.safetensors_files import Spans
from workbench.model.saving import has_adapter, save_model
from workbench.runs.checkpoints import (
    BEST_FILE,
    FORMAT_VERSION,
    BestStep,
    SavedStep,
    check_model_files,
    checkpoint_name,
    checksum,
    step_folders,
    step_of,
)
from workbench.system.files import crc32
from workbench.training.checkpoints.kept_checkpoints import name_best, remove_old
from workbench.training.checkpoints.raw_files import StoredTensor, read_tensor, read_tensors, write_tensors
from workbench.training.checkpoints.removal import Removal, remove_now
from workbench.training.checkpoints.saved_state import Conversion, convert_state, describe_layout

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
    keep_every: int = 0,
    best: BestStep | None = None,
    removal: Removal | None = None,
) -> Path:
    """Write the checkpoint of `step` under `root` and remove what need not stay: see `remove_old`.

    `progress` is what the training loop needs to go on; it comes back in the manifest. `best`: the checkpoint with the
    lowest validation loss, which may be this one. `removal`: removes beside the caller; the next save waits for it.

    Raises:
        WorkbenchError: the disk has no room or refuses; nothing that was there before is touched.
    """
    target = root / checkpoint_name(step)
    working = root / f".{checkpoint_name(step)}.partial"
    try:
        root.mkdir(parents=True, exist_ok=True)
        if removal is not None:
            removal.wait()
        remove_leftovers(root)
        _check_room(root, target, engine, model)
        (working / "state").mkdir(parents=True)
        known: dict[str, Spans] = {}
        files = _write_state(
            working / "state",
            engine.state(),
            beside=lambda: known.update(save_model(model, engine.weights(), working)),
        )
        tokenizer.save_pretrained(working)
        model_files = sorted(path for path in working.iterdir() if path.is_file())
        manifest = {
            "version": FORMAT_VERSION,
            "step": step,
            "files": files,
            "layout": describe_layout(engine.layout),
            "weights_dtype": dtype_name(engine.dtype),
            "model_files": {path.name: path.stat().st_size for path in model_files},
            "model_checksums": {path.name: known.get(path.name) or checksum(path) for path in model_files},
            "engine": engine.counters(),
            "progress": progress,
        }
        text = json.dumps(manifest).encode()
        (working / "state" / "manifest.json").write_bytes(text)
        for path in (*working.rglob("*"), working):
            _sync(path)
        (working / "DONE").write_text(json.dumps({"step": step, "manifest_crc32": crc32(text)}))
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
    if best is not None and best.step == step:
        name_best(root, best)
    remove = remove_now if removal is None else removal.add
    remove_old(root, keep=keep, keep_every=keep_every, best=best, remove=remove)
    return target


def load_state(saved: SavedStep, engine: OffloadEngine) -> Conversion:
    """Read a checkpoint's state to where the engine keeps it, in whatever tier it was when it was saved, once its model
    files were found to be whole.

    Straight into place where precision, state format and overlap are those that it was saved under; else converted, and
    how is what comes back.

    Raises:
        ConfigurationError: it is the state of another model.
        DamagedFileError: a file is missing, of another length or damaged; the engine's state is then undefined, and
            another checkpoint or initialisation must follow.
        DiskError: the engine's own disk tier does not take it.
    """
    files = saved.manifest["files"]

    def place(name: str, tensor: Tensor | StoredTensor) -> tuple[Path, Tensor | StoredTensor, int]:
        return saved.path / "state" / files[name]["file"], tensor, files[name]["crc32"]

    check_model_files(saved)
    conversion = Conversion()
    if {name: (dtype_name(tensor.dtype), tensor.numel()) for name, tensor in engine.state()} == {
        name: (entry["dtype"], entry["elements"]) for name, entry in files.items()
    }:
        read_tensors(place(name, tensor) for name, tensor in engine.state())
    else:
        conversion = convert_state(saved, engine, lambda name, tensor: read_tensor(*place(name, tensor)))
    engine.restore(saved.manifest["engine"])
    return conversion


def remove_leftovers(root: Path) -> None:
    """Clear up after a save that was cut off; call only as the run's one trainer."""
    for path in root.glob(".step-*.replaced"):
        target = root / path.name.removeprefix(".").removesuffix(".replaced")
        if not target.exists():
            path.rename(target)
    for path in root.glob(".step-*"):
        shutil.rmtree(path, ignore_errors=True)
    for path in root.glob(f".{BEST_FILE}.*"):
        path.unlink(missing_ok=True)


def set_aside_after(root: Path, step: int) -> None:
    """Rename what stands under `root` as later than `step`: it was found damaged, and must not count as kept."""
    for path in step_folders(root):
        if step_of(path) > step:
            aside = root / f"damaged-{path.name}"
            shutil.rmtree(aside, ignore_errors=True)
            path.rename(aside)


def _write_state(
    folder: Path, state: Iterable[tuple[str, Tensor | StoredTensor]], beside: Callable[[], None]
) -> dict[str, Any]:
    """Write the state while `beside` writes something else; what the manifest says of its files."""
    files: dict[str, Any] = {}

    def named() -> Iterator[tuple[str, Tensor | StoredTensor]]:
        for name, tensor in state:
            file = name.replace("/", ".")
            files[name] = {"file": file, "dtype": dtype_name(tensor.dtype), "elements": tensor.numel()}
            yield file, tensor

    checksums = write_tensors(folder, named(), beside)
    return {name: {**entry, "crc32": checksums[entry["file"]]} for name, entry in files.items()}


def _check_room(root: Path, target: Path, engine: OffloadEngine, model: nn.Module) -> None:
    need = MARGIN_BYTES + sum(tensor.numel() * tensor.element_size() for _, tensor in engine.state())
    for unit in engine.layout.units:
        need += sum(segment.numel * ITEM_BYTES[segment.dtype] for segment in unit.segments)
        if not has_adapter(model):
            need += sum(parameter.bytes for parameter in unit.frozen)
    free = shutil.disk_usage(root).free
    if free < need:
        raise WorkbenchError(
            f"no room for the checkpoint {target}: it needs {need / 2**20:,.0f} MiB and the disk has "
            f"{free / 2**20:,.0f} MiB free; make room, lower checkpoint.keep or raise "
            "checkpoint.keep_every. Checkpoints that were there before are untouched"
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


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
