"""The host optimizer's load: what its updates take of a step, what the model waits for, what they use of the machine.

Invariant: all of it is of the session that goes on, or of the last one of a run that has ended; nothing of an earlier
session is shown as present. Whoever does an update counts, the thread that calls the optimizer too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from workbench.formatting import known, number, percent, share
from workbench.monitor.samples import TrainerSample
from workbench.tui.charts.bars import sparkline
from workbench.tui.glyphs import Glyphs
from workbench.tui.panels.panel import Line, SamplePanel, keep, width_of

_LANE = "lane-update"
_POOL = "host-adam/"
_SPARK_LABEL = "exposed "


@dataclass(frozen=True)
class OptimizerLoad:
    """Seconds of the newest steps of one session, the oldest first; and the update of the last of them.

    `update_s`: in which the host optimizer worked, of which the model waited `exposed_s`. `gb_per_s`: memory traffic
    within updates, 10^9 bytes a second, `limit_gb_per_s` what the machine was measured to give. `ahead`: share of the
    parameters that the last step updated ahead of its gradients' norm, `undone`: share that it undid. None: not known.
    """

    step_s: tuple[float, ...] = ()
    update_s: tuple[float, ...] = ()
    exposed_s: tuple[float, ...] = ()
    threads: int | None = None
    state_format: str = ""
    gb_per_s: float | None = None
    limit_gb_per_s: float | None = None
    ahead: float | None = None
    undone: float | None = None
    ended: bool = False
    on_device: bool = False
    """The state lives on the device: the host updates nothing."""

    @property
    def share(self) -> float | None:
        """Of the last step, the part in which an update ran."""
        return share(self.update_s[-1], self.step_s[-1]) if self.step_s else None

    @property
    def exposed_share(self) -> float | None:
        return share(self.exposed_s[-1], self.step_s[-1]) if self.step_s else None

    @property
    def short(self) -> str:
        """For one line among others: "opt 14 % exposed 2 %"; empty where nothing is known."""
        if self.on_device or self.share is None:
            return ""
        return f"opt {fine_percent(self.share)} exposed {fine_percent(self.exposed_share)}"


def optimizer_threads(trainer: TrainerSample | None, load: OptimizerLoad) -> Mapping[int, float]:
    """Return the host optimizer's part of a core by thread id, of those of the trainer's threads that work for it.

    All that the pool's threads and the update lane do is its work. Where the model waited for all of the updates the
    process's first thread called them, and worked for them as long as they took.
    """
    if trainer is None or not trainer.alive:
        return {}
    found = {
        thread.thread_id: known(thread.busy) or 0.0
        for thread in trainer.threads
        if thread.name == _LANE or thread.name.startswith(_POOL)
    }
    steps, updates, exposed = (sum(each[-_RECENT:]) for each in (load.step_s, load.update_s, load.exposed_s))
    is_called_by_first = exposed >= 0.99 * updates and not any(t.name == _LANE for t in trainer.threads)
    first = next((thread for thread in trainer.threads if thread.thread_id == trainer.pid), None)
    if is_called_by_first and first is not None and steps and not load.on_device and not load.ended:
        found[first.thread_id] = min(known(first.busy) or 0.0, updates / steps)
    return found


_RECENT = 10
"""Steps over which the calling thread's part is taken."""


