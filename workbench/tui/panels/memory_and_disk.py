"""Host memory and swap, and the disks under the run's folders."""

from __future__ import annotations

from typing import ClassVar

from workbench.formatting import amount, known, of, percent, rate, share
from workbench.monitor.samples import DiskSample, HostSample, MonitorSample
from workbench.tui.charts.bars import part_marks
from workbench.tui.panels.panel import Line, SamplePanel, clean, cut, ends, keep, width_of

_GROWING_OVER = 20
"""Samples: swap that is larger than it was so long ago is growing."""


class MemoryPanel(SamplePanel):
    TITLE = "Memory"
    HELP: ClassVar[str | None] = """\
### Host memory

- **trainer**: resident memory of the training process; **others**: all other memory in use; **cache**: files that the
  system keeps and drops when memory is needed; **free**: the rest.
- The total is the machine's, or the limit of the cgroup (container, job) where that is less.
- **swap** in use is a warning, growing swap an error: every step touches all of the optimizer's state.
- **history**: the trainer's resident memory, up to its largest value; the newest sample at the right.
"""

    def remember(self, sample: MonitorSample) -> None:
        self.histories["trainer"].add(sample.trainer.memory_bytes if sample.trainer else None)
        self.histories["swap"].add(sample.host.swap_used_bytes)

    def heading(self) -> tuple[str, ...]:
        if self.sample is None:
            return ()
        host = self.sample.host
        used = share(host.memory_used_bytes, host.memory_total_bytes)
        return of(host.memory_used_bytes, host.memory_total_bytes), percent(used)

    def sample_lines(self, sample: MonitorSample, width: int, height: int) -> list[Line]:
        host, trainer = sample.host, self.histories["trainer"]
        swap = self._swap_line(host, width)
        # Swap in use is what one must see first.
        lines = [self._bar(host, width), *([swap] if self._swap_band(host) else [])]
        lines += self._legend(host, width)
        if not self._swap_band(host):
            lines.append(swap)
        if host.memory_available_bytes is not None:
            lines.append(self.named_at_ends("available", amount(host.memory_available_bytes), width))
        top = trainer.top
        if top > 0:
            lines.append(self.named_at_ends("trainer's history, up to", amount(top), width))
            lines += self.spark(trainer, width, max(1, height - len(lines)), top, "own")
        return lines

    def _parts(self, host: HostSample) -> list[tuple[str, str, int | None, str]]:
        """Name, character, bytes and pen of what memory is used for."""
        total, used = host.memory_total_bytes, host.memory_used_bytes
        trainer = self.sample.trainer.memory_bytes if self.sample and self.sample.trainer else 0
        others = None if used is None else max(0, used - (trainer or 0))
        cache = host.memory_cached_bytes
        free = None
        if total is not None and used is not None:
            free = max(0, total - max(used, trainer or 0) - (cache or 0))
        marks = part_marks(self.glyphs)
        return [
            ("trainer", marks[0], trainer, "own"),
            ("others", marks[1], others, "other"),
            ("cache", marks[2], cache, "good"),
            ("free", self.glyphs.rest, free, "dim"),
        ]

    def _bar(self, host: HostSample, width: int) -> Line:
        total = host.memory_total_bytes
        used = share(host.memory_used_bytes, total)
        band = "" if used is None or used < 0.85 else "warning" if used < 0.95 else "bad"
        value = of(host.memory_used_bytes, total)
        room = width - len(value) - 1
        if room < 8:
            return self.write(value, band)
        parts = [(share(size, total), pen) for _, _, size, pen in self._parts(host)[:3]]
        return [*self.stack(parts, room), *self.write(" "), *self.write(value, band)]

    def _legend(self, host: HostSample, width: int) -> list[Line]:
        """Return the parts in one line where they fit, else one or two a line."""
        entries = [
            [*self.write(f"{mark} ", pen), *self.write(f"{name} {amount(size)}")]
            for name, mark, size, pen in self._parts(host)
            if name != "trainer" or (self.sample and self.sample.trainer)
        ]
        for each in (4, 2):
            rows = [entries[start : start + each] for start in range(0, len(entries), each)]
            lines = [keep(width, [(0, entry) for entry in row]) for row in rows]
            if max(sum(map(width_of, row)) + 2 * (each - 1) for row in rows) <= width:
                return lines
        return entries

    def _swap_band(self, host: HostSample) -> str:
        used = known(host.swap_used_bytes)
        if not used:
            return ""
        before = [value for value in self.histories["swap"].values[-_GROWING_OVER:] if value is not None]
        return "bad" if before and used > before[0] else "warning"

    def _swap_line(self, host: HostSample, width: int) -> Line:
        band = self._swap_band(host)
        if host.swap_total_bytes == 0 and not host.swap_used_bytes:
            return self.named_at_ends("swap", "none", width)
        value = f"swap {of(host.swap_used_bytes, host.swap_total_bytes)}"
        if not band:
            return self.write(value)
        word = f"{self.glyphs.bad} growing" if band == "bad" else f"{self.glyphs.warning} in use"
        return keep(width, [(0, self.write(value, band)), (1, self.write(word, band))])


