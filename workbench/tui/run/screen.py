"""One run, living or ended: its curves, the machine under it, its lanes, log, samples and events; and keys to steer it.

A reader thread posts one message a look; widgets only draw what they are given. Invariant: while the picture is frozen
or nobody sees the screen nothing is read and nothing drawn, and the run never notices.
"""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

from textual import work
from textual.binding import Binding, BindingType
from textual.message import Message
from textual.screen import ModalScreen

from workbench.formatting import known
from workbench.monitor.samples import MonitorSample
from workbench.plan.outcome import Compared
from workbench.runs import Lanes, RunDirectory
from workbench.runs.launch import ExitReason
from workbench.tui.context import AppContext
from workbench.tui.run.alerts import LEARNED, Alerts
from workbench.tui.run.curves import RunCurves
from workbench.tui.run.events import RunEvent, run_event_of
from workbench.tui.run.grouped_screen import GroupedScreen
from workbench.tui.run.panel_layout import Group
from workbench.tui.run.reading import RunLook, RunReader
from workbench.tui.run.summary_panel import Outcome

_LOG_EVERY = 2
"""Ticks from one look at the log to the next."""


class RunRead(Message):
    """One look at the run."""

    def __init__(self, look: RunLook) -> None:
        super().__init__()
        self.look = look


class CurvesReady(Message):
    """These series of a run are worked out and may be drawn."""

    def __init__(self, curves: RunCurves, names: tuple[str, ...]) -> None:
        super().__init__()
        self.curves = curves
        self.names = names


class RunUnread(Message):
    """A look went wrong in itself, which none should."""

    def __init__(self, problem: str) -> None:
        super().__init__()
        self.problem = problem


