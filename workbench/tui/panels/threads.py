"""The trainer's threads, the host optimizer's marked, and how near the optimizer came to the memory's speed."""

from __future__ import annotations

from typing import ClassVar

from workbench.formatting import known, number, percent, share
from workbench.monitor.samples import MonitorSample, ThreadSample, TrainerSample
from workbench.tui.glyphs import Glyphs
from workbench.tui.panels.drawing import Line, clean, cut, keep, width_of
from workbench.tui.panels.panel import Panel


def is_optimizer(name: str) -> bool:
    """Whether a thread of this name belongs to the host optimizer."""
    return name.startswith("host-adam/")


class ThreadsPanel(Panel):
    TITLE = "Threads"
    HELP: ClassVar[str | None] = """\
### Threads of the trainer

- **optimizer**: bytes of host memory that the optimizer read and wrote a second in the last step's update (1 GB is
  10^9 bytes), of what this machine's memory was measured to give (`workbench probe`). Near the limit, more threads gain
  nothing and only a smaller state format does.
- Each thread with the share of one core that it used, and the core on which it last ran; the busiest first. The marked
  ones, `host-adam/N`, are the host optimizer's.
"""

    def __init__(self, glyphs: Glyphs, *, id: str | None = None, classes: str | None = None) -> None:
        super().__init__(glyphs, id=id, classes=classes)
        self._trainer: TrainerSample | None = None
        self._sampled = False
        self._optimizer: tuple[float | None, float | None] = (None, None)

    def show(self, sample: MonitorSample) -> None:
        if self._sampled and sample.trainer == self._trainer:
            return
        self._trainer, self._sampled = sample.trainer, True
        self.changed()

    def set_optimizer(self, gb_per_s: float | None, limit_gb_per_s: float | None) -> None:
        """The optimizer's memory traffic in the last step and what this machine can do, 10^9 bytes a second."""
        if self._optimizer != (gb_per_s, limit_gb_per_s):
            self._optimizer = (gb_per_s, limit_gb_per_s)
            self.changed()

    def heading(self) -> tuple[str, ...]:
        if self._trainer is None or not self._trainer.alive:
            return ()
        cores = number(self._trainer.busy, 1)
        return f"{cores} cores{self.separator}{len(self._trainer.threads)} busy", f"{cores} cores", cores

    def lines(self, width: int, height: int) -> list[Line]:
        out = []
        if self._optimizer != (None, None):
            out.append(self._speed(width))
        trainer = self._trainer
        if trainer is None:
            return out + self.note("No training process is watched.", width)
        if not trainer.alive:
            return out + self.note(f"The training process {trainer.pid} has ended.", width)
        own = [thread for thread in trainer.threads if is_optimizer(thread.name)]
        if own and height >= 4:
            cores = sum(known(thread.busy) or 0.0 for thread in own)
            parts = [
                (
                    0,
                    [*self.write(self.glyphs.selected, "mark"), *self.write(f" host-adam {cores:.1f} cores")],
                ),
                (1, self.write(f"{len(own)} threads", "dim")),
            ]
            out.append(keep(width, parts))
        if not trainer.threads:
            out += self.note("None of its threads was busy.", width)
        return out + [self._thread(thread, width) for thread in trainer.threads]

    def _speed(self, width: int) -> Line:
        speed, limit = self._optimizer
        reached = share(speed, limit)
        value = f"{number(speed, 1)} of {number(limit, 1, 'GB/s')}" if limit else number(speed, 1, "GB/s")
        parts = [
            (1, self.write("optimizer", "dim")),
            (2, self.bar(reached, min(30, width - 40))),
            (0, self.write(value)),
        ]
        if reached is not None:
            parts.append((1, self.write(percent(reached))))
        return keep(width, parts, " ")

    def _thread(self, thread: ThreadSample, width: int) -> Line:
        own = is_optimizer(thread.name)
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