class DiskPanel(SamplePanel):
    TITLE = "Disk"
    HELP: ClassVar[str | None] = """\
### Disks

- The file systems that the run's folder and its disk tier lie on, each with the device under it.
- **read**, **write**: bytes a second of the whole device, by all processes; **trainer**: those of the training process
  alone. Reads that the system's cache answers are in neither.
- **busy**: share of the interval in which the device had a request to serve. A fast disk serves many at once, so
  100 % need not be its limit.
- **free**: room for checkpoints and the disk tier; under 10 % is a warning.
- **history**: reads and writes together, up to the largest value so far; the newest sample at the right.
"""

    def heading(self) -> tuple[str, ...]:
        disks = self.sample.disks if self.sample else ()
        if not disks:
            return ()
        busy = percent(
            max((share for disk in disks if (share := known(disk.busy)) is not None), default=None)
        )
        free = amount(
            min((size for disk in disks if (size := known(disk.free_bytes)) is not None), default=None)
        )
        return f"{busy} busy{self.separator}{free} free", f"{busy} busy", busy

    def remember(self, sample: MonitorSample) -> None:
        for disk in sample.disks:
            read, written = known(disk.read_bytes_per_s), known(disk.written_bytes_per_s)
            both = None if read is None and written is None else (read or 0.0) + (written or 0.0)
            self.histories[disk.folder].add(both)

    def sample_lines(self, sample: MonitorSample, width: int, height: int) -> list[Line]:
        if not sample.disks:
            return self.note("No folder is monitored.", width)
        rows = max(1, (height - 1) // len(sample.disks))
        out = [line for disk in sample.disks for line in self._block(disk, width, rows)]
        trainer = sample.trainer
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
            (0, self.named("read", rate(disk.read_bytes_per_s))),
            (2, self.named("write", rate(disk.written_bytes_per_s))),
            (4, self.named("busy", percent(disk.busy), self._busy_pen(disk))),
        ]
        # Of several disks each is named if there is any room; one alone needs no name.
        several = self.sample is not None and len(self.sample.disks) > 1
        folder = (1 if several else 5, self._folder(disk, max(8, width // 3)))
        if rows == 1:
            free = self.named("free", amount(disk.free_bytes), self._free_pen(disk))
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
            history = self.histories[disk.folder]
            if any(value is not None for value in history.values):
                label = f"up to {rate(history.top)} "
                out += self.history_lines(label, history, width, rows - len(out), None)
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

    def _busy_pen(self, disk: DiskSample) -> str:
        busy = known(disk.busy)
        return "" if busy is None or busy < 0.8 else "warning"

    def _free_pen(self, disk: DiskSample) -> str:
        free = share(disk.free_bytes, disk.total_bytes)
        return "" if free is None or free >= 0.1 else "warning" if free >= 0.03 else "bad"
