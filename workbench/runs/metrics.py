"""`metrics.bin`: one fixed-width record a step, which opens at once however long the run was.

The file is: 8 bytes magic, u32 version, u32 length of a JSON header, the header (`columns` with name and
unit, `record_bytes`), spaces up to a multiple of 8, then records of little-endian float64, a column each; NaN
stands for "not given". A record is appended with one `write`. Records are never rewritten: those of steps
that a resumed run does again are voided by its `resume` event, which names their number, so that voiding is
exact whatever was lost.
"""

from __future__ import annotations

import bisect
import json
import math
import os
import struct
import sys
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Protocol

from workbench.errors import WorkbenchError
from workbench.runs.directory import RunDirectory
from workbench.runs.events import Event, append_event, read_events
from workbench.runs.writing import cannot_write

METRICS_VERSION = 1
_MAGIC = b"WBMETRIC"
_PREFIX = struct.Struct("<8sII")
_NAN = float("nan")


HOST_LANES = ("download", "update", "upload", "read", "write")
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
    *(Column(f"{lane}_{what}", "s") for lane in HOST_LANES for what in ("s", "exposed_s")),
    Column("exposed_s", "s"),
    Column("validation_loss", "nats/token"),
    Column("skipped", "1"),
    Column("loss_scale", "1"),
)
"""What a run records a step.

`<lane>_s`: seconds in which the lane was busy, of which the model waited `<lane>_exposed_s`; the rest was hidden behind
it. `compute_s`: in the step's own forwards and backwards, and so within `step_s`; its lanes are waited for in the next
step's forward too. `exposed_s`: seconds in which it waited, for whatever lane. `skipped`: 1 where the optimizer step
was left out, else 0. `loss_scale`: that of the step's backward, 1 unless the weights are fp16.
"""


@dataclass(frozen=True)
class Metrics:
    """Records of a metrics file, column by column."""

    columns: tuple[Column, ...] = ()
    ranges: tuple[tuple[int, int], ...] = ()
    """The records that count, as half-open ranges into `values`."""
    next_record: int = 0
    """What to pass as `since_record` to read what comes after these."""
    problem: str = ""
    """What is wrong with the file; empty when nothing is."""
    records_left: int = 0
    """Whole records that come after these."""
    values: array[float] = field(default_factory=lambda: array("d"), repr=False)
    """Record after record, void ones too."""

    def __len__(self) -> int:
        return sum(stop - start for start, stop in self.ranges)

    def column(self, name: str) -> array[float]:
        """One column, a float64 a record. A column that the file does not have is NaN throughout."""
        index = next((i for i, column in enumerate(self.columns) if column.name == name), None)
        if index is None:
            return array("d", [_NAN]) * len(self)
        width = len(self.columns)
        out = array("d")
        for start, stop in self.ranges:
            out += self.values[start * width + index : stop * width : width]
        return out

    def last(self) -> dict[str, float]:
        """The last record, without what was not given in it; empty where there is no record."""
        if not self.ranges:
            return {}
        width = len(self.columns)
        stop = self.ranges[-1][1]
        record = self.values[(stop - 1) * width : stop * width]
        return {
            column.name: value
            for column, value in zip(self.columns, record, strict=True)
            if not math.isnan(value)
        }


class MetricsWriter:
    """Appends records to a metrics file, made where there is none; a torn last record is cut off first.

    A file that is there keeps its own columns: a column it does not have is not recorded.
    Raises WorkbenchError where the file is no metrics file or cannot be written.
    """

    def __init__(self, path: Path, columns: Sequence[Column] = METRIC_COLUMNS) -> None:
        self.path = path
        self._known = {column.name for column in columns}
        self._last_step = -math.inf
        self._descriptor = -1
        try:
            if not path.exists() or path.stat().st_size == 0:
                _create(path, columns)
            with path.open("rb") as file:
                self.columns, self._start, problem = read_header(file.read(1 << 20), path)
                if problem:
                    raise WorkbenchError(f"{problem}; move it away to record anew")
            self._record = struct.Struct(f"<{len(self.columns)}d")
            self.records = (path.stat().st_size - self._start) // self._record.size
            """Whole records in the file."""
            self._descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
            self._cut()
        except OSError as error:
            raise cannot_write(path, error) from error

    def append(self, **values: float | None) -> None:
        """Append one record; what is not given, or None, is NaN. Steps must rise between two resumptions."""
        unknown = values.keys() - self._known
        if unknown:
            raise ValueError(f"no such metric: {', '.join(sorted(unknown))}")
        step = values.get("step")
        step = self._last_step + 1 if step is None else step
        if not step > self._last_step:
            raise ValueError(f"metrics of step {step} come after those of step {self._last_step}")
        data = self._record.pack(
            *(_NAN if (value := values.get(column.name)) is None else value for column in self.columns)
        )
        try:
            written = os.write(self._descriptor, data)
            if written != len(data):
                self._cut()
                raise WorkbenchError(f"{self.path}: a record was only written in part; the disk is full")
        except OSError as error:
            raise cannot_write(self.path, error) from error
        self._last_step = step
        self.records += 1

    def start_again(self) -> None:
        """Let the steps begin anew below the last one; `record_resume` tells the reader."""
        self._last_step = -math.inf

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __enter__(self) -> MetricsWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _cut(self) -> None:
        os.ftruncate(self._descriptor, self._start + self.records * self._record.size)


