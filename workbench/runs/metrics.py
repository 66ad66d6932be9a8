"""`metrics.bin`: one fixed-width record a step, which opens at once however long the run was.

The file is: 8 bytes magic, u32 version, u32 length of a JSON header, the header (`columns` with name and unit,
`record_bytes`), spaces up to a multiple of 8, then records of little-endian float64, a column each; NaN stands for "not
given". A record is appended with one `write`.

Invariant: steps rise from record to record. A resumed run truncates the file to the step that it resumes from before it
writes its `resume` event, which names how many records were kept. So the file is read and never mapped: a page that is
cut off under a memory map ends the process that touches it.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import struct
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from workbench.errors import WorkbenchError
from workbench.runs.directory import RunDirectory
from workbench.runs.records import Event, append_event, cannot_write
from workbench.system.files import write_atomically
from workbench.system.foreign import parse_json

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

METRICS_VERSION = 1
_MAGIC = b"WBMETRIC"
_PREFIX = struct.Struct("<8sII")
_FLOAT = struct.Struct("<d")
_HEADER_BYTES = 1 << 16
"""More than any header has."""

HOST_LANES = ("download", "update", "upload", "read", "write", "communicate")
"""The lanes that may be hidden behind compute, as the engine names them."""


@dataclass(frozen=True)
class Column:
    name: str
    unit: str


METRIC_COLUMNS = (
    Column("step", "steps"),
    Column("time", "unix s"),
    Column("loss", "nats/token"),
    Column("grad_norm", "1"),
    Column("learning_rate", "1"),
    Column("tokens", "tokens"),
    Column("tokens_total", "tokens"),
    Column("step_s", "s"),
    Column("tokens_per_s", "tokens/s"),
    Column("mfu", "1"),
    Column("device_bytes", "B"),
    Column("host_bytes", "B"),
    Column("compute_s", "s"),
    Column("forward_s", "s"),
    Column("backward_s", "s"),
    *(Column(f"{lane}_{what}", "s") for lane in HOST_LANES for what in ("s", "exposed_s")),
    Column("exposed_s", "s"),
    Column("validation_loss", "nats/token"),
    Column("skipped", "1"),
    Column("loss_scale", "1"),
    Column("update_threads", "threads"),
    Column("speculated", "parameters"),
    Column("undone", "parameters"),
    Column("undo_s", "s"),
)
"""The columns of a run's metrics.

