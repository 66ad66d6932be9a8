"""GPUs and their links, as useful as nvidia-smi and nvtop: a block each where there is room, else one line each.

Invariant: every GPU gets as many lines as the others. The trainer's memory is told apart by a character and a number.
"""

from __future__ import annotations

from typing import ClassVar

from workbench.formatting import NOT_KNOWN, amount, known, number, of, pair, percent, rate, share
from workbench.monitor.samples import GpuSample, MonitorSample
from workbench.tui.charts.bars import part_marks
from workbench.tui.panels.panel import Line, SamplePanel, clean, cut, ends, keep, width_of

_LABEL = 8


class PerGpuPanel(SamplePanel):
    """A subclass draws one GPU (`block`)."""

    rows_each = 1
    """Lines that each GPU has."""

    def block(self, gpu: GpuSample, width: int, rows: int) -> list[Line]:
        """Return one GPU in `rows` lines; in more only where nothing can be left out."""
        raise NotImplementedError

    @property
    def gpus(self) -> tuple[GpuSample, ...]:
        return self.sample.gpus if self.sample is not None else ()

    def part(self, first: int, last: int, total: int) -> tuple[str, str]:
        if self.rows_each == 1 and self.gpus:
            return "GPU", f"{first}-{last} of {len(self.gpus)}"
        return super().part(first, last, total)

    def sample_lines(self, sample: MonitorSample, width: int, height: int) -> list[Line]:
        if not sample.gpus:
            return self.note(clean(sample.gpu_note or "No GPU is shown here.", self.glyphs), width)
        self.rows_each = max(1, height // len(sample.gpus))
        return [line for gpu in sample.gpus for line in self.block(gpu, width, self.rows_each)]


class GpuPanel(PerGpuPanel):
    TITLE = "GPU"
    HELP: ClassVar[str | None] = """\
### GPU

- **busy**: share of the interval in which a kernel ran; not how well the kernel used the GPU.
- **memory**: of the GPU's own memory. *Ours* is what the training process holds, *others* all the rest in use.
- **power**, **temp**, **clock**: now, of the limit that the driver enforces. At the temperature's limit the GPU slows
  itself down. *Throttled* gives the driver's reasons for lower clocks.
- **busy over time**: the newest sample at the right.
- `N/A`: the driver does not give this value for this GPU. Sizes are binary: 1 GiB is 1,073,741,824 bytes.

With less room each GPU gets fewer lines, at least one; then the arrow keys scroll.
"""

    def remember(self, sample: MonitorSample) -> None:
        for gpu in sample.gpus:
            self.histories[gpu.index].add(gpu.busy)

    def heading(self) -> tuple[str, ...]:
        gpus = self.gpus
        if not gpus:
            return ()
        if len(gpus) == 1:
            gpu = gpus[0]
            memory = of(gpu.memory_used_bytes, gpu.memory_total_bytes)
            return f"{percent(gpu.busy)}{self.separator}{memory}", percent(gpu.busy)
        there = [busy for gpu in gpus if (busy := known(gpu.busy)) is not None]
        mean = percent(sum(there) / len(there) if there else None)
        used = [size for gpu in gpus if (size := known(gpu.memory_used_bytes)) is not None]
        total = [size for gpu in gpus if (size := known(gpu.memory_total_bytes)) is not None]
        memory = of(sum(used) if used else None, sum(total) if total else None)
        return f"{mean} of {len(gpus)}{self.separator}{memory}", f"{mean} of {len(gpus)}", mean

    def block(self, gpu: GpuSample, width: int, rows: int) -> list[Line]:
        """Return at most `rows` lines, but all processes where there is room for one of them."""
        if gpu.fault:
            return self._faulty(gpu, width, rows)
        if rows == 1:
            return [self._one_line(gpu, width)]
        # What is drawn, from the top down, and from how many rows on it has a place.
        candidates = [
            (7, self.write(cut(self._title(gpu, short=False), width, self.glyphs), "strong")),
            (1, self._busy(gpu, width, named=rows < 7)),
            (2, self._memory(gpu, width)),
            (6, self._owners(gpu, width)),
            (3, self._power(gpu, width)),
            (4, self._clocks(gpu, width)),
        ]
        out = [line for needed, line in candidates if rows >= needed]
        processes = self._processes(gpu, width) if rows > 7 else []
        if rows >= 5:
            tall = min(5, max(1, rows - len(out) - len(processes)))
            out += self.history_lines("history ", self.histories[gpu.index], width, tall, 1.0)
        return out + processes

    def _faulty(self, gpu: GpuSample, width: int, rows: int) -> list[Line]:
        name = self.write(self._title(gpu, short=rows == 1), "strong")
        fault = self.write(f"{self.glyphs.bad} {clean(gpu.fault, self.glyphs)}", "bad")
        return [[*name, *self.write(" "), *fault]] if rows == 1 else [name, fault]

    def _title(self, gpu: GpuSample, *, short: bool) -> str:
        name = clean(gpu.name or NOT_KNOWN, self.glyphs)
        if short:
            name = name.replace("NVIDIA ", "").replace("GeForce ", "")
        return f"{gpu.index} {name}" if short else f"GPU {gpu.index} {name}"

    def _one_line(self, gpu: GpuSample, width: int) -> Line:
        memory = of(gpu.memory_used_bytes, gpu.memory_total_bytes, "/")
        room = width - 70
        busy = f"{percent(gpu.busy):>5}"
        parts = [
            (0, self.write(str(gpu.index), "strong")),
            (4, self.write(f"{cut(self._title(gpu, short=True).partition(' ')[2], 12, self.glyphs):12}")),
            (0, self.write(busy)),
            (6, self.bar(gpu.busy, min(20, room))),
            (1, self.write(f"{memory:>15}" if width >= 40 else memory, self._memory_pen(gpu))),
            (5, self.write(f"{pair(gpu.power_w, gpu.power_limit_w, 'W', '/'):>9}")),
            (3, self.write(number(gpu.temperature_c, 0, "C"), self._heat_pen(gpu))),
        ]
        if gpu.throttled_by:
            parts.append((2, self.write(f"{self.glyphs.warning} {self._throttled_by(gpu)}", "warning")))
        return keep(width, parts, " ")

    def _labelled(self, label: str, value: str, width: int) -> tuple[Line, int]:
        """Return a label, and how wide a bar may be between it and the value."""
        return self.write(f"{label:{_LABEL}}", "dim"), width - _LABEL - len(value) - 1

    def _busy(self, gpu: GpuSample, width: int, *, named: bool) -> Line:
        value = f"{percent(gpu.busy):>5}"
        if named:
            label = self._title(gpu, short=True) if width >= 34 else str(gpu.index)
            start = self.write(f"{cut(label, 15, self.glyphs)} ", "strong")
        else:
            start = self.write(f"{'busy':{_LABEL}}", "dim")
        end = self.write(f" {value}")
        if named and width >= 60:
            end += self.write(f" {pair(gpu.power_w, gpu.power_limit_w, 'W', '/'):>10}")
            end += self.write(f" {number(gpu.temperature_c, 0, 'C'):>5}", self._heat_pen(gpu))
        return [*start, *self.bar(gpu.busy, width - width_of(start) - width_of(end)), *end]

    def _memory(self, gpu: GpuSample, width: int) -> Line:
        value = of(gpu.memory_used_bytes, gpu.memory_total_bytes)
        label, room = self._labelled("memory", value, width)
        pen = self._memory_pen(gpu)
        if room < 4:
            return ends(self.write("mem ", "dim"), self.write(value, pen), width)
        total, used, ours = gpu.memory_total_bytes, gpu.memory_used_bytes, self._ours(gpu)
        own = share(ours, total)
        rest = None if (all_of_it := share(used, total)) is None else all_of_it - (own or 0.0)
        shares = [(own, "own"), (rest, "other")]
        return [*label, *self.stack(shares, room), *self.write(" "), *self.write(value, pen)]

    def _owners(self, gpu: GpuSample, width: int) -> Line:
        marks = part_marks(self.glyphs)
        total, used, ours = gpu.memory_total_bytes, gpu.memory_used_bytes, self._ours(gpu)
        others = None if used is None or ours is None else max(0, used - ours)
        free = None if used is None or total is None else max(0, total - used)
        parts = [
            (0, [*self.write(f"{marks[0]} ", "own"), *self.write(f"ours {amount(ours)}")]),
            (1, [*self.write(f"{marks[1]} ", "other"), *self.write(f"others {amount(others)}")]),
            (2, [*self.write(f"{self.glyphs.rest} ", "dim"), *self.write(f"free {amount(free)}")]),
        ]
        return keep(width, parts)

    def _power(self, gpu: GpuSample, width: int) -> Line:
        temperature = pair(gpu.temperature_c, gpu.temperature_limit_c, "C")
        parts = [
            (0, self.named("power", pair(gpu.power_w, gpu.power_limit_w, "W"))),
            (1, self.named("temp", temperature, self._heat_pen(gpu))),
            (2, self.named("fan", percent(gpu.fan))),
        ]
        return keep(width, parts)

    def _clocks(self, gpu: GpuSample, width: int) -> Line:
        state = self.write("throttled: N/A", "dim")
        if gpu.throttled_by is not None:
            state = self.write("not throttled", "dim")
        if gpu.throttled_by:
            state = self.write(f"{self.glyphs.warning} throttled: {self._throttled_by(gpu)}", "warning")
        parts = [
            (1, self.named("clock", pair(gpu.clock_mhz, gpu.clock_limit_mhz, "MHz"))),
            (2, self.named("memory", pair(gpu.memory_clock_mhz, gpu.memory_clock_limit_mhz, "MHz"))),
            (0 if gpu.throttled_by else 3, state),
        ]
        return keep(width, parts)

    def _processes(self, gpu: GpuSample, width: int) -> list[Line]:
        if gpu.processes is None:
            return [self.write("processes N/A", "dim")]
        trainer = self.sample.trainer.pid if self.sample and self.sample.trainer else None
        out = []
        for process in sorted(
            gpu.processes, key=lambda each: (each.pid != trainer, -(each.memory_bytes or 0))
        ):
            own = process.pid == trainer
            mark = f"{self.glyphs.selected} " if own else "  "
            size = self.write(f" {amount(process.memory_bytes)}")
            name = f"{process.pid} {clean(process.name or NOT_KNOWN, self.glyphs)}"
            name = cut(name, width - width_of(size) - 2, self.glyphs)
            out.append(ends(self.write(f"{mark}{name}", "own" if own else ""), size, width))
        return out

    def _ours(self, gpu: GpuSample) -> int | None:
        """Return bytes that the trainer holds; None where that cannot be told."""
        if self.sample is None or self.sample.trainer is None or gpu.processes is None:
            return None if gpu.processes is None else 0
        pid = self.sample.trainer.pid
        sizes = [process.memory_bytes for process in gpu.processes if process.pid == pid]
        return None if None in sizes else sum(size or 0 for size in sizes)

    def _throttled_by(self, gpu: GpuSample) -> str:
        return clean(", ".join(gpu.throttled_by or ()), self.glyphs)

    def _memory_pen(self, gpu: GpuSample) -> str:
        used = share(gpu.memory_used_bytes, gpu.memory_total_bytes)
        return "" if used is None or used < 0.9 else "warning" if used < 0.97 else "bad"

    def _heat_pen(self, gpu: GpuSample) -> str:
        heat, limit = known(gpu.temperature_c), known(gpu.temperature_limit_c) or 90.0
        return "" if heat is None or heat < limit - 5 else "warning" if heat < limit else "bad"


class PciePanel(PerGpuPanel):
    TITLE = "PCIe"
    HELP: ClassVar[str | None] = """\
### PCIe

- **to GPU**: received from the host (weights go up); **to host**: sent by the GPU (gradients come down). Bytes a
  second; 1 GiB is 1,073,741,824 bytes.
- A full bar is the rate of the link in one direction at its *present* generation and width; an idle GPU often lowers
  its link. Packet headers take a part of it, so 100 % is never reached.
- **history**: both ways over time, up to the largest value so far; the newest sample at the right.
"""

    def remember(self, sample: MonitorSample) -> None:
        for gpu in sample.gpus:
            for way, value in _ways(gpu):
                self.histories[gpu.index, way].add(value)

    def heading(self) -> tuple[str, ...]:
        gpus = self.gpus
        if not gpus:
            return ()
        down, up = (_total([dict(_ways(gpu))[way] for gpu in gpus]) for way in ("to GPU", "to host"))
        fuller = rate(max((value for value in (down, up) if value is not None), default=None))
        arrows = f"{self.glyphs.arrow_up} {rate(down)} {self.glyphs.arrow_down} {rate(up)}"
        return f"to GPU {rate(down)}{self.separator}to host {rate(up)}", arrows, fuller

    def block(self, gpu: GpuSample, width: int, rows: int) -> list[Line]:
        if gpu.fault:
            return [[*self.write(f"{gpu.index} "), *self.write(clean(gpu.fault, self.glyphs), "bad")]]
        if rows == 1:
            return [self._one_line(gpu, width)]
        out = []
        if rows >= 3:
            limit = rate(gpu.pcie_limit_bytes_per_s)
            parts = [
                (0, self.write(f"GPU {gpu.index} {_link(gpu)}", "strong")),
                (1, self.write(f"{limit} each way", "dim")),
            ]
            out.append(keep(width, parts))
        named = f"{gpu.index} " if rows == 2 else ""
        out += [self._way(gpu, named + way, value, width) for way, value in _ways(gpu)]
        if rows >= 5:
            out += self._history(gpu, width, rows - len(out))
        return out

    def _history(self, gpu: GpuSample, width: int, rows: int) -> list[Line]:
        """Return both ways on one scale, in `rows` lines, at least two."""
        both = [(way, self.histories[gpu.index, way]) for way, _ in _ways(gpu)]
        top = max(history.top for _, history in both)
        out = [self.write(f"history, up to {rate(top)}", "dim")] if rows >= 3 else []
        each = min(4, (rows - len(out)) // 2)
        for way, history in both:
            out += self.history_lines(f"{way:{_LABEL}}", history, width, each, top)
        return out

    def _one_line(self, gpu: GpuSample, width: int) -> Line:
        (_, down), (_, up) = _ways(gpu)
        fullest = max((known(value) or 0.0 for value in (down, up)), default=0.0)
        used = share(fullest, gpu.pcie_limit_bytes_per_s) if down is not None or up is not None else None
        parts = [
            (0, self.write(str(gpu.index), "strong")),
            (3, self.write(_link(gpu))),
            (1, self.write(f"{self.glyphs.arrow_up} {rate(down):>10}")),
            (2, self.write(f"{self.glyphs.arrow_down} {rate(up):>10}")),
            (4, self.bar(used, min(20, width - 55))),
            (0, self.write(f"{percent(used):>5}")),
        ]
        return keep(width, parts, " ")

    def _way(self, gpu: GpuSample, way: str, value: float | None, width: int) -> Line:
        used = share(value, gpu.pcie_limit_bytes_per_s)
        label = self.write(f"{way:{max(_LABEL, len(way) + 1)}}", "dim")
        end = [*self.write(f" {rate(value):>10}"), *self.write(f" {percent(used):>5}", "dim")]
        room = width - width_of(label) - width_of(end)
        if room < 4:
            return keep(width, [(0, label[:1]), (0, self.write(rate(value)))], "")
        return [*label, *self.bar(used, room), *end]


def _ways(gpu: GpuSample) -> tuple[tuple[str, float | None], ...]:
    return (("to GPU", gpu.pcie_received_bytes_per_s), ("to host", gpu.pcie_sent_bytes_per_s))


def _link(gpu: GpuSample) -> str:
    generation = "N/A" if gpu.pcie_generation is None else str(gpu.pcie_generation)
    width = "N/A" if gpu.pcie_width is None else str(gpu.pcie_width)
    return f"gen {generation} x{width}"


def _total(values: list[float | None]) -> float | None:
    there = [value for value in values if known(value) is not None]
    return sum(value or 0.0 for value in there) if there else None
