"""What crosses the link between host and GPU, each way, against what the link can carry."""

from __future__ import annotations

from typing import ClassVar

from workbench.formatting import known, percent, rate, share
from workbench.monitor.samples import GpuSample
from workbench.tui.glyphs import Glyphs
from workbench.tui.panels.drawing import History, Line, clean, keep, width_of
from workbench.tui.panels.per_gpu import PerGpuPanel

_LABEL = 8


class PciePanel(PerGpuPanel):
    TITLE = "PCIe"
    HELP: ClassVar[str | None] = """\
### PCIe

- **to GPU**: received from the host (weights go up); **to host**: sent by the GPU (gradients come down). Bytes a
  second; 1 GiB is 1,073,741,824 bytes.
- The bar is against what the link carries each way at its *present* generation and width; a GPU at rest often lowers
  its link. The framing of packets takes a part of it, so that 100 % is never reached.
- **history**: both ways over time, up to the largest value that was seen; the newest sample at the right.
"""

    def __init__(self, glyphs: Glyphs, *, id: str | None = None, classes: str | None = None) -> None:
        super().__init__(glyphs, id=id, classes=classes)
        self._histories: dict[tuple[int, str], History] = {}

    def remember(self, gpu: GpuSample) -> None:
        for way, value in _ways(gpu):
            self._histories.setdefault((gpu.index, way), History()).add(value)

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
        """Both ways on one scale, in `rows` lines, at least two."""
        both = [(way, self._histories[gpu.index, way]) for way, _ in _ways(gpu)]
        top = max(history.top for _, history in both)
        out = [self.write(f"history, up to {rate(top)}", "dim")] if rows >= 3 else []
        each = min(4, (rows - len(out)) // 2)
        for way, history in both:
            labels = [way, *[""] * (each - 1)]
            drawn = self.spark(history, max(0, width - _LABEL), each, top)
            out += [
                [*self.write(f"{label:{_LABEL}}", "dim"), *line]
                for label, line in zip(labels, drawn, strict=True)
            ]
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