def record_resume(run: RunDirectory, writer: MetricsWriter, from_step: int, **fields: object) -> None:
    """Append the `resume` event: of the records so far, those of `from_step` and later are void."""
    append_event(run, "resume", from_step=from_step, record=writer.records, **fields)
    writer.start_again()


def read_metrics(path: Path, since_record: int = 0, most_records: int | None = None) -> Metrics:
    """The whole records of a file from `since_record` on, void ones too. Never raises; see `problem`.

    At most `most_records` where that is given: a long file is read in pieces of a few MiB with little memory, and
    faster than at once, as each piece is still in the processor's cache when its columns are taken from it.
    """
    try:
        with path.open("rb") as file:
            columns, start, problem = read_header(file.read(1 << 16), path)
            if problem:
                return Metrics(problem=problem)
            width = len(columns)
            there = (os.fstat(file.fileno()).st_size - start) // (8 * width)
            left = max(0, there - since_record)
            count = left if most_records is None else min(left, most_records)
            file.seek(start + since_record * 8 * width)
            values = array("d", bytes(8)) * (count * width)
            read = file.readinto(memoryview(values).cast("B")) if count else 0
    except FileNotFoundError:
        return Metrics(problem=f"{path} is missing")
    except (OSError, MemoryError) as error:
        return Metrics(problem=f"{path} cannot be read: {error}")
    count = min(count, read // (8 * width))
    if sys.byteorder == "big":
        values.byteswap()
    ranges = ((0, count),) if count else ()
    return Metrics(columns, ranges, since_record + count, records_left=left - count, values=values)


def read_run_metrics(run: RunDirectory) -> Metrics:
    """The records that stand: without those that a resumption voided. Never raises; see `problem`."""
    metrics = read_metrics(run.metrics)
    resumes = [event for event in read_events(run).events if event.kind == "resume"]
    if not resumes or not metrics.ranges:
        return metrics
    return replace(metrics, ranges=standing_ranges(metrics.column("step"), resumes))


class Steps(Protocol):
    """The step of each record, by its number."""

    def __len__(self) -> int: ...

    def __getitem__(self, record: int, /) -> float: ...


def standing_ranges(steps: Steps, resumes: Sequence[Event]) -> tuple[tuple[int, int], ...]:
    """The ranges of records that no resumption voids; of `steps` only a few are looked at.

    Between two resumptions steps rise, so that each of them cuts off the end of every stretch before it. A
    resumption that found fewer records than one before it says that the file had lost some: the records that
    were written in their place are none of the earlier one's business.
    """
    cuts: list[tuple[int, float]] = []
    record = len(steps)
    for event in reversed(resumes):
        at, from_step = event.fields.get("record"), event.fields.get("from_step")
        if isinstance(at, int) and isinstance(from_step, (int, float)) and at >= 0:
            record = min(record, at)
            cuts.append((record, from_step))
    ranges: list[tuple[int, int]] = []
    start = 0
    for at, from_step in reversed(cuts):
        ranges.append((start, at))
        ranges = [(a, bisect.bisect_left(steps, from_step, a, b)) for a, b in ranges]
        start = at
    ranges.append((start, len(steps)))
    return tuple((a, b) for a, b in ranges if b > a)


def _create(path: Path, columns: Sequence[Column]) -> None:
    header = json.dumps(
        {
            "columns": [{"name": column.name, "unit": column.unit} for column in columns],
            "record_bytes": 8 * len(columns),
        }
    ).encode()
    header += b" " * (-(_PREFIX.size + len(header)) % 8)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with temporary.open("wb") as file:
        file.write(_PREFIX.pack(_MAGIC, METRICS_VERSION, len(header)) + header)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def read_header(data: bytes, path: Path) -> tuple[tuple[Column, ...], int, str]:
    """The columns, where the records start, and what is wrong."""
    if len(data) < _PREFIX.size or data[:8] != _MAGIC:
        return (), 0, f"{path} is no metrics file"
    _, version, length = _PREFIX.unpack_from(data)
    if version != METRICS_VERSION:
        return (), 0, f"{path} has version {version}; this Workbench reads {METRICS_VERSION}"
    start = _PREFIX.size + length
    try:
        header = json.loads(data[_PREFIX.size : start])
        columns = tuple(Column(str(item["name"]), str(item["unit"])) for item in header["columns"])
        if len(data) < start or not columns or header["record_bytes"] != 8 * len(columns):
            raise ValueError
    except (ValueError, KeyError, TypeError):
        return (), 0, f"{path} has a damaged header"
    return columns, start, ""