`<lane>_s`: seconds in which the lane was busy (`update_s`: in which the host optimizer worked, on whichever thread; one
that calls it itself waits for all of that), of which the model waited `<lane>_exposed_s`; the rest was hidden behind
compute. `compute_s`: the step's own forwards and backwards, and so within `step_s`; its lanes are waited for in the
next step's forward too. `forward_s` of it has the loss and that one's gradient, `backward_s` recomputed forwards.
`exposed_s`: seconds in which the model waited for any lane. `skipped`: 1 where the optimizer
step was left out, else 0. `loss_scale`: that of the step's backward, 1 unless the weights are fp16.
`update_threads`: threads of the host optimizer, the calling one counted. `speculated`: parameters updated ahead of the
verdict on the step's gradients, of several ranks this one's; `undone`: of those, where it was against them, in `undo_s`
(updating again included).
"""


def _no_records() -> Floats:
    import numpy as np

    return np.empty((0, 0))


@dataclass(frozen=True)
class Metrics:
    """Records of a metrics file."""

    columns: tuple[Column, ...] = ()
    values: Floats = field(default_factory=_no_records, repr=False)
    """float64 [records, columns]; NaN stands for "not given"."""
    first_record: int = 0
    """The number in the file of the first of these records."""
    problem: str = ""
    """A sentence on what is wrong with the file; empty when nothing is."""

    def __len__(self) -> int:
        return len(self.values)

    @property
    def next_record(self) -> int:
        """The number in the file of the record after these."""
        return self.first_record + len(self)

    def column(self, name: str) -> Floats:
        """Return one column, float64 [records], contiguous. A column that the file does not have is NaN throughout."""
        import numpy as np

        index = next((i for i, column in enumerate(self.columns) if column.name == name), None)
        if index is None:
            return np.full(len(self), np.nan)
        return np.ascontiguousarray(self.values[:, index])

    def last(self) -> dict[str, float]:
        """Return the last record without what was not given in it; empty where there is no record."""
        if not len(self):
            return {}
        record = zip(self.columns, self.values[-1].tolist(), strict=True)
        return {column.name: value for column, value in record if not math.isnan(value)}


class MetricsWriter:
    """Appends records to a metrics file, made where there is none; a torn last record is cut off first.

    A file that is there keeps its own columns: a column it does not have is not recorded.
    Raises WorkbenchError where the file is not a metrics file or cannot be written.
    """

    def __init__(self, path: Path, columns: Sequence[Column] = METRIC_COLUMNS) -> None:
        self.path = path
        self._known = {column.name for column in columns}
        self._descriptor = -1
        self._last_step = -math.inf
        try:
            if not path.exists() or path.stat().st_size == 0:
                _create(path, columns)
            self._descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC)
            self.columns, self._start, problem = read_header(
                os.pread(self._descriptor, _HEADER_BYTES, 0), path
            )
            if problem:
                self.close()
                raise WorkbenchError(f"{problem}; move it away to start a new one")
            self._record = struct.Struct(f"<{len(self.columns)}d")
            names = [column.name for column in self.columns]
            self._step_offset = 8 * names.index("step") if "step" in names else None
            self.records = (os.fstat(self._descriptor).st_size - self._start) // self._record.size
            """Whole records in the file."""
            self._cut(self.records)
        except OSError as error:
            self.close()
            raise cannot_write(path, error) from error

    def append(self, **values: float | None) -> None:
        """Append one record; a value that is None or not given is stored as NaN. Steps must rise.

        Raises:
            WorkbenchError: the disk is full or refuses; the file then ends with the record before.
            ValueError: a name is no column, or the step does not come after the last one.
        """
        unknown = values.keys() - self._known
        if unknown:
            raise ValueError(f"no such metric: {', '.join(sorted(unknown))}")
        step = values.get("step")
        if step is not None and not step > self._last_step:
            raise ValueError(f"metrics of step {step} come after those of step {self._last_step}")
        given = (values.get(column.name) for column in self.columns)
        data = self._record.pack(*(math.nan if value is None else value for value in given))
        try:
            if os.write(self._descriptor, data) != len(data):
                self._cut(self.records)
                raise WorkbenchError(f"{self.path}: a record was only written in part; the disk is full")
        except OSError as error:
            raise cannot_write(self.path, error) from error
        self._last_step = self._last_step if step is None else step
        self.records += 1

    def truncate(self, from_step: int) -> None:
        """Remove the records of `from_step` and later steps. Raises WorkbenchError where the disk refuses."""
        low, high = 0, self.records
        try:
            while low < high:
                middle = (low + high) // 2
                if self._step_of(middle) < from_step:
                    low = middle + 1
                else:
                    high = middle
            self._cut(low)
        except OSError as error:
            raise cannot_write(self.path, error) from error

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __enter__(self) -> MetricsWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _cut(self, records: int) -> None:
        os.ftruncate(self._descriptor, self._start + records * self._record.size)
        self.records = records
        self._last_step = self._step_of(records - 1) if records else -math.inf

    def _step_of(self, record: int) -> float:
        if self._step_offset is None:
            return -math.inf
        data = os.pread(self._descriptor, 8, self._start + record * self._record.size + self._step_offset)
        return float(_FLOAT.unpack(data)[0])


def record_resume(run: RunDirectory, writer: MetricsWriter, from_step: int, **fields: object) -> None:
    """Remove the records of the steps that are done again, from `from_step` on, then append the `resume` event."""
    writer.truncate(from_step)
    append_event(run, "resume", from_step=from_step, record=writer.records, **fields)


def read_metrics(path: Path, since_record: int = 0, most_records: int | None = None) -> Metrics:
    """Return the whole records of a file from `since_record` on. Never raises; see `problem`.

    With `most_records` at most so many: a long file is read in pieces of a few MiB with little memory, and faster than
    at once, as a piece is still in the processor's cache when its columns are taken from it.
    """
    try:
        with path.open("rb", buffering=0) as file:
            columns, start, problem = read_header(file.read(_HEADER_BYTES), path)
            if problem:
                return Metrics(problem=problem)
            there = (os.fstat(file.fileno()).st_size - start) // (8 * len(columns))
            count = max(0, there - since_record)
            count = count if most_records is None else min(count, most_records)
            values = _read_records(file, start, len(columns), since_record, count)
    except FileNotFoundError:
        return Metrics(problem=f"{path} is missing")
    except (OSError, MemoryError) as error:
        return Metrics(problem=f"{path} cannot be read: {error}")
    return Metrics(columns, values, since_record)


def read_run_metrics(run: RunDirectory) -> Metrics:
    """Return all records of a run. Never raises; see `problem`."""
    return read_metrics(run.metrics)


def read_last(path: Path, name: str) -> tuple[float | None, str, bool]:
    """Return the last record's value in a column, what is wrong with the file, and whether it ends in a torn record.

    The value is None where it is not known; a file that is missing is a run that has not taken a step. Never raises.
    """
    try:
        with path.open("rb", buffering=0) as file:
            columns, start, problem = read_header(file.read(_HEADER_BYTES), path)
            if problem:
                return None, problem, False
            width = 8 * len(columns)
            records, rest = divmod(os.fstat(file.fileno()).st_size - start, width)
            names = [column.name for column in columns]
            if records <= 0 or name not in names:
                return None, "", bool(rest)
            data = os.pread(file.fileno(), 8, start + (records - 1) * width + 8 * names.index(name))
    except FileNotFoundError:
        return None, "", False
    except OSError as error:
        return None, f"{path} cannot be read: {error.strerror or error}", False
    value = _FLOAT.unpack(data)[0] if len(data) == 8 else math.nan
    return value if math.isfinite(value) else None, "", bool(rest)


class MetricsReader:
    """Reads a run's metrics as they come, each record once. For one thread."""

    def __init__(self, run: RunDirectory) -> None:
        self._path = run.metrics
        self.records = 0
        """Records of the file that were read."""

    def rewind(self, events: Iterable[Event]) -> bool:
        """Count the records that the resumptions among `events` have removed as not read; True where there are any.

        Read the events before the metrics: a resumption that comes in between is then obeyed at the next reading.
        """
        before = self.records
        for event in events:
            kept = event.fields.get("record")
            if event.kind == "resume" and isinstance(kept, int):
                self.records = max(0, min(self.records, kept))
        return self.records < before

    def read(self, most_records: int | None = None) -> Metrics:
        """Return the records since the last reading, at most `most_records`. Never raises; see `problem`.

        `first_record` says how many of the earlier ones still stand.
        """
        found = read_metrics(self._path, self.records, most_records)
        if not found.problem:
            self.records = found.next_record
        return found