class RunScreen(GroupedScreen):
    """One run. `ResumeRun` is asked of the application; `may_leave` is what it asks before it quits."""

    TITLE = "Run"
    HELP = """\
### Run

`1` charts, `2` machine, `3` lanes, `4` log, `5` samples, `6` events and, at the end, the summary: on a large terminal
they stand beside each other and the digits move the focus, on a small one they switch.

`p` pauses and goes on, `k` saves a checkpoint now, `s` stops (it saves first; pressed again it offers to end at once),
`R` resumes a run that was stopped or failed, and gives more steps to one that has done all of its own.
`z` freezes the picture, not the training. `y` copies the run's folder.
`q` and escape leave; a run that goes on is never ended without a question.
"""
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("z", "freeze", "Freeze", id="run.freeze"),
        Binding("y", "copy_path", "Copy path", id="run.copy_path"),
    ]

    def __init__(self, context: AppContext, run: RunDirectory) -> None:
        super().__init__(context)
        self.run = run
        self.frozen = False
        self.alerts = Alerts()
        self._frozen_at = ""
        self._reader = RunReader(run)
        self._reading = False
        self._ticks = 0
        self._known = False
        """Whether what the run had recorded before this screen is known."""
        self._last_lanes: Lanes | None = None
        self._sample: MonitorSample | None = None
        self._watched: tuple[int | None, tuple[Path, ...]] | None = None
        self._checkpoints: list[tuple[float, str]] = []
        """Step and folder of those that were saved."""
        self._compared: tuple[Compared, ...] = ()
        self._words: ExitReason | None = None

    def on_mount(self) -> None:
        self.title = self.run.name
        self.line.show_text(f"Reading {self.run.name}.")
        self.place_groups()
        self.focus_group("charts")
        self.tell_notice()
        self.log_view.open(self.run.log)
        self._look()
        self._show_sample()
        self.set_interval(self.context.interval_s, self.tick)

    def on_screen_resume(self) -> None:
        self.tick()

    # Reading.

    def tick(self) -> None:
        """A look, unless the picture is frozen, nobody sees it or the last look still goes on."""
        # Beneath a dialog the picture goes on; beneath another screen nobody sees it.
        seen = self.is_active or (self.is_current and isinstance(self.app.screen, ModalScreen))
        if self.frozen or not seen:
            return
        self._ticks += 1
        if self._ticks % _LOG_EVERY == 0 and self.log_view.is_on_screen:
            self.log_view.look()
        if self._reading:
            self._show_sample()
        else:
            self._look()  # the sample is shown with what it finds, in one picture

    def _look(self) -> None:
        self._reading = True
        self._read()

    @work(thread=True, group="look", exit_on_error=False)
    def _read(self) -> None:
        try:
            if self._reader.looks == 0 and (seen := self._reader.glimpse()) is not None:
                self.post_message(CurvesReady(seen, RunCurves.NAMES))
            look = self._reader.look(self.context.clock())
            if look.curves is not None:
                for name in RunCurves.NAMES:
                    look.curves.work_out(name)
                    self.post_message(CurvesReady(look.curves, (name,)))
                look.curves.work_out_axes()
        except Exception as error:
            self.post_message(RunUnread(f"{type(error).__name__}: {error}"))
        else:
            self.post_message(RunRead(look))

    def on_curves_ready(self, event: CurvesReady) -> None:
        self.charts.show(event.curves, event.names)

    def on_run_unread(self, event: RunUnread) -> None:
        self._reading = False
        self.events.set_problems((f"the run could not be read: {event.problem}",))

    def on_run_read(self, event: RunRead) -> None:
        self._reading = False
        look, before = event.look, self.latest
        # Without its rows and series, which the charts have taken over.
        self.latest = replace(look, rows=None, curves=None)
        if look.more:
            # A long run's reading would hold up the picture of what is known already.
            self._reading = True
            self.call_after_refresh(self._look)
        self.line.show_status(look.preset or self.run.name, look.status, look.state)
        self._show_sample()
        self.title = f"{look.preset} {self.run.name}" if look.preset else self.run.name
        self._watch(look)
        self._show_curves(look)
        if look.lanes is not None:
            self._last_lanes = look.lanes
            self._show_lanes()
        if look.optimizer is not None:
            self.machine.threads.set_optimizer(*look.optimizer)
        if look.samples is not None:
            self.samples.set_paths(look.samples)
        self._take_events(look)
        self.events.set_problems(look.problems)
        self.note_control(look)
        self._show_end(look)
        self._tell_end(look, before)
        self.tell_notice()
        self.name_groups()

    def _show_curves(self, look: RunLook) -> None:
        rows = look.rows if look.curves is None else look.curves.newest(LEARNED)
        if rows is not None and self._known:
            self._alert(self.alerts.of_records(rows, self.context.clock()))
        elif rows is not None:
            self.alerts.learn(rows)
        if look.rows is not None:
            self.charts.add(look.rows)
        elif look.curves is None:
            self.charts.settle(now=not look.living)
        self._known = self._known or not look.more

    def group_shown(self, group: Group) -> None:
        if group == "log":
            self.log_view.look()
        self._show_lanes()

    def _show_lanes(self) -> None:
        """Sorting thousands of spans is left out while nobody sees them."""
        if self._last_lanes is not None and "lanes" in self.seen:
            self.lanes.show_lanes(self._last_lanes)

    def _take_events(self, look: RunLook) -> None:
        self.events.add(said for event in look.events if (said := run_event_of(event)) is not None)
        for event in look.events:
            step, path = event.fields.get("step"), event.fields.get("path")
            if event.kind == "checkpoint" and isinstance(step, (int, float)):
                self._checkpoints.append((step, str(self.run.path / str(path))))
            elif event.kind == "resume" and isinstance(event.fields.get("from_step"), (int, float)):
                # Those of steps that are done again are set aside.
                again = event.fields["from_step"]
                self._checkpoints = [saved for saved in self._checkpoints if saved[0] < again]

    def _show_end(self, look: RunLook) -> None:
        self._compared = self._compared if look.compared is None else look.compared
        self._words = None if look.living else look.ended or self._words
        self.machine.set_living(look.living)
        if look.recorded is not None:
            self.machine.show_recorded(look.recorded)
        self.summary.display = self._words is not None
        if self._words is not None:
            curves = self.charts.curves
            tokens = curves.positions.along("tokens")
            self.summary.show(
                Outcome(
                    look.state,
                    look.status,
                    self._words,
                    known(tokens[-1]) if tokens else None,
                    curves.best_validation,
                    self._checkpoints[-1][1] if self._checkpoints else "",
                    self._compared,
                )
            )

    def _tell_end(self, look: RunLook, before: RunLook | None) -> None:
        if look.living:
            if before is not None and not before.living and self.chosen == "events":
                self.action_group("charts")  # it goes on: its summary is gone, its curves grow again
            return
        if before is None:
            self.side = "events"
            self.place_groups()
        elif before.living:
            # It has ended before one's eyes.
            band = {"finished": "information", "stopped": "warning"}.get(look.state, "error")
            told = look.status.message or (look.ended.message if look.ended else "")
            self.notify(
                f"{look.state}: {told}" if told else look.state,
                title=self.run.name,
                severity=band,  # type: ignore[arg-type]
                markup=False,
            )
            self.app.bell()
            self.action_group("events")

    # The machine.

    def _watch(self, look: RunLook) -> None:
        """Have the monitor sample the trainer, while it lives on this machine, and the run's disks."""
        folders = (self.run.path, *([look.disk_path] if look.disk_path else []))
        watched = (look.status.pid if look.living and look.here else None, folders)
        if watched != self._watched:
            self._watched = watched
            self.context.monitor.watch(pid=watched[0] or None, folders=folders)

    def _show_sample(self) -> None:
        sample = self.context.monitor.latest
        if sample is None or (self._sample is not None and sample.time == self._sample.time):
            return
        self._sample = sample
        self.machine.show(sample)
        if self.latest is not None and self.latest.living:
            self._alert(self.alerts.of_sample(sample))

    def _alert(self, events: list[RunEvent]) -> None:
        self.events.add(events)
        for event in events:
            severity = "error" if event.band == "bad" else "warning"
            self.notify(event.text, title="Alert", severity=severity, markup=False)  # type: ignore[arg-type]

    def action_freeze(self) -> None:
        """Stop redrawing, or go on; nothing but the picture stops."""
        self.frozen = not self.frozen
        self._frozen_at = time.strftime("%H:%M:%S", time.localtime(self.context.clock()))
        self.tell_notice()
        self.tick()

    def action_copy_path(self) -> None:
        self.app.copy_to_clipboard(str(self.run.path))
        self._tell(f"Copied: {self.run.path}")

    def tell_notice(self) -> None:
        notices = []
        if self.frozen:
            notices.append(f"frozen at {self._frozen_at}, z goes on")
        if self.context.read_only:
            notices.append("read-only")
        if self.stopping:
            notices.append("stopping")
        elif self.asked:
            notices.append(self.asked)
        self.line.set_notice(f" {self.context.glyphs.separator} ".join(notices))
