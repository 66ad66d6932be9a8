"""One run, active or ended: its curves, the machine under it, its lanes, log, samples and events; and keys to steer it.

A reader thread posts one message a look; widgets only draw what they are given. Invariant: while the picture is frozen
or nobody sees the screen nothing is read and nothing drawn, and the run never notices.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import ClassVar

from textual import work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.message import Message

from workbench.errors import WorkbenchError
from workbench.formatting import known
from workbench.plan.outcome import Compared
from workbench.runs import ACTIVE, Event, Lanes, RunDirectory, liveness, read_status, send_control
from workbench.runs.control import Answer
from workbench.runs.launch import ExitReason
from workbench.tui.canvas import CachedLines
from workbench.tui.context import AppContext
from workbench.tui.dialogs import Choice, Confirm
from workbench.tui.panels.lanes import LanesPanel
from workbench.tui.panels.log import LogView
from workbench.tui.panels.status_line import KeyLine, StatusLine
from workbench.tui.run.charts import ChartGroup, RunCurves
from workbench.tui.run.events import LEARNED, Alerts, EventsPanel, RunEvent, run_event_of
from workbench.tui.run.groups import GROUPS, Group, GroupLine, PanelGroup, RunGroups
from workbench.tui.run.machine import MachinePanels, RecordedPanel
from workbench.tui.run.reading import RunLook, RunReader
from workbench.tui.run.replay import StepRecord, StepSlider, read_step
from workbench.tui.run.results import Outcome, SamplesView, SummaryPanel
from workbench.tui.run.steering import GOES_ON, SteeringScreen, end_at_once, stop_question
from workbench.tui.screens.live_screen import Reader

_LOG_EVERY = 2
"""Ticks from one look at the log to the next."""
_ASKED = {"pause": "pausing", "resume": "continuing", "save": "saving", "stop": "stopping"}


@dataclass
class RunRead(Message):
    """The outcome of one look; without a look where it went wrong in itself, which none should."""

    look: RunLook | None
    problem: str = ""


@dataclass
class DownsampledRead(Message):
    """The curves of some steps of a long run, to be drawn until all are read."""

    curves: RunCurves


class RunScreen(SteeringScreen, CachedLines):
    """Shows one run and steers it."""

    TITLE = "Run"
    HELP = """\
### Run

`1` charts, `2` machine, `3` lanes, `4` log, `5` samples, `6` events and, at the end, the summary: on a large terminal
all are shown and the digits move the focus, on a small one the digits switch.

