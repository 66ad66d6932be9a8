"""Every core of the machine, and the trainer's threads with the host optimizer's marked.

Invariant: no core is left out. Where not all fit the panel scrolls and says which part is seen.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from workbench.formatting import known, number, percent, ranges
from workbench.monitor.samples import HostSample, MonitorSample, ThreadSample
from workbench.tui.charts.bars import filled, part_marks, sparkline
from workbench.tui.glyphs import Glyphs
from workbench.tui.panels.host_optimizer import OptimizerLoad, optimizer_threads
from workbench.tui.panels.panel import Line, SamplePanel, clean, cut, keep, width_of

_BAR_WIDTH = 16
"""The least width of one core's number, mark, bar and share, and a space."""
_LEAST_MARKED = 0.005
"""Of a core: less is no optimizer at work."""
_LEAST_HISTORY = 3
_AXIS = 5
"""Cells of the labels beside the history."""


_Group = tuple[str, tuple[int, ...]]
"""A name and the ranges of its cores."""


class CoresPanel(SamplePanel):
    TITLE = "CPU"
    HELP: ClassVar[str | None] = """\
### CPU cores

- The busy share of every core over the last interval, in the order of their ranges. Each has a bar where all bars
  fit, else each is one cell: the fuller the cell, the busier the core. A row begins with the number of its first core.
- Cores are grouped by memory node (NUMA); those that this process **may not use** (affinity, cgroup) have groups of
  their own.
- The time of the host optimizer's threads is the last part of a core's bar. The core is marked too: beside its bar or
  below its cell; if there is no room, the cell itself is `a` (under half busy) or `A`.
- If there is room, the history of all cores is drawn above: the trainer's share at the bottom, the rest on top.
- **of N cores**: sum of the cores' busy shares. **limit**: what the cgroup grants. **load**: runnable tasks over 1, 5
  and 15 minutes.
"""

    def __init__(self, glyphs: Glyphs, *, id: str | None = None, classes: str | None = None) -> None:
        super().__init__(glyphs, id=id, classes=classes)
        self.load = OptimizerLoad()
        """Of the run that the trainer trains; set before a sample is shown."""
        self._optimizer: dict[int, float] = {}
        """The host optimizer's part of each core on which it ran."""
        self._cores_in_line: list[int] = []

    @property
    def _marked(self) -> frozenset[int]:
        return frozenset(self._optimizer)

    def remember(self, sample: MonitorSample) -> None:
        host, trainer = sample.host, sample.trainer
        parts = optimizer_threads(trainer, self.load)
        self._optimizer = {}
        for thread in trainer.threads if trainer else ():
            if thread.core is not None and parts.get(thread.thread_id, 0.0) >= _LEAST_MARKED:
                self._optimizer[thread.core] = self._optimizer.get(thread.core, 0.0) + parts[thread.thread_id]
        if host.cores:
            busy = sum(known(value) or 0.0 for value in host.cores)
            own = min(busy, known(trainer.busy) or 0.0) if trainer and trainer.alive else 0.0
            self.histories["busy"].add(busy / len(host.cores))
            self.histories["trainer"].add(own / len(host.cores))

    def heading(self) -> tuple[str, ...]:
        cores = self.sample.host.cores if self.sample else ()
        if not cores:
            return ()
        mean = percent(sum(known(value) or 0.0 for value in cores) / len(cores))
        return f"{mean} of {len(cores)} cores", f"{mean} of {len(cores)}", mean

    def part(self, first: int, last: int, total: int) -> tuple[str, str]:
        before = sum(self._cores_in_line[: first - 1])
        seen = sum(self._cores_in_line[first - 1 : last])
        every = sum(self._cores_in_line)
        return "cores", f"{before + 1}-{before + seen} of {every}" if seen else f"0 of {every}"

    def sample_lines(self, sample: MonitorSample, width: int, height: int) -> list[Line]:
        host = sample.host
        self._cores_in_line = []
        if not host.cores:
            return self.note("The use of the cores is not known here (N/A).", width)
        groups = _groups(host)
        columns = self._bar_columns(width)
        has_bars = sum(-(-len(cores) // columns) for _, cores in groups) <= height
        # The richest form that fits. Where none does all scrolls, with its headings if there is room for any.
        forms = [(True, True, False), (True, False, False)] if has_bars else []
        forms += [(False, True, True), (False, True, False), (False, False, False)]
        drawn = (self._counted(host, groups, width, *form) for form in forms)
        counted = next((lines for lines in drawn if len(lines) <= height), None)
        if counted is None:
            counted = self._counted(host, groups, width, False, height >= 4, False)
        left = height - len(counted)
        if left >= _LEAST_HISTORY:
            counted = [*((0, line) for line in self._history(width, left)), *counted]
        self._cores_in_line = [cores for cores, _ in counted]
        return [line for _, line in counted]

    def _history(self, width: int, rows: int) -> list[Line]:
        """Return all cores' use over time, up to all of them, in `rows` lines: a legend and the graph."""
        busy, own = self.histories["busy"], self.histories["trainer"]
        whole = [value or 0.0 for value in busy.values]
        parts = [value or 0.0 for value in own.values]
        last, last_own = (values[-1] if values else 0.0 for values in (whole, parts))
        mean = sum(whole) / len(whole) if whole else 0.0
        marks = part_marks(self.glyphs)
        legend = [
            (0, [*self.write(f"{marks[0]} ", "own"), *self.write(f"trainer {percent(last_own)}")]),
            (
                0,
                [
                    *self.write(f"{marks[0]} ", "good"),
                    *self.write(f"others {percent(max(0.0, last - last_own))}"),
                ],
            ),
            (1, self.write(f"average {percent(mean)}", "dim")),
        ]
        room = max(1, width - _AXIS)
        tall, low = (
            sparkline(each, room, self.glyphs, height=rows - 1, high=1.0) for each in (busy.values, parts)
        )
        out = [keep(width, legend)]
        for row, (cells, below) in enumerate(zip(tall, low, strict=True)):
            label = (
                "100%" if row == 0 else "0%" if row == rows - 2 else "50%" if row == (rows - 1) // 2 else ""
            )
            line = self.write(f"{label:>{_AXIS - 1}} ", "dim")
            # A cell that holds both is the trainer's where it fills half of it.
            half = self.glyphs.column[len(self.glyphs.column) // 2]
            owners = [
                "own" if self.glyphs.column.index(cell) >= self.glyphs.column.index(half) else "good"
                for cell in below
            ]
            start = 0
            for stop in range(1, len(cells) + 1):
                if stop == len(cells) or owners[stop] != owners[start]:
                    line += self.write(cells[start:stop], owners[start])
                    start = stop
            out.append(line)
        return out

    def _bar_columns(self, width: int) -> int:
        return max(1, (width + 1) // _BAR_WIDTH)

    def _heat_columns(self, host: HostSample, width: int) -> int:
        room = max(1, width - len(str(len(host.cores) - 1)) - 1)
        return room - (room % 8 if room >= 8 else 0)

    def _counted(
        self,
        host: HostSample,
        groups: Sequence[_Group],
        width: int,
        bars: bool,
        headed: bool,
        marks_below: bool,
    ) -> list[tuple[int, Line]]:
        """Return lines, each with how many cores it shows.

        `bars`: one a core, else one cell of heat. `headed`: with a summary, and a heading above each group.
        `marks_below`: the optimizer's threads are marked below the cells of heat, else in their place.
        """
        out: list[tuple[int, Line]] = []
        if headed:
            out.append((0, self._summary(host, width)))
        for label, cores in groups:
            if headed and len(groups) > 1:
                shares = [known(host.cores[core]) or 0.0 for core in cores]
                title = self.write(f"{label}: {ranges(cores)}", "strong")
                mean = self.write(percent(sum(shares) / len(shares)), "dim")
                out.append((0, keep(width, [(1, title), (0, mean)])))
            if bars:
                out += self._bars(host, cores, width)
            else:
                out += self._heat(host, cores, width, marks_below)
        return out

    def _summary(self, host: HostSample, width: int) -> Line:
        in_use = sum(known(value) or 0.0 for value in host.cores)
        parts = [(0, self.write(f"{in_use:.1f} of {len(host.cores)} cores"))]
        if host.cpu_limit is not None:
            over = in_use >= 0.95 * host.cpu_limit
            parts.append((1, self.write(f"limit {number(host.cpu_limit, 1)}", "warning" if over else "dim")))
        load = " ".join(number(value, 1) for value in host.load) if host.load else "N/A"
        parts.append((2, self.write(f"load {load}", "dim")))
        if self._marked:
            parts.append((3, [*self.write(self._mark, "mark"), *self.write(" optimizer", "dim")]))
        return keep(width, parts)

    @property
    def _mark(self) -> str:
        return self.glyphs.arrow_up

    def _bars(self, host: HostSample, cores: tuple[int, ...], width: int) -> list[tuple[int, Line]]:
        columns = min(self._bar_columns(width), len(cores))
        rows = -(-len(cores) // columns)
        each = (width + 1) // columns - 1
        digits = len(str(len(host.cores) - 1))
        out = []
        for row in range(rows):
            line: Line = []
            in_row = cores[row::rows]
            for column, core in enumerate(in_row):
                if column:
                    line += self.write(" ")
                busy = host.cores[core]
                value = f"{percent(busy):>6}"
                line += self.write(f"{core:>{digits}}", "dim")
                line += self.write(self._mark if core in self._marked else " ", "mark")
                room = each - digits - 1 - len(value)
                own = min(busy, self._optimizer.get(core, 0.0))
                drawn = self.bar(busy, room, _band(busy))
                if own and drawn:
                    drawn = self.stack([(busy - own, _band(busy)), (own, "mark")], room)
                line += drawn or self.write(" " * max(0, room))
                line += self.write(value)
            out.append((len(in_row), line))
        return out

    def _heat(
        self, host: HostSample, cores: tuple[int, ...], width: int, marks_below: bool
    ) -> list[tuple[int, Line]]:
        digits = len(str(len(host.cores) - 1))
        room = self._heat_columns(host, width)
        out: list[tuple[int, Line]] = []
        for start in range(0, len(cores), room):
            in_row = cores[start : start + room]
            line = self.write(f"{in_row[0]:>{digits}} ", "dim")
            below = marks_below and not self._marked.isdisjoint(in_row)
            text, pen = "", ""
            for core in in_row:
                cell, its_pen = self._cell(host.cores[core], core in self._marked and not below)
                if its_pen != pen and text:
                    line += self.write(text, pen)
                    text = ""
                text, pen = text + cell, its_pen
            out.append((len(in_row), line + self.write(text, pen)))
            if below:
                marks = "".join(self._mark if core in self._marked else " " for core in in_row)
                out.append((0, [*self.write(" " * (digits + 1)), *self.write(marks, "mark")]))
        return out

    def _cell(self, busy: float, marked: bool) -> tuple[str, str]:
        value = known(busy)
        if marked:
            return ("A" if (value or 0.0) >= 0.5 else "a"), "mark"
        if value is None:
            return "?", "dim"
        if value <= 0:
            return self.glyphs.rest, "dim"
        return filled(value, self.glyphs.column), _band(value)


def _band(busy: float) -> str:
    return "good" if busy < 0.6 else "warning" if busy < 0.9 else "bad"


def _groups(host: HostSample) -> list[_Group]:
    """Return every core once, by memory node, those that may be used apart from the others."""
    everything = range(len(host.cores))
    allowed = set(host.allowed_cores) & set(everything) or set(everything)
    placed: set[int] = set()
    nodes: list[tuple[str, list[int]]] = []
    for number_of_node, members in enumerate(host.numa_nodes):
        there = [core for core in members if 0 <= core < len(host.cores) and core not in placed]
        placed.update(there)
        if there:
            nodes.append((f"node {number_of_node}", there))
    left = [core for core in everything if core not in placed]
    if left:
        nodes.append(("cores" if not nodes else "no node", left))
    out = []
    for name, of_node in nodes:
        usable = tuple(core for core in of_node if core in allowed)
        others = tuple(core for core in of_node if core not in allowed)
        if usable:
            out.append((name, usable))
        if others:
            out.append((f"{name}, not ours", others))
    return out


class ThreadsPanel(SamplePanel):
    TITLE = "Threads"
    HELP: ClassVar[str | None] = """\
### Threads of the trainer

Each thread with the share of one core that it used, and the core on which it last ran; the busiest first. The marked
ones work for the host optimizer: `host-adam/N`, and the thread that calls it.
"""

    def __init__(self, glyphs: Glyphs, *, id: str | None = None, classes: str | None = None) -> None:
        super().__init__(glyphs, id=id, classes=classes)
        self.load = OptimizerLoad()
        """Of the run that the trainer trains; set before a sample is shown."""

    def heading(self) -> tuple[str, ...]:
        trainer = self.sample.trainer if self.sample else None
        if trainer is None or not trainer.alive:
            return ()
        cores = number(trainer.busy, 1)
        return f"{cores} cores{self.separator}{len(trainer.threads)} busy", f"{cores} cores", cores

    def lines(self, width: int, height: int) -> list[Line]:
        trainer = self.sample.trainer if self.sample else None
        if trainer is None:
            return self.note("No training process is monitored.", width)
        if not trainer.alive:
            return self.note(f"The training process {trainer.pid} has ended.", width)
        if not trainer.threads:
            return self.note("None of its threads was busy.", width)
        own = optimizer_threads(trainer, self.load)
        return [
            self._thread(thread, width, own=own.get(thread.thread_id, 0.0) > 0) for thread in trainer.threads
        ]

    def _thread(self, thread: ThreadSample, width: int, *, own: bool) -> Line:
        mark = self.write(f"{self.glyphs.selected if own else ' '} ", "mark")
        core = f"core {'N/A' if thread.core is None else thread.core}"
        value = self.write(f" {percent(thread.busy):>5}")
        ends_with = self.write(f" {core:>8}", "dim") if width >= 30 else []
        room = width - 2 - width_of(value) - width_of(ends_with)
        name_room = min(20, room) if room >= 26 else room
        name = cut(clean(thread.name, self.glyphs), name_room, self.glyphs)
        filled = self.bar(thread.busy, min(40, room - name_room - 1))
        gap = self.write(" ") if filled else []
        return [
            *mark,
            *self.write(f"{name:{name_room}}", "own" if own else ""),
            *gap,
            *filled,
            *value,
            *ends_with,
        ]