STRETCHES, STRETCH = 256, 16
"""Stretches of neighbouring records in a sample, and records in each: one or two blocks of a disk, and enough stretches
that each column of a chart has its own."""
NEWEST = 256
"""Records at the end of a sample without a gap: an average of the last values is that of the whole run."""
LONG = 50_000
"""Records that take a while to be read and drawn."""
_PATIENCE_S = 0.5
"""On a disk that takes longer to find the places, all may as well be read at once."""


@dataclass(frozen=True)
class DownsampledMetrics:
    """Some of a long run's records, evenly spread, the newest ones without a gap."""

    metrics: Metrics
    places: NDArray[np.int64] = field(repr=False)
    """The number in the file of each record."""
    total: int
    """Whole records in the file."""


def read_downsampled(path: Path, shortest: int = LONG) -> DownsampledMetrics | None:
    """Return what the curves of a long run look like without reading all of it. Never raises.

    None where there are fewer than `shortest` records, or they cannot be read soon.
    """
    import numpy as np

    until = time.monotonic() + _PATIENCE_S
    pieces = []
    with contextlib.suppress(OSError), path.open("rb", buffering=0) as file:
        columns, start, problem = read_header(file.read(_HEADER_BYTES), path)
        total = 0 if problem else (os.fstat(file.fileno()).st_size - start) // (8 * len(columns))
        if total < max(shortest, STRETCHES * STRETCH + NEWEST):
            return None
        spread = total - NEWEST
        stretches = [(number * spread // STRETCHES, STRETCH) for number in range(STRETCHES)]
        stretches.append((spread, NEWEST))
        for first, count in stretches:
            piece = _read_records(file, start, len(columns), first, count)
            if len(piece) < count or time.monotonic() > until:
                return None
            pieces.append(piece)
        places = np.concatenate([np.arange(first, first + count) for first, count in stretches])
        return DownsampledMetrics(Metrics(columns, np.concatenate(pieces)), places, total)
    return None


def read_header(data: bytes, path: Path) -> tuple[tuple[Column, ...], int, str]:
    """Return the columns, where the records start, and a sentence on what is wrong (empty: nothing)."""
    if len(data) < _PREFIX.size or data[:8] != _MAGIC:
        return (), 0, f"{path} is not a metrics file"
    _, version, length = _PREFIX.unpack_from(data)
    if version != METRICS_VERSION:
        return (), 0, f"{path} has version {version}; this Workbench reads {METRICS_VERSION}"
    start = _PREFIX.size + length
    try:
        header = parse_json(data[_PREFIX.size : start])
        columns = tuple(Column(str(item["name"]), str(item["unit"])) for item in header["columns"])
        if len(data) < start or not columns or header["record_bytes"] != 8 * len(columns):
            raise ValueError
    except (ValueError, KeyError, TypeError):
        return (), 0, f"{path} has a damaged header"
    return columns, start, ""


def _create(path: Path, columns: Sequence[Column]) -> None:
    header = json.dumps(
        {
            "columns": [{"name": column.name, "unit": column.unit} for column in columns],
            "record_bytes": 8 * len(columns),
        }
    ).encode()
    header += b" " * (-(_PREFIX.size + len(header)) % 8)
    write_atomically(path, _PREFIX.pack(_MAGIC, METRICS_VERSION, len(header)) + header, durable=True)


def _read_records(file: BinaryIO, start: int, width: int, first: int, count: int) -> Floats:
    """Return `count` records of `width` columns from number `first` on, fewer where the file ends before."""
    import numpy as np

    file.seek(start + first * 8 * width)
    values = np.fromfile(file, "<f8", count * width)
    return values[: len(values) // width * width].reshape(-1, width).astype(np.float64, copy=False)
