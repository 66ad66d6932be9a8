"""The disks under the run's folders: how fast they read and write, how busy and how full they are."""

from __future__ import annotations

from typing import ClassVar

from workbench.formatting import amount, known, of, percent, rate, share
from workbench.monitor.samples import DiskSample, MonitorSample
from workbench.tui.glyphs import Glyphs
from workbench.tui.panels.drawing import History, Line, clean, cut, ends, keep, width_of
from workbench.tui.panels.panel import Panel


class DiskPanel(Panel):
    TITLE = "Disk"
    HELP: ClassVar[str | None] = """\
### Disks

- The file systems that the run's folder and its disk tier lie on, each with the device under it.
- **read**, **write**: bytes a second of the whole device, by whomever; **trainer**: those of the training process
  alone. Reads that the system's cache answers are in neither.
- **busy**: share of the interval in which the device had a request to serve. A fast disk takes many at once, so that
  100 % need not be its limit.
- **free**: room for checkpoints and the disk tier; under 10 % is a warning.
- **history**: reads and writes together, up to the largest value that was seen; the newest sample at the right.
"""

    def __init__(self, glyphs: Glyphs, *, id: str | None = None, classes: str | None = None) -> None:
        super().__init__(glyphs, id=id, classes=classes)
        self._sample: MonitorSample | None = None
        self._histories: dict[str, History] = {}

    def show(self, sample: MonitorSample) -> None:
        if self._sample is not None and sample.time == self._sample.time:
            return
        self._sample = sample
        for disk in sample.disks:
            read, written = known(disk.read_bytes_per_s), known(disk.written_bytes_per_s)
            both = None if read is None and written is None else (read or 0.0) + (written or 0.0)
            self._histories.setdefault(disk.folder, History()).add(both)
        self.changed()

    def heading(self) -> tuple[str, ...]:
        disks = self._sample.disks if self._sample else ()
        if not disks:
            return ()
        busy = percent(
            max((share for disk in disks if (share := known(disk.busy)) is not None), default=None)
        )
        free = amount(
            min((size for disk in disks if (size := known(disk.free_bytes)) is not None), default=None)
        )
        return f"{busy} busy{self.separator}{free} free", f"{busy} busy", busy

    def lines(self, width: int, height: int) -> list[Line]:
        if self._sample is None:
            return self.note("Waiting for the first sample.", width)
        if not self._sample.disks:
            return self.note("No folder is watched.", width)
        rows = max(1, (height - 1) // len(self._sample.disks))
        out = [line for disk in self._sample.disks for line in self._block(disk, width, rows)]
        trainer = self._sample.trainer
        if trainer is not None:
            read, write = rate(trainer.read_bytes_per_s), rate(trainer.written_bytes_per_s)
            parts = [
                (0, self.write("trainer", "own")),
                (0, self.write(f"read {read}")),
                (1, self.write(f"write {write}")),
            ]
            out.append(keep(width, parts))
        return out

    def _block(self, disk: DiskSample, width: int, rows: int) -> list[Line]:
        rates = [
            (0, self._named("read", rate(disk.read_bytes_per_s))),
            (2, self._named("write", rate(disk.written_bytes_per_s))),
            (4, self._named("busy", percent(disk.busy), self._busy_pen(disk))),
        ]
        # Of several disks each is named if there is any room; one alone needs no name.
        several = self._sample is not None and len(self._sample.disks) > 1
        folder = (1 if several else 5, self._folder(disk, max(8, width // 3)))
        if rows == 1:
            free = self._named("free", amount(disk.free_bytes), self._free_pen(disk))
            return [keep(width, [folder, *rates[:2], (3, free)])]
        out = []
        if rows >= 3:
            room = width if disk.device is None else width - len(disk.device) - 1
            device = self.write(clean(disk.device or "", self.glyphs), "dim")
            out.append(ends(self._folder(disk, room), device, width))
            out.append(keep(width, rates))
        else:
            out.append(keep(width, [folder, *rates]))
        out.append(self._room(disk, width))
        if rows >= 4:
            out += self._history(disk, width, min(4, rows - len(out)))
        return out

    def _folder(self, disk: DiskSample, width: int) -> Line:
        return self.write(cut(clean(disk.folder, self.glyphs), width, self.glyphs), "strong")

    def _room(self, disk: DiskSample, width: int) -> Line:
        value = of(disk.free_bytes, disk.total_bytes)
        label = self.write("free ", "dim")
        end = self.write(f" {value}", self._free_pen(disk))
        room = width - width_of(label) - width_of(end)
        if room < 4:
            return keep(width, [(0, label), (0, self.write(value, self._free_pen(disk)))], "")
        filled = self.bar(share(disk.free_bytes, disk.total_bytes), room, "other")
        return [*label, *filled, *end]

    def _history(self, disk: DiskSample, width: int, rows: int) -> list[Line]:
        history = self._histories[disk.folder]
        if not any(value is not None for value in history.values):
            return []
        label = f"up to {rate(history.top)} "
        drawn = self.spark(history, max(0, width - len(label)), rows, None)
        labels = [label, *[" " * len(label)] * (rows - 1)]
        return [[*self.write(start, "dim"), *line] for start, line in zip(labels, drawn, strict=True)]

    def _named(self, label: str, value: str, pen: str = "") -> Line:
        return [*self.write(f"{label} ", "dim"), *self.write(value, pen)]

    def _busy_pen(self, disk: DiskSample) -> str:
        busy = known(disk.busy)
        return "" if busy is None or busy < 0.8 else "warning"

    def _free_pen(self, disk: DiskSample) -> str:
        free = share(disk.free_bytes, disk.total_bytes)
        return "" if free is None or free >= 0.1 else "warning" if free >= 0.03 else "bad"
