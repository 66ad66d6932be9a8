"""Load a checkpoint's state into an engine, also under another precision, state format or overlap than before.

Where these are the same, every file is read straight into place, whatever tier it was in and is to be in. Else the
state is taken over parameter by parameter, a piece at a time: master weights bit for bit, moments bit for bit where
their format is the same; else they are expanded to float32 and rounded once.

Invariant: a conversion writes nothing before every file was read to its end and found to be what was saved.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from workbench.engine import OffloadEngine
from workbench.engine.precision import DTYPES, dtype_name
from workbench.engine.stored_tensor import StoredTensor
from workbench.engine.unit_memory import STALE_WEIGHTS, state_kinds, state_suffixes
from workbench.errors import ConfigurationError
from workbench.layout import ALIGNMENT, MOMENTS, Layout, Region, StateFormat, Unit
from workbench.optimizer.reference import join_float32, split_float32
from workbench.optimizer.state_conversion import fitted_moments, state_key
from workbench.runs.checkpoints import DamagedFileError, SavedStep, check_model_files, check_state_files
from workbench.training.checkpoints.state_files import Parts, check_checksum, read_parts, read_tensors, whole
from workbench.training.ranks import ONE_RANK, RunRanks

PIECE_ELEMENTS = (1 << 20) // ALIGNMENT * ALIGNMENT
WEIGHT_KINDS = ("high", "low", "master", "working")


def load_state(saved: SavedStep, engine: OffloadEngine, ranks: RunRanks = ONE_RANK) -> list[str]:
    """Read a checkpoint's state into the engine, once its model files were found to be whole.

    Return what was converted, a sentence each; nothing where every byte is the same. Of several ranks each reads its
    own part, of what has to be converted all; what one finds damaged is so for all.

    Raises:
        ConfigurationError: it is the state of another model.
        DamagedFileError: a file is missing, of another length or damaged; the engine's state is then undefined, and
            another checkpoint or initialisation must follow.
        DiskError: the engine's own disk tier does not take it.
    """
    damaged: DamagedFileError | None = None
    converted: list[str] = []
    parts: dict[str, Parts] = {}
    try:
        converted, parts = _read(saved, engine, shared=ranks.size > 1)
    except DamagedFileError as error:
        damaged = error
    told = ranks.tell([None if damaged is None else str(damaged), parts])
    elsewhere = [message for message, _ in told if message]
    if damaged is not None or elsewhere:
        raise damaged or DamagedFileError(elsewhere[0])
    checksums = {file.file: file.crc32 for file in saved.manifest.files.values()}
    for file in parts:
        found, _ = whole(theirs[file] for _, theirs in told)
        check_checksum(saved.path / "state" / file, found, checksums[file])
    engine.restore(saved.manifest.engine)
    return converted


def _read(saved: SavedStep, engine: OffloadEngine, *, shared: bool) -> tuple[list[str], dict[str, Parts]]:
    """Fill the engine's state from a checkpoint; where it is `shared` by ranks, also return the parts that this one has
    read. Returns and raises as `load_state` does."""
    files = saved.manifest.files
    check_model_files(saved)
    if {name: (dtype_name(tensor.dtype), tensor.numel()) for name, tensor in engine.state()} == {
        name: (file.dtype, file.elements) for name, file in files.items()
    }:
        if shared:
            return [], read_parts(
                (saved.path / "state" / files[name].file, tensor) for name, tensor in engine.state()
            )
        read_tensors(
            (saved.path / "state" / files[name].file, tensor, files[name].crc32)
            for name, tensor in engine.state()
        )
        return [], {}
    return _convert(saved, engine), {}


def check_same_parameters(saved: SavedStep, present: dict[str, int]) -> None:
    """Raise ConfigurationError unless the trained parameters, elements by name, are those that were saved."""
    stored = {p.name: p.elements for unit in saved.manifest.layout for p in unit.parameters}
    odd = sorted(set(present).symmetric_difference(stored))
    if odd:
        where = "has no" if odd[0] in present else "also has a"
        raise ConfigurationError(
            f"{saved.path} is a checkpoint of another model: it {where} trained parameter {odd[0]}; "
            "leave [model] and [adapter] as they were"
        )
    for name, elements in present.items():
        if stored[name] != elements:
            raise ConfigurationError(
                f"{saved.path} is a checkpoint of another model: {name} has {stored[name]:,} elements there and "
                f"{elements:,} here; leave [model] and [adapter] as they were"
            )


def unit_name(unit: Unit) -> str:
    """Return how the names of a unit's tensors begin in `OffloadEngine.state`."""
    return f"{unit.index:04d}-{unit.name}"


