"""Save a checkpoint: a Hugging Face folder, the optimizer's raw state beside it, and a marker written last.

    checkpoints/step-00000200/
        model.safetensors, config.json, tokenizer.json, …   what `from_pretrained` loads
        state/0003-transformer.h.2.exp_avg, …                the engine's tensors, raw
        state/manifest.json                                  their dtypes, lengths and checksums; all else to resume
        DONE                                                 the manifest's checksum

Weights and state come from the engine a unit and a piece at a time, from whatever tier they are in: names and lengths
are the same in all.

Then those that need not stay are removed: the newest stay, every Mth, and the one of lowest validation loss.

Invariants: a folder named `step-*` with a `DONE` that fits its manifest was whole when it was renamed into place. An
older checkpoint is removed only after a newer one is in place, and has no checkpoint's name any more from then on.
`best.json` is changed only when the checkpoint that it then names is in place.
"""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from torch import Tensor, nn

from workbench.data.tokenizers import Tokenizer
from workbench.engine import OffloadEngine
from workbench.engine.disk_files import DiskError
from workbench.engine.precision import dtype_name
from workbench.engine.stored_tensor import StoredTensor
from workbench.engine.unit_memory import state_suffixes
from workbench.errors import WorkbenchError
from workbench.formatting import MIB
from workbench.layout import ITEM_BYTES, Layout
from workbench.model.safetensors_files import Spans
from workbench.model.saving import has_adapter, save_model
from workbench.runs.checkpoints import (
    BEST_FILE,
    MARGIN_BYTES,
    BestStep,
    Manifest,
    Progress,
    SavedParameter,
    SavedRegion,
    SavedUnit,
    StateFile,
    checkpoint_name,
    checksum,
    read_best,
    step_folders,
    step_of,
)
from workbench.runs.records import write_json
from workbench.system.files import crc32, sync
from workbench.training.checkpoints.load import unit_name
from workbench.training.checkpoints.state_files import Parts, whole, write_parts, write_tensors
from workbench.training.ranks import ONE_RANK, RunRanks


def save_checkpoint(
    root: Path,
    step: int,
    *,
    engine: OffloadEngine,
    model: nn.Module,
    tokenizer: Tokenizer | None,
    progress: Progress,
    removal: Removal,
    keep: int,
    keep_every: int = 0,
    best: BestStep | None = None,
    ranks: RunRanks = ONE_RANK,
) -> Path:
    """Write the checkpoint of `step` under `root` and remove what need not stay: see `remove_old`.

    `best`: the checkpoint with the lowest validation loss, which may be this one. `removal` removes old checkpoints
    beside the caller; the next save waits for it. Of several `ranks` each writes its own part of the state at the same
    time, and the first all else; one that fails fails all.

    Raises:
        WorkbenchError: the disk has no room or refuses; nothing that was there before is touched.
    """
    target = root / checkpoint_name(step)
    working = root / f".{checkpoint_name(step)}.partial"
    counters = engine.counters()
    known: dict[str, Spans] = {}
    first = ranks.rank == 0
    with ranks.together(), _written(root, step, working):
        if first:
            root.mkdir(parents=True, exist_ok=True)
            removal.wait()
            remove_leftovers(root)
            _check_room(root, target, engine, model)
            (working / "state").mkdir(parents=True)

    def save_weights() -> None:
        weights = engine.weights()
        try:
            if first:
                known.update(save_model(model, weights, working))
        finally:
            if engine.weights_are_exchanged:
                # Others wait for each unit, also where it could not be written here.
                for _ in weights:
                    pass

    parts: dict[str, Parts] = {}
    files: dict[str, StateFile] = {}
    with ranks.together(), _written(root, step, working):
        if ranks.size == 1:
            files = _write_state(working / "state", engine.state(), beside=save_weights)
        else:
            parts = write_parts(working / "state", engine.state())
    if ranks.size > 1:
        files = _joined(engine.state(), ranks.tell(parts))
        with ranks.together(), _written(root, step, working):
            save_weights()
    with ranks.together(), _written(root, step, working):
        if not first:
            return target
        if tokenizer is not None:
            tokenizer.save_pretrained(working)
        model_files = sorted(path for path in working.iterdir() if path.is_file())
        manifest = Manifest(
            step,
            files,
            saved_layout(engine.layout),
            dtype_name(engine.dtype),
            model_files={path.name: path.stat().st_size for path in model_files},
            model_checksums={path.name: list(known.get(path.name) or checksum(path)) for path in model_files},
            engine=counters,
            progress=progress,
        )
        text = manifest.to_json()
        (working / "state" / "manifest.json").write_bytes(text)
        for path in (*working.rglob("*"), working):
            sync(path)
        (working / "DONE").write_text(json.dumps({"step": step, "manifest_crc32": crc32(text)}))
        sync(working / "DONE")
        sync(working)
        _put_in_place(working, target)
        sync(root)
        if best is not None and best.step == step:
            name_best(root, best)
        remove_old(root, removal, keep=keep, keep_every=keep_every, best=best)
        return target


@contextlib.contextmanager
def _written(root: Path, step: int, working: Path) -> Iterator[None]:
    """Leave nothing behind where the disk refuses, and say so."""
    try:
        yield
    except (OSError, DiskError) as error:
        shutil.rmtree(working, ignore_errors=True)
        reason = getattr(error, "strerror", None) or error
        raise WorkbenchError(
            f"the checkpoint of step {step} could not be written to {root}: {reason}; "
            "checkpoints that were there before are untouched"
        ) from error