`p` pauses and continues, `k` saves a checkpoint now, `s` stops (it saves first; press it again to end at once),
`R` resumes a run that was stopped or failed, and adds steps to a finished one.
`t` replays a run that has ended: a slider moves charts, lanes and the machine's sample to a step.
Where several ranks train, `r` shows the lanes and the log of the next one; all else is of rank 0.
`z` freezes the picture, not the training. `y` copies the run's folder.
`q` and escape leave; an active run is never ended without asking.
"""
    DEFAULT_CSS = """
    RunScreen {
        layout: vertical;
        & #summary { height: 72%; display: none; }
        & #recorded { display: none; }
        & .-maximized { height: 1fr; width: 1fr; }
    }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("p", "pause", "Pause/continue", id="run.pause"),
        Binding("k", "save", "Save now", id="run.save"),
        Binding("s", "stop", "Stop", id="run.stop"),
        Binding("R", "resume", "Resume", id="run.resume"),
        Binding("q,escape", "leave", "Leave", id="run.leave"),
        *(
            Binding(str(digit), f"group('{group}')", group.capitalize(), id=f"run.group_{digit}", show=False)
            for digit, group in enumerate(GROUPS, start=1)
        ),
        Binding("v", "next_chart", "Next chart", id="run.next_chart"),
        Binding("m", "one_alone", "One chart", id="run.one_alone"),
        Binding("r", "next_rank", "Next rank", id="run.next_rank"),
        Binding("z", "freeze", "Freeze", id="run.freeze"),
        Binding("t", "replay", "Replay", id="run.replay"),
        Binding("y", "copy_path", "Copy path", id="run.copy_path"),
    ]

    def __init__(self, context: AppContext, run: RunDirectory) -> None:
        super().__init__(context)
        self.run = run
        self.latest: RunLook | None = None
        """The last look, without its records and curves; None before the first."""
        self.frozen = False
        self.rank = 0
        """The one whose lanes and log are shown."""
        self.asked = ""
        """The command that is not answered yet, in one word: "pausing"."""
        self.stopping = False
        """The trainer was asked to stop, here or elsewhere, and has not ended yet."""
        self.reader = RunReader(run)
        self.reading = False
        self._alerts = Alerts()
        self._frozen_at = ""
        self._ticks = 0
        self._knows_the_past = False
        """The records from before this screen were read."""
        self._asking_to_leave = False
        self._last_lanes: Lanes | None = None
        self._alerted_at = 0.0
        self._watched: tuple[int | None, tuple[Path, ...]] | None = None
        self._checkpoints: list[tuple[float, str]] = []
        """Step and folder of those that were saved."""
        self._compared: tuple[Compared, ...] = ()
        self._exit_reason: ExitReason | None = None
        glyphs = context.glyphs
        self.line = StatusLine(glyphs, id="run-line")
        self.charts = ChartGroup(glyphs, id="charts")
        self.machine = MachinePanels(glyphs, self._machine_columns, id="machine")
        self.recorded = RecordedPanel(glyphs, id="recorded")
        self.lanes = LanesPanel(glyphs, id="lanes")
        self.log_view = LogView(glyphs, id="log")
        self.samples = SamplesView(glyphs, id="samples")
        self.summary = SummaryPanel(glyphs, id="summary")
        self.events = EventsPanel(glyphs, id="events")
        self.group_line = GroupLine(glyphs, run.name, id="run-groups")
        self.slider = StepSlider(glyphs, id="replay")
        self._step_reader = Reader(self, partial(read_step, run), self._show_step)
        self.groups = RunGroups(
            {
                "charts": self.charts,
                "machine": PanelGroup(self.machine, self.recorded),
                "lanes": PanelGroup(self.lanes),
                "log": PanelGroup(self.log_view),
                "samples": PanelGroup(self.samples),
                "events": PanelGroup(self.summary, self.events),
            },
            self.group_line,
        )

    def compose(self) -> ComposeResult:
        yield self.line
        yield self.group_line
        yield self.slider
        yield self.groups
        yield KeyLine(self.context.glyphs)

    def on_mount(self) -> None:
        self.title = self.run.name
        self.line.show_text(f"Reading {self.run.name}.")
        self.groups.choose("charts")
        self._show_notices()
        self.log_view.open(self.run.log)
        self._start_reading()

    # Groups.

    def _machine_columns(self, width: int, height: int) -> int:
        if self.size.width < 80 or width < 56:
            return 1
        if width >= 150:
            return 3
        return 1 if height // len(self.machine.panels) >= 6 else 2

    def on_group_line_chosen(self, event: GroupLine.Chosen) -> None:
        self.action_group(event.group)

    def action_group(self, group: Group) -> None:
        """Show the group, and focus it."""
        if self.maximized is not None:
            self.minimize()
        self.groups.choose(group)
        if group == "log":
            self.log_view.look()
        self._show_lanes()

    def action_next_chart(self) -> None:
        if "charts" not in self.groups.seen:
            self.action_group("charts")
        else:
            self.charts.next_chart()

    def action_one_alone(self) -> None:
        """Show the focused panel alone, or all again."""
        if self.maximized is not None:
            self.minimize()
        elif self.focused is not None:
            self.maximize(self.focused, container=False)

    def action_next_rank(self) -> None:
        """Show the lanes and the log of the next rank."""
        assert self.latest is not None
        self.rank = (self.rank + 1) % self.latest.ranks
        self._last_lanes = None
        self.lanes.show_lanes(Lanes())
        self.log_view.open(self.reader.show_rank(self.rank).log)
        self._show_notices()
        self.look()

    def action_freeze(self) -> None:
        """Stop redrawing, or go on; nothing but the picture stops."""
        self.frozen = not self.frozen
        self._frozen_at = time.strftime("%H:%M:%S", time.localtime(self.context.clock()))
        self._show_notices()
        self.look()

    def action_copy_path(self) -> None:
        self.app.copy_to_clipboard(str(self.run.path))
        self.report(f"Copied: {self.run.path}")

    # Reading.

    def look(self) -> None:
        """Look at the run, unless the picture is frozen or the last look still goes on."""
        if self.frozen:
            return
        self._ticks += 1
        if self._ticks % _LOG_EVERY == 0 and self.log_view.is_on_screen:
            self.log_view.look()
        if self.reading:
            self._show_sample()
        else:
            self._start_reading()  # the sample is shown with what it finds, in one picture

    def _start_reading(self) -> None:
        self.reading = True
        self._read()

    @work(thread=True, group="look", exit_on_error=False)
    def _read(self) -> None:
        try:
            if self.reader.looks == 0 and (some := self.reader.downsampled()) is not None:
                self.post_message(DownsampledRead(some))
            look = self.reader.look(self.context.clock())
            if look.curves is not None:
                look.curves.work_out()
        except Exception as error:
            self.post_message(RunRead(None, f"{type(error).__name__}: {error}"))
        else:
            self.post_message(RunRead(look))

    def on_downsampled_read(self, event: DownsampledRead) -> None:
        self.charts.show(event.curves)

    def on_run_read(self, event: RunRead) -> None:
        self.reading = False
        look, before = event.look, self.latest
        if look is None:
            self.events.set_problems((f"the run could not be read: {event.problem}",))
            return
        self.latest = replace(look, rows=None, curves=None)
        if look.more:
            # A long run's reading would hold up the picture of what is known already.
            self.reading = True
            self.call_after_refresh(self._start_reading)
        self.line.show_status(look.preset or self.run.name, look.status, look.state)
        if look.optimizer is not None:
            self.machine.set_load(look.optimizer)
            self.line.set_load("" if look.optimizer.ended else look.optimizer.short)
        self._show_sample()
        self.title = f"{look.preset} {self.run.name}" if look.preset else self.run.name
        self._watch(look)
        self._show_records(look)
        if look.lanes is not None and look.lanes_of == self.rank:
            self._last_lanes = look.lanes
            self._show_lanes()
        if look.samples is not None:
            self.samples.set_paths(look.samples)
        self._take_events(look)
        self.events.set_problems(look.problems)
        if before is None or (look.state, look.ranks) != (before.state, before.ranks):
            self.refresh_bindings()
        self._show_end(look, before)
        self._show_notices()

    def _show_records(self, look: RunLook) -> None:
        if look.curves is not None:
            records: tuple[Iterable[float], ...] = look.curves.newest(LEARNED)
            self.charts.show(look.curves)
        elif look.rows is not None:
            records = tuple(look.rows.column(name) for name in ("step", "loss", "grad_norm"))
            self.charts.add(look.rows)
        else:
            records = ()
            self.charts.draw_waiting(now=not look.active)
        alerts = self._alerts.of_records(*records, now=self.context.clock()) if records else []
        if self._knows_the_past:
            self._alert(alerts)
        self._knows_the_past = self._knows_the_past or not look.more

    def _show_lanes(self) -> None:
        # Sorting thousands of spans is left out while nobody sees them.
        if self._last_lanes is not None and "lanes" in self.groups.seen:
            self.lanes.show_lanes(self._last_lanes)

    def _take_events(self, look: RunLook) -> None:
        self.events.add(line for event in look.events if (line := run_event_of(event)) is not None)
        for event in look.events:
            if _is_stop(event, look):
                self.stopping = True
            step, path = event.fields.get("step"), event.fields.get("path")
            again = event.fields.get("from_step")
            if event.kind == "checkpoint" and isinstance(step, (int, float)):
                self._checkpoints.append((step, str(self.run.path / str(path))))
            elif event.kind == "resume" and isinstance(again, (int, float)):
                # Those of steps that are done again are set aside.
                self._checkpoints = [saved for saved in self._checkpoints if saved[0] < again]
        if not look.active:
            self.stopping, self.asked = False, ""
        elif look.state == "paused" and self.asked == _ASKED["pause"]:
            self.asked = ""

    # The machine.

    def _watch(self, look: RunLook) -> None:
        """Have the monitor sample the trainer, while it lives on this machine, and the run's disks."""
        folders = (self.run.path, *([look.disk_path] if look.disk_path else []))
        watched = (look.status.pid or None if look.active and look.here else None, folders)
        if watched != self._watched:
            self._watched = watched
            self.context.monitor.watch(pid=watched[0], folders=folders)

    def _show_sample(self) -> None:
        sample = self.context.monitor.latest
        self.machine.show(sample)
        if sample is not None and sample.time != self._alerted_at and self.latest and self.latest.active:
            self._alerted_at = sample.time
            self._alert(self._alerts.of_sample(sample))

    def _alert(self, alerts: list[RunEvent]) -> None:
        self.events.add(alerts)
        for alert in alerts:
            severity = "error" if alert.band == "bad" else "warning"
            self.notify(alert.text, title="Alert", severity=severity, markup=False)  # type: ignore[arg-type]

    # The end.

    def _show_end(self, look: RunLook, before: RunLook | None) -> None:
        self._compared = self._compared if look.compared is None else look.compared
        self._exit_reason = None if look.active else look.ended or self._exit_reason
        if look.recorded is not None:
            self.recorded.show(look.recorded)
        self._show_machine(now=look.active)
        self.summary.display = self._exit_reason is not None
        if self._exit_reason is not None:
            tokens = self.charts.curves.positions.along("tokens")
            self.summary.show(
                Outcome(
                    look.state,
                    look.status,
                    self._exit_reason,
                    known(tokens[-1]) if len(tokens) else None,
                    self.charts.curves.best_validation,
                    self._checkpoints[-1][1] if self._checkpoints else "",
                    self._compared,
                )
            )
        if look.active and self.slider.display:
            self._end_replay()
        if look.active and before is not None and not before.active and self.groups.chosen == "events":
            self.action_group("charts")  # it goes on: its summary is gone, its curves grow again
        elif not look.active and before is None:
            self.groups.show_aside("events")
        elif not look.active and before is not None and before.active:
            self._report_end(look)

    # Replay.

    def action_replay(self) -> None:
        """Slide over the steps of a run that has ended, or end that."""
        curves = self.charts.curves
        if self.slider.display:
            self._end_replay()
        elif self.latest is None or self.latest.more or curves.of or not len(curves):
            self.report("There is no step to show yet.", severity="warning")
        else:
            self.slider.display = True
            self.groups.leave_lines(3)
            self.slider.show(curves.positions.along("step"))
            self.slider.focus()

    def _end_replay(self) -> None:
        self.slider.display = False
        self.groups.leave_lines(2)
        self.charts.read_out(None)
        self.recorded.show_at(None)
        self.lanes.show_lanes(self._last_lanes or Lanes())
        self.groups.choose(self.groups.chosen)

    def on_step_slider_moved(self, message: StepSlider.Moved) -> None:
        self.charts.read_out(message.record)
        self._step_reader.read(message.record)

    def _show_step(self, found: StepRecord | None) -> None:
        if found is None or not self.slider.display:
            return
        self.recorded.show_at(found.time)
        if self._last_lanes is not None and found.step == self._last_lanes.step:
            self.lanes.show_lanes(self._last_lanes)
        else:
            self.lanes.show_seconds(found.step, found.step_s, found.lanes)

    def _show_machine(self, *, now: bool) -> None:
        """Show the machine as it is now, or as it was during the run."""
        if self.machine.display == now:
            return
        had_focus = self.focused in (*self.machine.panels, self.recorded)
        self.machine.display, self.recorded.display = now, not now
        if had_focus:
            (self.machine.panels[0] if now else self.recorded).focus()

    def _report_end(self, look: RunLook) -> None:
        """Report an end before the user's eyes."""
        message = look.status.message or (look.ended.message if look.ended else "")
        self.notify(
            f"{look.state}: {message}" if message else look.state,
            title=self.run.name,
            severity={"finished": "information", "stopped": "warning"}.get(look.state, "error"),  # type: ignore[arg-type]
            markup=False,
        )
        self.app.bell()
        self.action_group("events")

    # Steering.

    def steered(self) -> tuple[RunDirectory, str, bool] | None:
        return None if self.latest is None else (self.run, self.latest.state, self.latest.active)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Offer only what can be done to the run as it is now; before the first look, what an active one takes."""
        if not super().check_action(action, parameters):
            return False
        active = self.latest is None or self.latest.active
        if action == "replay":
            return not active
        if action == "next_rank":
            return self.latest is not None and self.latest.ranks > 1
        if action == "resume":
            return self.latest is not None and (self.latest.state == "paused" or self.latest.state in GOES_ON)
        return active if action in _ASKED else True

    def action_pause(self) -> None:
        if self.asked == _ASKED["pause"]:
            self.steer(self.run, "resume")
        else:
            super().action_pause()

    def action_stop(self) -> None:
        """Stop and save; of a run that is stopping already, end it at once."""
        if self.stopping:
            self._end_at_once()
        else:
            super().action_stop()

    @work(group="stop", exclusive=True, exit_on_error=False)
    async def _end_at_once(self) -> None:
        text = (
            f"{self.run.name} is stopping already: it finishes its step and saves. End it at once? What it did "
            "since its last checkpoint is lost."
        )
        dialog = Confirm(
            "End at once", text, "End at once", "Let it save", danger=True, glyphs=self.context.glyphs
        )
        if await self.app.push_screen_wait(dialog):
            self.report("Ending at once ...")
            answer = await asyncio.to_thread(end_at_once, self.run)
            self.report(
                f"{self.run.name}: {answer.message}", severity="information" if answer.done else "warning"
            )

    def command_sent(self, run: RunDirectory, command: str) -> None:
        self.asked = _ASKED[command]
        self.stopping = self.stopping or command == "stop"
        self._show_notices()

    def command_answered(self, run: RunDirectory, command: str, answer: Answer) -> None:
        if self.asked == _ASKED[command]:
            self.asked = ""
        if command == "stop" and not answer.done and "no answer" not in answer.message:
            self.stopping = False
        self._show_notices()

    def _show_notices(self) -> None:
        notices = [
            f"frozen at {self._frozen_at}, z continues" if self.frozen else "",
            "read-only" if self.context.read_only else "",
            f"lanes and log of rank {self.rank}" if self.rank else "",
            "stopping" if self.stopping else self.asked,
        ]
        self.line.set_notice(f" {self.context.glyphs.separator} ".join(filter(None, notices)))

    # Leaving.

    @work(group="leave", exit_on_error=False)
    async def action_leave(self) -> None:
        if await self.may_quit():
            if len(self.app.screen_stack) > 1:
                self.dismiss()
            else:
                self.app.exit()

    async def may_quit(self) -> bool:
        """Ask whether to leave a run that trains, unless runs are only watched. To be awaited in a worker."""
        if self.context.read_only or self._asking_to_leave:
            return self.context.read_only
        self._asking_to_leave = True
        try:
            status = await asyncio.to_thread(read_status, self.run)
            if liveness(status, self.context.clock()) not in ACTIVE:
                return True
            dialog = Choice(
                "Leave",
                (
                    ("detach", "Detach: training goes on"),
                    ("stop", "Stop and save: finish the step, save, end"),
                    ("return", "Return to the run"),
                ),
                f"{self.run.name} is {'stopping' if self.stopping else 'training'}.",
                glyphs=self.context.glyphs,
            )
            choice = await self.app.push_screen_wait(dialog)
            if choice == "stop":
                if not await self.app.push_screen_wait(stop_question(self.run, self.context.glyphs)):
                    return False
                await asyncio.to_thread(send_control, self.run, "stop")
            return choice in ("detach", "stop")
        except WorkbenchError as error:
            self.report(str(error), severity="error")
            return False
        finally:
            self._asking_to_leave = False


def _is_stop(event: Event, look: RunLook) -> bool:
    """Tell whether this trainer, not one before it, has taken a stop."""
    stop = event.kind == "control" and event.fields.get("verb") == "stop"
    return stop and look.active and event.time >= look.status.pid_started
