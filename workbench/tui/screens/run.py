"""One run, living or ended: its curves, the machine under it, its lanes, log, samples and events; and keys to steer it.

A reader thread posts one message a look; widgets only draw what they are given. Invariant: while the picture is frozen
or nobody sees the screen nothing is read and nothing drawn, and the run never notices.
"""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

from textual import events, work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Container, Vertical
from textual.message import Message
from textual.screen import ModalScreen
from textual.widget import Widget

from workbench.launch import LastWords
from workbench.monitor.samples import MonitorSample
from workbench.plan.outcome import Compared
from workbench.runs import Lanes, RunDirectory
from workbench.tui.panels.key_line import KeyLine
from workbench.tui.panels.lanes import LanesPanel
from workbench.tui.panels.status_line import StatusLine
from workbench.tui.panels.units import known
from workbench.tui.run.alerts import Alerts
from workbench.tui.run.arrangement import GROUPS, SIDE, Group, arrange_groups
from workbench.tui.run.curves import RunCurves
from workbench.tui.run.events_panel import EventsPanel
from workbench.tui.run.group_line import GroupLine
from workbench.tui.run.happenings import Happening, happening_of
from workbench.tui.run.linked_chart import ChartGroup
from workbench.tui.run.machine_group import MachineGroup
from workbench.tui.run.reading import RunLook, RunReader
from workbench.tui.run.run_log import RunLog
from workbench.tui.run.samples_view import SamplesView
from workbench.tui.run.steering import SteeredScreen
from workbench.tui.run.summary_panel import Outcome, SummaryPanel
from workbench.tui.surroundings import Surroundings

_MANY = 2000
"""So many records at once are made into series in the reader's thread."""
_COMPACT_WIDTH = 80
_LOG_EVERY = 2
"""Ticks from one look at the log to the next."""
_MANY_SPANS, _SPANS_EVERY = 400, 4
"""So many spans and more are sorted and drawn every so many ticks: one look at thousands takes milliseconds."""
_NOT_GROUPS = 3
"""Lines of the screen that are no groups: status, their names, keys."""


class RunRead(Message):
    """One look at the run. `curves`: where the whole run was read, its series."""

    def __init__(self, look: RunLook, curves: RunCurves | None) -> None:
        super().__init__()
        self.look = look
        self.curves = curves


class CurveReady(Message):
    """One series of a whole run is worked out and may be drawn."""

    def __init__(self, curves: RunCurves, name: str) -> None:
        super().__init__()
        self.curves = curves
        self.name = name


class RunUnread(Message):
    """A look went wrong in itself, which none should."""

    def __init__(self, problem: str) -> None:
        super().__init__()
        self.problem = problem