def _joined(
    state: Iterable[tuple[str, Tensor | StoredTensor]], told: list[dict[str, Parts]]
) -> dict[str, StateFile]:
    """Return the manifest's entries for files of which each rank has told the parts that it wrote."""
    files = {}
    for name, tensor in state:
        file = name.replace("/", ".")
        checksum, written = whole(rank[file] for rank in told)
        assert written == tensor.numel() * tensor.element_size(), "every byte is one rank's"
        files[name] = StateFile(file, dtype_name(tensor.dtype), tensor.numel(), checksum)
    return files


def remove_leftovers(root: Path) -> None:
    """Remove what a save that was cut off has left behind; call only as the run's one trainer."""
    for path in root.glob(".step-*.replaced"):
        target = root / path.name.removeprefix(".").removesuffix(".replaced")
        if not target.exists():
            path.rename(target)
    for path in root.glob(".step-*"):
        shutil.rmtree(path, ignore_errors=True)
    for path in root.glob(f".{BEST_FILE}.*"):
        path.unlink(missing_ok=True)


def set_aside_after(root: Path, step: int) -> None:
    """Rename checkpoints later than `step`: they were found damaged, and must not count as kept."""
    for path in step_folders(root):
        if step_of(path) > step:
            aside = root / f"damaged-{path.name}"
            shutil.rmtree(aside, ignore_errors=True)
            path.rename(aside)


def _write_state(
    folder: Path, state: Iterable[tuple[str, Tensor | StoredTensor]], beside: Callable[[], None]
) -> dict[str, StateFile]:
    """Write the state while `beside` writes something else; return the manifest's entries for its files."""
    written: dict[str, tuple[str, str, int]] = {}

    def files() -> Iterator[tuple[str, Tensor | StoredTensor]]:
        for name, tensor in state:
            file = name.replace("/", ".")
            written[name] = file, dtype_name(tensor.dtype), tensor.numel()
            yield file, tensor

    checksums = write_tensors(folder, files(), beside)
    return {name: StateFile(*entry, checksums[entry[0]]) for name, entry in written.items()}


def saved_layout(layout: Layout) -> list[SavedUnit]:
    """Return where each parameter's state lies, for whoever reads it under another layout."""
    return [
        SavedUnit(
            unit_name(unit),
            [
                SavedRegion(r.dtype, r.state_format, r.start, suffix)
                for r, suffix in zip(unit.regions, state_suffixes(unit), strict=True)
            ],
            [SavedParameter(s.name, s.region, s.offset, s.numel) for s in unit.segments],
        )
        for unit in layout.units
    ]


def _check_room(root: Path, target: Path, engine: OffloadEngine, model: nn.Module) -> None:
    need = MARGIN_BYTES + sum(tensor.numel() * tensor.element_size() for _, tensor in engine.state())
    for unit in engine.layout.units:
        need += sum(segment.numel * ITEM_BYTES[segment.dtype] for segment in unit.segments)
        if not has_adapter(model):
            need += sum(parameter.bytes for parameter in unit.frozen)
    free = shutil.disk_usage(root).free
    if free < need:
        raise WorkbenchError(
            f"no room for the checkpoint {target}: it needs {need / MIB:,.0f} MiB and the disk has "
            f"{free / MIB:,.0f} MiB free; make room, lower checkpoint.keep or raise "
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


class Removal:
    """Removes checkpoints in a thread: a file system may take as long to free one as a disk takes to write it.

    As a context manager it waits at the end.
    """

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "remove-checkpoint")
        self._jobs: list[Future[None]] = []

    def add(self, path: Path) -> None:
        """Remove a checkpoint without waiting: it has lost its name when this returns, its room is free later.

        A crash so leaves no half one. One that the file system keeps stays.
        """
        hidden = path.with_name(f".{path.name}.removed")
        with contextlib.suppress(OSError):
            path.rename(hidden)
            self._jobs.append(self._thread.submit(shutil.rmtree, hidden, ignore_errors=True))

    def wait(self) -> None:
        """Wait until the room of all that was added is free."""
        for job in self._jobs:
            job.result()
        self._jobs.clear()

    def __enter__(self) -> Removal:
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.shutdown(wait=True)


def remove_old(
    root: Path, removal: Removal, *, keep: int, keep_every: int = 0, best: BestStep | None = None
) -> None:
    """Remove the checkpoints under `root` that need not stay.

    The newest `keep` stay, those of every `keep_every`th step (0: none), and `best`.
    """
    for path in step_folders(root)[:-keep]:
        step = step_of(path)
        if (keep_every and step % keep_every == 0) or (best is not None and step == best.step):
            continue
        removal.add(path)


def name_best(root: Path, best: BestStep) -> None:
    """Let `best.json` name the checkpoint of `best`, which is in place.

    Raises:
        WorkbenchError: the disk refuses; the file names the one before.
    """
    write_json(
        root / BEST_FILE,
        {
            "checkpoint": checkpoint_name(best.step),
            "step": best.step,
            "validation_loss": best.validation_loss,
        },
    )


def best_before(root: Path, step: int, saved: BestStep | None) -> BestStep | None:
    """Return the best checkpoint under `root` of a run that goes on after `step`; `best.json` names it from then on.

    `saved` is the best one by the checkpoint of `step`. A checkpoint of a later step was found damaged, or is to be
    written again; one that is gone is not counted.
    """
    there = {step_of(path) for path in step_folders(root)}
    known = [best for best in (read_best(root), saved) if best and best.step <= step and best.step in there]
    if not known:
        (root / BEST_FILE).unlink(missing_ok=True)
        return None
    best = min(known, key=lambda best: (best.validation_loss, best.step))
    name_best(root, best)
    return best