def _convert(saved: SavedStep, engine: OffloadEngine) -> list[str]:
    """Fill the engine's state from a checkpoint of another layout. Returns and raises as `load_state` does."""
    check_same_parameters(saved, {s.name: s.numel for unit in engine.layout.units for s in unit.segments})
    check_state_files(saved)
    stored = _saved_parameters(saved)
    places = {
        f"{unit_name(unit)}/{kind}{suffix}": (unit, region, kind)
        for unit in engine.layout.units
        for region, suffix in zip(unit.regions, state_suffixes(unit), strict=True)
        for kind in (*state_kinds(region), STALE_WEIGHTS)
    }
    delayed = False
    # One at a time: a tensor on disk keeps a record of itself in memory.
    for name, tensor in engine.state():
        unit, region, kind = places[name]
        delayed |= kind == STALE_WEIGHTS
        try:
            _fill(tensor, unit, region, kind, stored)
        except OSError as error:
            raise DamagedFileError(f"{saved.path} cannot be read: {error.strerror or error}") from error
    return _sentences(stored, engine.layout, delayed=delayed)


@dataclass(frozen=True)
class _SavedParameter:
    """The place of one parameter's saved state: `start` is its first element in the tensors of its region."""

    dtype: str
    state_format: StateFormat
    start: int
    folder: Path
    files: dict[str, tuple[Path, torch.dtype]] = field(repr=False)
    """By kind: the file of the region's tensor, and its dtype."""

    def read(self, kind: str, first: int, last: int) -> Tensor:
        """Return elements `first` to `last` of the parameter, of a kind as it was saved."""
        # Elements of the parameter that share one of the kind's.
        per = next((t.elements for t in MOMENTS[self.state_format] if t.kind == kind), 1)
        begin = (self.start + first) // per
        if kind not in self.files:
            raise DamagedFileError(
                f"{self.folder}: its manifest lists no {kind} of a parameter that needs it"
            )
        path, dtype = self.files[kind]
        size = -((first - last) // per) * dtype.itemsize
        data = np.fromfile(path, np.uint8, size, offset=begin * dtype.itemsize)
        if len(data) != size:
            raise DamagedFileError(f"{path} ended early")
        return torch.from_numpy(data).view(dtype)

    def master(self, first: int, last: int) -> Tensor:
        """Return elements of the master weights, float32."""
        if "master" in self.files:
            return self.read("master", first, last)
        return join_float32(self.read("high", first, last), self.read("low", first, last))

    def moments(self, first: int, last: int, state_format: StateFormat) -> dict[str, Tensor]:
        """Return elements of the moments in another format, by the engine's kinds."""
        tensors = MOMENTS[self.state_format]
        entry = {state_key(t.kind, self.state_format): self.read(t.kind, first, last) for t in tensors}
        fitted = fitted_moments(torch.empty(last - first, device="meta"), entry, state_format)
        return {t.kind: fitted[state_key(t.kind, state_format)] for t in MOMENTS[state_format]}

    def values(self, kind: str, region: Region, first: int, last: int) -> Tensor:
        """Return elements `first` to `last` as the engine keeps them in `region`, of one of its kinds."""
        if kind == STALE_WEIGHTS:
            old = (
                self.read(STALE_WEIGHTS, first, last).float()
                if STALE_WEIGHTS in self.files
                else self.master(first, last)
            )
            return split_float32(old)[0] if region.dtype == "bfloat16" else old.to(DTYPES[region.dtype])
        if kind in WEIGHT_KINDS:
            if self.dtype == region.dtype:
                return self.read(kind, first, last)
            master = self.master(first, last)
            if kind == "master":
                return master
            return split_float32(master)[0 if kind == "high" else 1]
        if self.state_format == region.state_format:
            return self.read(kind, first, last)
        try:
            return self.moments(first, last, region.state_format)[kind]
        except ValueError as error:
            raise ConfigurationError(
                f"the state cannot be converted from {self.state_format} to {region.state_format}: {error}"
            ) from error


def _saved_parameters(saved: SavedStep) -> dict[str, _SavedParameter]:
    files = saved.manifest.files
    found: dict[str, _SavedParameter] = {}
    for unit in saved.manifest.layout:
        for parameter in unit.parameters:
            region = unit.regions[parameter.region]
            kinds = {}
            # Names are put together, not taken apart: units and parameters may be called anything.
            for kind in (*WEIGHT_KINDS, STALE_WEIGHTS, *(t.kind for t in MOMENTS[region.state_format])):
                entry = files.get(f"{unit.name}/{kind}{region.suffix}")
                if entry is not None:
                    kinds[kind] = saved.path / "state" / entry.file, getattr(torch, entry.dtype)
            start = parameter.offset - region.start
            found[parameter.name] = _SavedParameter(
                region.dtype, region.state_format, start, saved.path, kinds
            )
    return found


def _fill(
    tensor: Tensor | StoredTensor, unit: Unit, region: Region, kind: str, stored: dict[str, _SavedParameter]
) -> None:
    """Write one of the engine's tensors, a piece at a time; gaps of alignment become zeros."""
    per = 1 if kind == STALE_WEIGHTS else state_kinds(region)[kind][1]
    number = unit.regions.index(region)
    segments = [segment for segment in unit.segments if segment.region == number]
    for begin in range(region.start, region.stop, PIECE_ELEMENTS):
        end = min(begin + PIECE_ELEMENTS, region.stop)
        piece = torch.zeros(-(-(end - begin) // per), dtype=tensor.dtype)
        for segment in segments:
            first, last = max(begin, segment.offset), min(end, segment.offset + segment.numel)
            if first < last:
                parameter = stored[segment.name]
                values = parameter.values(kind, region, first - segment.offset, last - segment.offset)
                at = (first - begin) // per
                piece[at : at + values.numel()] = values
        at = (begin - region.start) // per
        if isinstance(tensor, Tensor):
            tensor[at : at + piece.numel()] = piece.to(tensor.device)
        else:
            tensor.write(at, piece)


def _sentences(stored: dict[str, _SavedParameter], layout: Layout, *, delayed: bool) -> list[str]:
    """Return what was converted into `layout`, a sentence each. `delayed`: its weights lag an update behind."""
    pairs = [(stored[s.name], unit.regions[s.region]) for unit in layout.units for s in unit.segments]
    dtypes = {(was.dtype, now.dtype) for was, now in pairs if was.dtype != now.dtype}
    formats = {
        (was.state_format, now.state_format) for was, now in pairs if was.state_format != now.state_format
    }
    sentences = [
        f"working weights are {now} instead of {was}, their masters the same to the bit"
        for was, now in sorted(dtypes)
    ]
    for was, now in sorted(formats):
        how = "exactly" if now == "exact" else "rounded once"
        sentences.append(f"exp_avg and exp_avg_sq are converted from {was} to {now}, {how}")
    was_delayed = any(STALE_WEIGHTS in parameter.files for parameter in stored.values())
    if was_delayed and not delayed:
        sentences.append("the delayed update that was pending is applied before the next forward")
    elif delayed and not was_delayed:
        sentences.append("nothing is pending, and updates are delayed from here on")
    return sentences