class RunScreen(SteeredScreen):
    """One run. `ResumeRun` is asked of the application; `may_leave` is what it asks before it quits."""

    TITLE = "Run"
    HELP = """\
### Run

`1` charts, `2` machine, `3` lanes, `4` log, `5` samples, `6` events and, at the end, the summary: on a large terminal
they stand beside each other and the digits move the focus, on a small one they switch.

`p` pauses and goes on, `k` saves a checkpoint now, `s` stops (it saves first; pressed again it offers to end at once),
`R` resumes a run that has ended. `z` freezes the picture, not the training. `y` copies the run's folder. `q` and escape
leave; a run that goes on is never ended without a question.
"""
    CSS = """
    RunScreen {
        layout: vertical;
        & #groups { height: 1fr; layout: vertical; overflow: hidden; }
        & #groups > * { position: absolute; }
        & .group > Panel { height: 1fr; }
        & #summary { height: 72%; display: none; }
        & .-maximized { height: 1fr; width: 1fr; }
    }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        *(
            Binding(str(digit), f"group('{group}')", group.capitalize(), id=f"run.group_{digit}", show=False)
            for digit, group in enumerate(GROUPS, start=1)
        ),
        Binding("z", "freeze", "Freeze", id="run.freeze"),
        Binding("v", "next_chart", "Next chart", id="run.next_chart"),
        Binding("m", "one_alone", "One alone", id="run.one_alone"),
        Binding("y", "copy_path", "Copy path", id="run.copy_path"),
    ]

    def __init__(self, surroundings: Surroundings, run: RunDirectory) -> None:
        super().__init__()
        self.surroundings = surroundings
        self.run = run
        self.frozen = False
        self.chosen: Group = "charts"
        self.side: Group = "log"
        self.alerts = Alerts()
        glyphs = surroundings.glyphs
        self.line = StatusLine(glyphs, id="run-line")
        self.groups_line = GroupLine(glyphs, id="run-groups")
        self.charts = ChartGroup(glyphs, id="charts")
        self.machine = MachineGroup(glyphs, id="machine")
        self.lanes = LanesPanel(glyphs, id="lanes")
        self.log_view = RunLog(glyphs, id="log")
        self.samples = SamplesView(glyphs, id="samples")
        self.summary = SummaryPanel(glyphs, id="summary")
        self.events = EventsPanel(glyphs, id="events")
        self._groups: dict[Group, Widget] = {
            "charts": self.charts,
            "machine": self.machine,
            "lanes": Vertical(self.lanes, classes="group"),
            "log": Vertical(self.log_view, classes="group"),
            "samples": Vertical(self.samples, classes="group"),
            "events": Vertical(self.summary, self.events, classes="group"),
        }
        self._seen: tuple[Group, ...] = ()
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
        self._words: LastWords | None = None

    def compose(self) -> ComposeResult:
        yield self.line
        yield self.groups_line
        yield Container(*self._groups.values(), id="groups")
        yield KeyLine(self.surroundings.glyphs)

    def on_mount(self) -> None:
        self.title = self.run.name
        self.line.show_text(f"Reading {self.run.name}.")
        self._place()
        self._focus("charts")
        self.tell_notice()
        self.log_view.open(self.run.log)
        self._look()
        self._show_sample()
        self.set_interval(self.surroundings.interval_s, self.tick)

    def on_resize(self, event: events.Resize) -> None:
        self._place()

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
            look = self._reader.look(self.surroundings.clock())
            curves = None
            if look.rows is not None and look.rows.keep == 0 and len(look.rows) >= _MANY:
                curves = RunCurves()
                curves.add(look.rows)
                for name in RunCurves.NAMES:
                    curves.work_out(name)
                    self.post_message(CurveReady(curves, name))
        except Exception as error:
            self.post_message(RunUnread(f"{type(error).__name__}: {error}"))
        else:
            self.post_message(RunRead(look, curves))

    def on_curve_ready(self, event: CurveReady) -> None:
        self.charts.show(event.curves, (event.name,))

    def on_run_unread(self, event: RunUnread) -> None:
        self._reading = False
        self.events.set_problems((f"the run could not be read: {event.problem}",))

    def on_run_read(self, event: RunRead) -> None:
        self._reading = False
        look, before = event.look, self.latest
        # Without its rows, which the series have taken over.
        self.latest = replace(look, rows=None)
        if look.more:
            self._look()
        self.line.show_status(self.run.name, look.status, look.state)
        self._show_sample()
        self.title = f"{look.preset} {self.run.name}" if look.preset else self.run.name
        self._watch(look)
        self._show_curves(look, event.curves)
        if look.lanes is not None:
            self._last_lanes = look.lanes
        if self._last_lanes is not None and (
            len(self._last_lanes.spans) <= _MANY_SPANS or self._ticks % _SPANS_EVERY == 0 or look.more
        ):
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
        self._name_groups()

    def _show_curves(self, look: RunLook, curves: RunCurves | None) -> None:
        if look.rows is None:
            self.charts.settle()
        else:
            if self._known:
                self._alert(self.alerts.of_records(look.rows, self.surroundings.clock()))
            else:
                self.alerts.learn(look.rows)
            if curves is None:
                self.charts.add(look.rows)
        self._known = self._known or not look.more

    def _show_lanes(self) -> None:
        """Sorting thousands of spans is left out while nobody sees them."""
        if self._last_lanes is not None and "lanes" in self._seen:
            self.lanes.show_lanes(self._last_lanes)

    def _take_events(self, look: RunLook) -> None:
        self.events.add(said for event in look.events if (said := happening_of(event)) is not None)
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
            return
        if before is None:
            self.side = "events"
            self._place()
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
            self.surroundings.monitor.watch(pid=watched[0] or None, folders=folders)

    def _show_sample(self) -> None:
        sample = self.surroundings.monitor.latest
        if sample is None or (self._sample is not None and sample.time == self._sample.time):
            return
        self._sample = sample
        self.machine.show(sample)
        if self.latest is not None and self.latest.living:
            self._alert(self.alerts.of_sample(sample))

    def _alert(self, happenings: list[Happening]) -> None:
        self.events.add(happenings)
        for happening in happenings:
            severity = "error" if happening.band == "bad" else "warning"
            self.notify(happening.text, title="Alert", severity=severity, markup=False)  # type: ignore[arg-type]

    # Groups.

    def _place(self) -> None:
        """Show the groups that there is room for."""
        width, height = self.size.width, max(1, self.size.height - _NOT_GROUPS)
        regions = arrange_groups(width, height, self.chosen, self.side)
        self.machine.set_compact(width < _COMPACT_WIDTH)
        for group, widget in self._groups.items():
            region = regions.get(group)
            if region is not None:
                widget.styles.offset = (region.x, region.y)
                widget.styles.width, widget.styles.height = region.width, region.height
            widget.display = region is not None
        self._seen = tuple(regions)
        self._name_groups()

    def _name_groups(self) -> None:
        preset = self.latest.preset if self.latest is not None else ""
        self.groups_line.show(self._seen, f"{self.run.name} ({preset})" if preset else self.run.name)

    def _focus(self, group: Group) -> None:
        """Focus the group's first panel, unless one of its panels has the focus."""
        widget = self._groups[group]
        inside = [each for each in widget.walk_children(Widget) if each.focusable and each.display]
        if inside and not any(each.has_focus for each in inside):
            inside[0].focus()

    def on_group_line_chosen(self, event: GroupLine.Chosen) -> None:
        self.action_group(event.group)

    def action_group(self, group: Group) -> None:
        """Show the group, and focus it."""
        if self.maximized is not None:
            self.minimize()
        self.chosen = group
        if group in SIDE:
            self.side = group
        self._place()
        self._focus(group)
        if group == "log":
            self.log_view.look()
        self._show_lanes()

    def action_next_chart(self) -> None:
        if "charts" not in self._seen:
            self.action_group("charts")
        else:
            self.charts.next_chart()

    def action_one_alone(self) -> None:
        """Show the focused panel alone, or all again."""
        if self.maximized is not None:
            self.minimize()
        elif isinstance(self.focused, Widget):
            self.maximize(self.focused, container=False)

    def action_freeze(self) -> None:
        """Stop redrawing, or go on; nothing but the picture stops."""
        self.frozen = not self.frozen
        self._frozen_at = time.strftime("%H:%M:%S", time.localtime(self.surroundings.clock()))
        self.tell_notice()
        self.tick()

    def action_copy_path(self) -> None:
        self.app.copy_to_clipboard(str(self.run.path))
        self._tell(f"Copied: {self.run.path}")

    def tell_notice(self) -> None:
        notices = []
        if self.frozen:
            notices.append(f"frozen at {self._frozen_at}, z goes on")
        if self.surroundings.read_only:
            notices.append("read-only")
        if self.stopping:
            notices.append("stopping")
        elif self.asked:
            notices.append(self.asked)
        self.line.set_notice(f" {self.surroundings.glyphs.separator} ".join(notices))
