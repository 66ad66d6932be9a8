"""The status line says most where there is least room for it."""

from __future__ import annotations

import dataclasses

import pytest
from panel_host import check_box, drawn

from workbench.runs import Liveness, Status
from workbench.tui.glyphs import BLOCKS, PLAIN, Glyphs
from workbench.tui.panels.status_line import StatusLine

TRAINING = Status(
    phase="training",
    step=1200,
    total_steps=10000,
    loss=3.21456,
    tokens_per_s=1234.4,
    eta_s=7800.0,
    elapsed_s=900.0,
)


def said(width: int, status: Status, state: Liveness, glyphs: Glyphs = BLOCKS) -> str:
    (row,) = drawn(StatusLine(glyphs), (width, 1), lambda line: line.show_status("my-run", status, state))
    check_box([row], (width, 1), ascii_only=glyphs.ascii)
    return row.rstrip()


def test_a_wide_line_has_it_all() -> None:
    assert said(120, TRAINING, "running") == (
        "my-run · ● running · training · step 1,200/10,000 12 % · eta 2h10m · 1,234 tok/s · loss 3.2146"
    )


def test_a_narrow_line_keeps_state_and_step() -> None:
    assert said(60, TRAINING, "running") == "● running · training · step 1,200/10,000 12 % · loss 3.2146"
    assert said(20, TRAINING, "running") == "● running"
    assert said(40, TRAINING, "running", PLAIN) == "* running | step 1,200/10,000 12 %"


def test_a_phase_says_how_far_it_is() -> None:
    loading = Status(phase="loading", progress="unit 12 of 50")
    assert said(60, loading, "running") == "my-run · ● running · loading unit 12 of 50 · step 0"


def test_what_is_not_known_of_a_run_that_trains_is_said_as_such() -> None:
    silent = dataclasses.replace(TRAINING, loss=None, tokens_per_s=None, eta_s=None)
    assert "eta N/A · N/A · loss N/A" in said(120, silent, "running")


@pytest.mark.parametrize("state", ["failed", "died", "stopped"])
def test_a_run_that_has_ended_says_why_and_has_no_eta(state: Liveness) -> None:
    ended = dataclasses.replace(TRAINING, phase="failed", message="The GPU was lost.")
    row = said(120, ended, state)
    assert state in row and "The GPU was lost." in row and "eta" not in row and "after 15m00s" in row


def test_a_run_that_has_finished_says_its_steps_once() -> None:
    done = dataclasses.replace(TRAINING, phase="finished", step=10000, message="10000 steps")
    row = said(140, done, "finished")
    assert "step 10,000/10,000 100 %" in row and "10000 steps" not in row and "after 15m00s" in row


def test_a_notice_stands_first() -> None:
    def prepare(line: StatusLine) -> None:
        line.show_status("my-run", TRAINING, "running")
        line.set_notice("read-only")

    assert drawn(StatusLine(BLOCKS), (80, 1), prepare)[0].startswith("read-only · ")


def test_without_a_run_it_says_so() -> None:
    assert "No run is shown." in drawn(StatusLine(BLOCKS), (40, 1), lambda _: None)[0]


def test_every_state_is_told_apart_without_colour() -> None:
    for state, mark in (("running", "*"), ("paused", "!"), ("died", "x"), ("stale", "!"), ("finished", "*")):
        assert f"{mark} {state}" in said(60, TRAINING, state, PLAIN)  # type: ignore[arg-type]
