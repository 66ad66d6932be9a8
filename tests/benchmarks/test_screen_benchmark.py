"""The screen's benchmark runs and prints what it promises. What the numbers are is not tested."""

from __future__ import annotations

import json
import sys

import pytest

from benchmarks.screen.__main__ import Row, main
from benchmarks.screen.terminal import InTerminal, environment

pytestmark = pytest.mark.slow


def test_every_part_gives_its_rows(capsys: pytest.CaptureFixture[str]) -> None:
    small = ("--starts", "1", "--seconds", "1", "--steps", "20000", "--opens", "1", "--presses", "3")
    assert main([*small, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    goals = {row["what"]: row["goal"] for row in rows if row["goal"] is not None}
    assert goals == {
        "  times the empty one": 1.5,
        "  times the empty one, processor time": 1.5,
        "live run, 64 cores, 8 GPUs, 160x50: share of one core": 0.05,
        "run of 20,000 steps, first picture": 1.0,
        "run of 20,000 steps, its curves drawn": 1.0,
        "  worst": 0.05,
        **{f"key to picture, {where}, median of 3": 0.05 for where in ("presets", "configure", "run")},
    }
    assert all(row["value"] > 0 for row in rows if "processor" not in row["what"])


def test_the_table_says_machine_load_and_command(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("benchmarks.screen.live.cpu_share", lambda seconds: 0.07)
    assert main(["--only", "cpu"]) == 0
    head, command, _, _, row = capsys.readouterr().out.splitlines()
    assert "cores; Python" in head and "load" in head
    assert command == "python -m benchmarks.screen --only cpu"
    assert row.split()[-5:] == ["7.0", "%", "5.0", "%", "missed"]
    assert (Row("", 1.0, "s", 1.0).met, Row("", 1.1, "s", 1.0).met, Row("", 1.0, "s").met) == (
        "met",
        "missed",
        "",
    )


def test_a_program_that_ends_before_it_shows_anything_is_told(tmp_path: object) -> None:
    with (
        pytest.raises(EOFError, match="ended with 3"),
        InTerminal((sys.executable, "-c", "raise SystemExit(3)"), environment(str(tmp_path))) as terminal,
    ):
        terminal.shows("never")
