"""A checkpoint's state, read under another precision, state format or overlap than it was saved under.

It is taken over parameter by parameter, a piece at a time: master weights bit for bit, moments bit for bit where their
format is the same; else they are expanded to float32 and rounded once.

Invariant: nothing is written before every file was read to its end and found to be what was saved.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from workbench.engine import OffloadEngine
from workbench.engine.precision import DTYPES
from workbench.engine.unit_memory import STALE_WEIGHTS, state_kinds, state_suffixes
from workbench.errors import ConfigurationError
from workbench.layout import ALIGNMENT, Layout, Region, Unit
from workbench.optimizer.reference import join_float32, split_float32
from workbench.optimizer.state_conversion import fitted_moments, state_key
from workbench.runs.checkpoints import DamagedFileError, SavedStep
from workbench.state_formats import MOMENTS, StateFormat
from workbench.training.checkpoints.raw_files import StoredTensor
from workbench.training.checkpoints.same_model import check_same_parameters

PIECE_ELEMENTS = (1 << 20) // ALIGNMENT * ALIGNMENT
WEIGHT_KINDS = ("high", "low", "master", "working")


@dataclass(frozen=True)
class Conversion:
    """How a state was taken over: (saved, present) of what differs. Empty where every byte is the same."""

    dtypes: frozenset[tuple[str, str]] = frozenset()
    formats: frozenset[tuple[StateFormat, StateFormat]] = frozenset()
    pending: str = ""
    """What became of weights that lag an update behind, in words; empty where nothing did."""

    @property
    def rounds(self) -> bool:
        """Whether something was rounded, so that training goes on nearly, not exactly, as it would have."""
        exact = {("half", "exact"), ("compact", "exact")}
        return bool(self.formats - exact)

    def sentences(self) -> list[str]:
        said = [
            f"working weights are {now} instead of {was}, their masters the same to the bit"
            for was, now in sorted(self.dtypes)
        ]
        for was, now in sorted(self.formats):
            how = "exactly" if now == "exact" else "rounded once"
            said.append(f"exp_avg and exp_avg_sq are converted from {was} to {now}, {how}")
        return said + [self.pending] * bool(self.pending)


def describe_layout(layout: Layout) -> list[dict[str, Any]]:
    """What a manifest says of where each parameter's state lies, for whoever reads it under another layout."""
    return [
        {
            "unit": unit_name(unit),
            "regions": [
                {"dtype": r.dtype, "state_format": r.state_format, "start": r.start, "suffix": suffix}
                for r, suffix in zip(unit.regions, state_suffixes(unit), strict=True)
            ],
            "parameters": [[s.name, s.region, s.offset, s.numel] for s in unit.segments],
        }
        for unit in layout.units
    ]


def unit_name(unit: Unit) -> str:
    """How the names of a unit's tensors begin in `OffloadEngine.state`."""
    return f"{unit.index:04d}-{unit.name}"


def convert_state(
    saved: SavedStep, engine: OffloadEngine, check: Callable[[str, StoredTensor], None]
) -> Conversion:
    """Fill the engine's state from a checkpoint of another layout. `check` reads a file's bytes, by the name of its
    tensor, into what it is given, and raises where they are not what was saved.

    Raises:
        ConfigurationError: it is the state of another model.
        DamagedFileError: a file is missing or not what was saved; nothing was written.
        DiskError: the engine's own disk tier does not take it.
    """
    there = _saved_parameters(saved)
    check_same_parameters(
        saved,
        {name: parameter.numel for name, parameter in there.items()},
        {segment.name: segment.numel for unit in engine.layout.units for segment in unit.segments},
    )
    for name, entry in saved.manifest["files"].items():
        check(name, _Checked(getattr(torch, entry["dtype"]), entry["elements"]))
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
            _fill(tensor, unit, region, kind, there)
        except OSError as error:
            raise DamagedFileError(f"{saved.path} cannot be read: {error.strerror or error}") from error
    return _compare(there, engine.layout, delayed=delayed)


@dataclass(frozen=True)
class _File:
    """A saved tensor: 1-D, read by ranges of elements."""

    path: Path
    dtype: torch.dtype

    def read(self, start: int, stop: int) -> Tensor:
        size = (stop - start) * self.dtype.itemsize
        data = bytearray(size)
        with self.path.open("rb", buffering=0) as file:
            done = 0
            while done < size:
                count = os.preadv(
                    file.fileno(), [memoryview(data)[done:]], start * self.dtype.itemsize + done
                )
                if not count:
                    raise DamagedFileError(f"{self.path} ended early")
                done += count
        return torch.frombuffer(data, dtype=self.dtype) if size else torch.empty(0, dtype=self.dtype)


class _Checked:
    """Takes what `read_tensor` reads, and keeps nothing of it."""

    def __init__(self, dtype: torch.dtype, elements: int) -> None:
        self.dtype = dtype
        self._elements = elements

    def numel(self) -> int:
        return self._elements

    def element_size(self) -> int:
        return self.dtype.itemsize

    def read(self, start: int, stop: int) -> Tensor:
        raise NotImplementedError

    def write(self, start: int, values: Tensor) -> None:
        pass