class HostOptimizerPanel(SamplePanel):
    TITLE = "Host optimizer"
    HELP: ClassVar[str | None] = """\
### Host optimizer

- **update**: seconds of the last step in which the host optimizer worked, on whatever thread, and their share of the
  step. **exposed**: those of them in which the model waited; the rest was hidden behind compute.
- **cores**: processor time a second of the threads `host-adam/N`, `lane-update` and, if that is idle, the trainer's
  first one, which then calls the optimizer. **threads**: those of its pool, with the calling one.
- **GB/s**: bytes of host memory that it read and wrote a second within updates (1 GB is 10^9 bytes), of the measured
  memory bandwidth (`workbench probe`). Near the limit, more threads gain nothing and only a smaller state format
  does. **from caches**: faster than memory, since a small state lives in the processor's caches.
- **ahead of the norm**: share of the parameters that were updated while backward still ran, as if gradients were not
  clipped; **undone**: those of them that were undone to the bit and updated again, since the norm was above the limit.
- Below: update and exposed seconds of the newest steps on one scale, the last at the right.
"""

    def __init__(self, glyphs: Glyphs, *, id: str | None = None) -> None:
        super().__init__(glyphs, id=id)
        self.load: OptimizerLoad | None = None

    def set_load(self, load: OptimizerLoad | None) -> None:
        """Show another load; None: no run is watched."""
        if load != self.load:
            self.load = load
            self.changed()

    def heading(self) -> tuple[str, ...]:
        load = self.load
        if load is None or load.on_device or load.share is None:
            return ()
        then = " (last step)" if load.ended else ""
        first = f"{fine_percent(load.share)} of the step{then}"
        exposed = f"exposed {fine_percent(load.exposed_share)}"
        return (
            f"{first}{self.separator}{exposed}",
            f"{fine_percent(load.share)}{self.separator}{exposed}",
            fine_percent(load.share),
        )

    def lines(self, width: int, height: int) -> list[Line]:
        load = self.load
        if load is None:
            return self.note("No run is training.", width)
        if load.on_device:
            return self.note("The optimizer's state is on the device; the host updates nothing.", width)
        if not load.step_s:
            return self.note("No step yet in this session.", width)
        out = [self._seconds(load, width), self._use(load, width), self._speed(load, width)]
        rows = max(1, (height - len(out)) // 2)
        if height > len(out):
            out += self._history(load, width, rows, with_exposed=height >= len(out) + 2)
        return out

    def _seconds(self, load: OptimizerLoad, width: int) -> Line:
        exposed = load.exposed_share or 0.0
        band = "" if exposed < 0.05 else "warning" if exposed < 0.2 else "bad"
        parts = [
            (0, self.named("update", f"{seconds(load.update_s[-1])} of {seconds(load.step_s[-1])}")),
            (2, self.write(fine_percent(load.share))),
            (1, self.named("exposed", seconds(load.exposed_s[-1]), band)),
            (3, self.write(fine_percent(load.exposed_share), band)),
        ]
        return keep(width, parts)

    def _use(self, load: OptimizerLoad, width: int) -> Line:
        trainer = self.sample.trainer if self.sample else None
        parts: list[tuple[int, Line]] = []
        if trainer is not None and trainer.alive and not load.ended:
            cores = sum(optimizer_threads(trainer, load).values())
            parts.append(
                (0, [*self.write(f"{self.glyphs.selected} ", "mark"), *self.write(f"{cores:.2f} cores")])
            )
        threads = "N/A" if load.threads is None else str(load.threads)
        parts.append((1, self.named("threads", threads)))
        parts.append((2, self.named("format", load.state_format or "N/A")))
        if load.ahead:
            parts.append((3, self.named("ahead of the norm", percent(load.ahead))))
            parts.append((4, self.named("undone", percent(load.undone), "warning" if load.undone else "")))
        return keep(width, parts)

    def _speed(self, load: OptimizerLoad, width: int) -> Line:
        speed, limit = load.gb_per_s, load.limit_gb_per_s
        reached = share(speed, limit)
        if limit and speed is not None and speed > limit:
            return keep(
                width, [(0, self.write(number(speed, 1, "GB/s"))), (1, self.write("from caches", "dim"))], " "
            )
        value = f"{number(speed, 1)} of {number(limit, 1, 'GB/s')}" if limit else number(speed, 1, "GB/s")
        parts = [(0, self.write(value)), (3, self.bar(reached, min(30, width - 40)))]
        if reached is not None:
            parts.append((1, self.write(percent(reached))))
        else:
            parts.append((2, self.write("limit not measured", "dim")))
        return keep(width, parts, " ")

    def _history(self, load: OptimizerLoad, width: int, rows: int, *, with_exposed: bool) -> list[Line]:
        """Return update and exposed seconds a step on one scale, `rows` lines each."""
        top = max(load.update_s, default=0.0)
        out: list[Line] = []
        kinds = [("update ", load.update_s, "mark")]
        if with_exposed:
            kinds.append((_SPARK_LABEL, load.exposed_s, "bad"))
        highest = f" top {seconds(top)}"
        for label, values, pen in kinds:
            room = max(0, width - len(_SPARK_LABEL) - len(highest))
            drawn = sparkline(values, room, self.glyphs, height=rows, high=top or 1.0)
            for row, cells in enumerate(drawn):
                start = label if row == 0 else ""
                end = highest if row == 0 and label != _SPARK_LABEL else ""
                line = [*self.write(f"{start:{len(_SPARK_LABEL)}}", "dim"), *self.write(cells, pen)]
                out.append([*line, *self.write(end, "dim")] if width_of(line) + len(end) <= width else line)
        return out


def fine_percent(share: float | None) -> str:
    """Return a share as `percent` does, below a tenth with one more digit."""
    return f"{100 * share:.1f} %" if share is not None and 0 < share < 0.0995 else percent(share)


def seconds(value: float) -> str:
    """Return seconds in three digits: 204 ms, 1.50 s."""
    if value < 0.9995e-3:
        return f"{1e6 * value:.0f} us"
    if value < 0.9995:
        return f"{1e3 * value:.{0 if value >= 0.0995 else 1}f} ms"
    return f"{value:.2f} s"
