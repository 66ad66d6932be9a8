"""Samples, events, summary, the recorded machine and the line of groups: right at any size, plain in ASCII mode."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import numpy as np
import pytest
from panel_host import BOXES, check_box, shown_widget
from panel_host import drawn as drawn_rows
from run_host import ended, live, picture
from screen_host import until
from textual.widget import Widget

from workbench.monitor.recording import SYSTEM_COLUMNS
from workbench.plan.outcome import Compared
from workbench.runs import Event, Metrics
from workbench.runs.launch import ExitReason
from workbench.tui.glyphs import BLOCKS, Glyphs
from workbench.tui.run.events import MOST, Band, EventsPanel, RunEvent, clock, run_event_of
from workbench.tui.run.machine import RecordedPanel
from workbench.tui.run.results import Outcome, SamplesView, SummaryPanel

AnyWidget = TypeVar("AnyWidget", bound=Widget)


def drawn(widget: AnyWidget, size: tuple[int, int], prepare: Callable[[AnyWidget], object]) -> str:
    """Return what a widget draws that was prepared so, in exactly its box."""
    rows = drawn_rows(widget, size, prepare)
    check_box(rows, size, ascii_only=False)
    return "\n".join(rows)


_KINDS: tuple[tuple[str, Band], ...] = (("evaluation", ""), ("warning", "warning"), ("alert", "bad"))
EVENTS = [
    RunEvent(1e9 + 60 * i, kind, f"{kind} with ünïcode — number {i}", band)
    for i, (kind, band) in enumerate(_KINDS)
]
OUTCOME = Outcome(
    "failed",
    ended("failed", 1, "außer memory"),
    ExitReason(1, "außer memory", ("Traceback …", "MemoryError: höst"), Path("train.log")),
    20_000.0,
    (2.5, 10),
    "/runs/x/checkpoints/step-00000020",
    (Compared("host memory", "bytes", 3e9, 2e9), Compared("step", "s", 0.05, 0.5)),
)


def recorded(count: int) -> Metrics:
    values = np.full((count, len(SYSTEM_COLUMNS)), np.nan)
    names = [column.name for column in SYSTEM_COLUMNS]
    for i in range(count):
        row = {"step": i, "time": 1e9 + 10 * i, "gpu_busy": (i % 10) / 10, "host_memory_bytes": 1e9 * i}
        for name, value in row.items():
            values[i, names.index(name)] = value
    return Metrics(SYSTEM_COLUMNS, values)


@BOXES
def test_panels_fit_their_box_and_plain_mode_is_plain(
    tmp_path: Path, size: tuple[int, int], glyphs: Glyphs
) -> None:
    sample = tmp_path / "step-00000020.txt"
    sample.write_text("Ünïcode text — and a very long line " * 20)
    texts = [
        drawn(EventsPanel(glyphs), size, lambda panel: panel.add(EVENTS)),
        drawn(EventsPanel(glyphs), size, lambda panel: panel.set_problems(("ein großes Übel — really",))),
        drawn(SummaryPanel(glyphs), size, lambda panel: panel.show(OUTCOME)),
        drawn(RecordedPanel(glyphs), size, lambda panel: panel.show(recorded(100))),
        drawn(SamplesView(glyphs), size, lambda panel: panel.set_paths((sample,))),
        drawn(EventsPanel(glyphs), size, lambda panel: None),
        drawn(SummaryPanel(glyphs), size, lambda panel: None),
        drawn(RecordedPanel(glyphs), size, lambda panel: panel.show(Metrics(problem="missing"))),
    ]
    assert not glyphs.ascii or all(text.isascii() for text in texts)


@pytest.mark.parametrize(
    ("kind", "fields", "expected"),
    [
        (
            "evaluation",
            {"step": 40, "loss": 2.8255, "perplexity": 16.87, "seconds": 1.1},
            ("", "step 40, validation loss 2.8255, perplexity 16.87, in 1.1 s"),
        ),
        ("evaluation", {"step": "x", "loss": None}, ("", "step N/A, validation loss N/A")),
        (
            "checkpoint",
            {"step": 40, "path": "checkpoints/x", "seconds": 0.2},
            ("good", "step 40, saved checkpoints/x, in 0.2 s"),
        ),
        ("sample", {"step": 40, "path": "samples/x"}, ("", "step 40, text in samples/x")),
        ("loss_scale", {"step": 40, "scale": 1024.0}, ("", "step 40, loss scale 1024")),
        ("control", {"verb": "save", "message": "saved"}, ("", "save, saved")),
        ("warning", {"message": "slow"}, ("warning", "slow")),
        ("resume", {"from_step": 17, "record": 20}, ("good", "continues from step 17")),
        ("finished", {"phase": "stopped", "exit_code": 143}, ("warning", "stopped, exit code 143")),
        ("finished", {"phase": "failed", "exit_code": 1}, ("bad", "failed, exit code 1")),
        ("finished", {"phase": "finished", "exit_code": 0}, ("good", "finished, exit code 0")),
        ("disk", {"written_per_day": 2.5e12}, ("", "the disk tier is written 2.50 TB a day at this rate")),
        ("phase", {"phase": "saving"}, None),
        ("of a newer version", {"x": 1}, None),
    ],
)
def test_events_are_put_in_words_and_what_is_not_known_is_left_out(
    kind: str, fields: dict[str, object], expected: tuple[str, str] | None
) -> None:
    found = run_event_of(Event(kind, 5.0, fields))
    assert (None if found is None else (found.band, found.text)) == expected


def test_the_newest_event_stands_first_and_old_ones_are_forgotten() -> None:
    def prepare(panel: EventsPanel) -> None:
        for first in range(0, MOST + 200, 100):
            panel.add(RunEvent(1e9 + i, "warning", f"number {i}.") for i in range(first, first + 100))

    text = drawn(EventsPanel(BLOCKS), (60, 8), prepare).split("\n")
    assert f"number {MOST + 199}." in text[1] and f"number {MOST + 198}." in text[2]
    panel = EventsPanel(BLOCKS)
    prepare(panel)
    assert len(panel.events) == MOST


async def test_an_event_that_is_being_read_stays_where_it_is_when_others_come() -> None:
    async with shown_widget(EventsPanel(BLOCKS), (60, 8)) as (pilot, panel):
        panel.add(RunEvent(1e9 + i, "warning", f"number {i}.") for i in range(50))
        panel.scroll_to_row(20)
        await pilot.pause()
        before = picture(panel).split("\n")[1:-1]
        panel.add(RunEvent(2e9 + i, "warning", f"new {i}.") for i in range(3))
        await pilot.pause()
        assert picture(panel).split("\n")[1:-1] == before


def test_problems_stand_above_all_events() -> None:
    def prepare(panel: EventsPanel) -> None:
        panel.add(EVENTS)
        panel.set_problems(("status.json is damaged",))

    text = drawn(EventsPanel(BLOCKS), (60, 8), prepare).split("\n")
    assert "status.json is damaged" in text[1] and "alert" in text[2]


def test_the_summary_of_a_run_that_failed_has_its_last_words_and_all_figures() -> None:
    text = drawn(SummaryPanel(BLOCKS), (80, 24), lambda panel: panel.show(OUTCOME))
    for words in (
        "failed, exit code 1",
        "MemoryError: höst",
        "20 of 100",
        "20,000",
        "1m05s",
        "2.5000 at step 10",
        "/runs/x/checkpoints/step-00000020",
    ):
        assert words in text, words


def test_plan_and_outcome_stand_in_columns_with_headings() -> None:
    text = drawn(SummaryPanel(BLOCKS), (80, 24), lambda panel: panel.show(OUTCOME))
    rows = [row.strip("│ ").split() for row in text.split("\n")]
    head = rows.index(["planned", "measured", "factor"])
    assert rows[head + 1] == ["host", "memory", "2.8", "GiB", "1.9", "GiB", "0.67"]
    assert ["step", "50.0", "ms", "0.50", "s", "10.00"] in rows[head:]
    narrow = drawn(SummaryPanel(BLOCKS), (30, 30), lambda panel: panel.show(OUTCOME))
    assert "2.8 GiB 1.9 GiB 0.67" in narrow and "planned, measured" in narrow


def test_a_run_that_has_finished_says_its_steps_once() -> None:
    outcome = Outcome(
        "finished", live(message="100 steps"), ExitReason(0, "100 steps", (), Path("train.log"))
    )
    text = drawn(SummaryPanel(BLOCKS), (80, 24), lambda panel: panel.show(outcome))
    assert text.count("100") == 1 and "20 of 100" in text


def test_what_is_not_known_of_an_end_is_said_as_such() -> None:
    outcome = Outcome("died", live(loss=None), ExitReason(None, "", (), Path("train.log")))
    text = drawn(SummaryPanel(BLOCKS), (80, 24), lambda panel: panel.show(outcome))
    assert "died, exit code N/A" in text and "none was saved" in text and "Nothing of the plan" in text


def test_the_recorded_machine_shows_last_and_highest_values_over_the_run() -> None:
    text = drawn(RecordedPanel(BLOCKS), (80, 20), lambda panel: panel.show(recorded(96)))
    rows = {row[1:19].strip(): row for row in text.split("\n")}
    assert "50 %" in rows["GPU busy"] and "90 %" in rows["GPU busy"] and "█" in rows["GPU busy"]
    assert rows["GPU power"].count("N/A") == 2
    assert "88.5 GiB" in rows["host memory"]


def test_a_machine_that_was_not_recorded_is_a_calm_sentence() -> None:
    text = drawn(RecordedPanel(BLOCKS), (60, 5), lambda panel: panel.show(Metrics(problem="x is missing")))
    assert "was not recorded" in text
    damaged = Metrics(problem="system.bin has a damaged header")
    assert "damaged header" in drawn(RecordedPanel(BLOCKS), (60, 5), lambda panel: panel.show(damaged))


def files(root: Path, count: int) -> tuple[Path, ...]:
    out = tuple(root / f"step-{100 * (i + 1):08}.txt" for i in range(count))
    for i, path in enumerate(out):
        path.write_text(f"text number {i + 1}\n" + "word " * 60)
    return out


async def test_samples_follow_the_newest_until_one_goes_back(tmp_path: Path) -> None:
    paths = files(tmp_path, 4)

    async with shown_widget(SamplesView(BLOCKS), (60, 10)) as (pilot, view):
        view.focus()
        view.set_paths(paths[:2])
        await until(pilot, lambda: "text number 2" in picture(view))
        assert "of step 200 · 2 of 2" in picture(view)
        view.set_paths(paths[:3])
        await until(pilot, lambda: "text number 3" in picture(view))
        await pilot.press("left", "left")
        await until(pilot, lambda: "text number 1" in picture(view))
        view.set_paths(paths)
        await pilot.pause()
        assert "text number 1" in picture(view) and "1 of 4" in picture(view)
        await pilot.press("right", "right", "right", "right")
        await until(pilot, lambda: "text number 4" in picture(view))


async def test_a_sample_is_wrapped_at_words_and_nothing_of_it_is_lost(tmp_path: Path) -> None:
    path = tmp_path / "step-00000001.txt"
    path.write_text("The quick brown fox jumps over the lazy dog.\n\n" + "x" * 50 + "\nend")

    async with shown_widget(SamplesView(BLOCKS), (22, 14)) as (pilot, view):
        view.set_paths((path,))
        await until(pilot, lambda: "end" in picture(view))
        rows = [row[1:-1].rstrip() for row in picture(view).split("\n")[1:-1]]
        assert rows[:3] == ["The quick brown fox", "jumps over the lazy", "dog."]
        assert "".join(rows).count("x") == 51


async def test_a_sample_that_cannot_be_read_is_a_sentence(tmp_path: Path) -> None:
    async with shown_widget(SamplesView(BLOCKS), (60, 6)) as (pilot, view):
        view.set_paths((tmp_path / "step-00000001.txt",))
        await until(pilot, lambda: "cannot be read" in picture(view))
        view.set_paths(())
        await pilot.pause()
        assert "no sample yet" in picture(view)


def test_the_clock_of_events_is_local_and_survives_nonsense() -> None:
    assert clock(1e9) == time.strftime("%m-%d %H:%M:%S", time.localtime(1e9))
    assert clock(1e300) == clock(float("nan")) == "-"