@dataclass(frozen=True)
class _SavedParameter:
    """Where one parameter's state lies: `start` is its first element in the tensors of its region."""

    dtype: str
    state_format: StateFormat
    start: int
    numel: int
    folder: Path
    files: dict[str, _File] = field(repr=False)

    def read(self, kind: str, first: int, last: int) -> Tensor:
        """Elements of the parameter from `first` to `last`, of a kind as it was saved."""
        per = _elements_per(kind, self.state_format)
        begin = (self.start + first) // per
        if kind not in self.files:
            raise DamagedFileError(
                f"{self.folder}: its manifest lists no {kind} of a parameter that needs it"
            )
        return self.files[kind].read(begin, begin - (first - last) // per)

    def master(self, first: int, last: int) -> Tensor:
        """float32."""
        if "master" in self.files:
            return self.read("master", first, last)
        return join_float32(self.read("high", first, last), self.read("low", first, last))

    def moments(self, first: int, last: int, state_format: StateFormat) -> dict[str, Tensor]:
        """In another format, by the engine's kinds."""
        tensors = MOMENTS[self.state_format]
        entry = {state_key(t.kind, self.state_format): self.read(t.kind, first, last) for t in tensors}
        fitted = fitted_moments(torch.empty(last - first, device="meta"), entry, state_format)
        return {t.kind: fitted[state_key(t.kind, state_format)] for t in MOMENTS[state_format]}


def _saved_parameters(saved: SavedStep) -> dict[str, _SavedParameter]:
    if "layout" not in saved.manifest:
        raise ConfigurationError(
            f"{saved.path} does not say where each parameter's state lies: an earlier Workbench saved it. Resume under "
            "the precision, state format and overlap that it was saved under; the next checkpoint can be converted"
        )
    files = saved.manifest["files"]
    found: dict[str, _SavedParameter] = {}
    for unit in saved.manifest["layout"]:
        for name, number, offset, numel in unit["parameters"]:
            region = unit["regions"][number]
            kinds = {}
            # Names are put together, not taken apart: units and parameters may be called anything.
            for kind in (*WEIGHT_KINDS, STALE_WEIGHTS, *(t.kind for t in MOMENTS[region["state_format"]])):
                entry = files.get(f"{unit['unit']}/{kind}{region['suffix']}")
                if entry is not None:
                    kinds[kind] = _File(saved.path / "state" / entry["file"], getattr(torch, entry["dtype"]))
            found[name] = _SavedParameter(
                region["dtype"], region["state_format"], offset - region["start"], numel, saved.path, kinds
            )
    return found


def _fill(
    tensor: Tensor | StoredTensor, unit: Unit, region: Region, kind: str, there: dict[str, _SavedParameter]
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
                values = _values(
                    there[segment.name], kind, region, first - segment.offset, last - segment.offset
                )
                at = (first - begin) // per
                piece[at : at + values.numel()] = values
        at = (begin - region.start) // per
        if isinstance(tensor, Tensor):
            tensor[at : at + piece.numel()] = piece.to(tensor.device)
        else:
            tensor.write(at, piece)


def _values(saved: _SavedParameter, kind: str, region: Region, first: int, last: int) -> Tensor:
    """Elements `first` to `last` of a parameter, of a kind of the engine's."""
    if kind == STALE_WEIGHTS:
        if STALE_WEIGHTS in saved.files:
            return _working(saved.read(STALE_WEIGHTS, first, last).float(), region.dtype)
        return _working(saved.master(first, last), region.dtype)
    if kind in WEIGHT_KINDS:
        if saved.dtype == region.dtype:
            return saved.read(kind, first, last)
        master = saved.master(first, last)
        if kind == "master":
            return master
        high, low = split_float32(master)
        return high if kind == "high" else low
    if saved.state_format == region.state_format:
        return saved.read(kind, first, last)
    try:
        return saved.moments(first, last, region.state_format)[kind]
    except ValueError as error:
        raise ConfigurationError(
            f"the state cannot be converted from {saved.state_format} to {region.state_format}: {error}"
        ) from error


def _working(values: Tensor, dtype: str) -> Tensor:
    """float32 as working weights of `dtype` are made of it."""
    return split_float32(values)[0] if dtype == "bfloat16" else values.to(DTYPES[dtype])


def _elements_per(kind: str, state_format: StateFormat) -> int:
    """How many elements of the parameter share one of the kind's."""
    return next((t.elements for t in MOMENTS[state_format] if t.kind == kind), 1)


def _compare(there: dict[str, _SavedParameter], layout: Layout, *, delayed: bool) -> Conversion:
    dtypes, formats = set(), set()
    for was, now in _pairs(there, layout):
        if was.dtype != now.dtype:
            dtypes.add((was.dtype, now.dtype))
        if was.state_format != now.state_format:
            formats.add((was.state_format, now.state_format))
    was_delayed = any(STALE_WEIGHTS in parameter.files for parameter in there.values())
    pending = ""
    if was_delayed and not delayed:
        pending = "the delayed update that was pending is applied before the next forward"
    elif delayed and not was_delayed:
        pending = "nothing is pending, and updates are delayed from here on"
    return Conversion(frozenset(dtypes), frozenset(formats), pending)


def _pairs(there: dict[str, _SavedParameter], layout: Layout) -> Iterator[tuple[_SavedParameter, Region]]:
    for unit in layout.units:
        for segment in unit.segments:
            yield there[segment.name], unit.regions[segment.region]
