"""`workbench` alone, `attach` and `top`: what they begin with, and what they say where no screen can be shown."""

from __future__ import annotations

import io
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from workbench.cli import main
from workbench.commands import screen
from workbench.runs import RunDirectory, Status, write_status
from workbench.tui import command


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Path, dict[str, Any]]]:
    """What the screen would have been shown with, in what passes for a terminal."""
    calls: list[tuple[Path, dict[str, Any]]] = []

    def show(root: Path, **words: Any) -> int:
        calls.append((root, words))
        return 0

    monkeypatch.setattr(command, "show", show)
    monkeypatch.setattr(screen, "is_terminal", lambda: True)
    return calls


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunDirectory:
    monkeypatch.setenv("WORKBENCH_RUNS", str(tmp_path))
    return RunDirectory.create(tmp_path, "tiny")


def test_each_begins_with_what_it_names(
    shown: list[tuple[Path, dict[str, Any]]], run: RunDirectory, tmp_path: Path
) -> None:
    latest = {"run": run, "read_only": False, "plain": False}
    for words, expected in (
        ([], {"plain": False}),
        (["--ascii"], {"plain": True}),
        (["attach"], latest),
        (["attach", run.name, "--readonly", "--ascii"], {"run": run, "read_only": True, "plain": True}),
        (["top"], {"part": "top", "plain": False}),
        (["top", "--ascii"], {"part": "top", "plain": True}),
    ):
        assert main(words) == 0
        assert shown.pop() == (tmp_path, expected)


def test_attach_without_a_run_says_so_before_anything_is_shown(
    shown: list[tuple[Path, dict[str, Any]]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("WORKBENCH_RUNS", str(tmp_path))
    assert main(["attach"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("workbench: ") and said.count("\n") == 1 and str(tmp_path) in said
    assert not shown


def test_without_a_terminal_workbench_prints_its_help(capsys: pytest.CaptureFixture[str]) -> None:
    for words in ([], ["--ascii"]):
        assert main(words) == 0
        said = capsys.readouterr()
        assert "usage: workbench" in said.out and "Without one: workbench run quickstart" in said.out
        assert said.err == ""


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["attach"], "attach: this is not a terminal; `workbench runs` lists the runs and their states"),
        (["top"], "top: this is not a terminal; `workbench top --json` prints one sample"),
    ],
)
def test_without_a_terminal_attach_and_top_say_what_to_do_instead(
    words: list[str], sentence: str, run: RunDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    said = capsys.readouterr()
    assert (said.out, said.err) == ("", f"workbench: {sentence}\n")


def test_a_terminal_that_cannot_move_its_cursor_is_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "stdin", Terminal())
    monkeypatch.setattr(sys, "stdout", Terminal())
    monkeypatch.setenv("TERM", "xterm")
    assert screen.is_terminal()
    monkeypatch.setenv("TERM", "dumb")
    assert not screen.is_terminal()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stdin", None)  # closed by whoever started it
    assert not screen.is_terminal()


def test_top_prints_one_sample_as_json_anywhere(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["top", "--json"]) == 0
    sample = json.loads(capsys.readouterr().out)
    assert sample["host"]["cores"] and sample["host"]["memory_total_bytes"] > 0
    assert set(sample["host"]) >= {
        "cores",
        "load",
        "swap_used_bytes",
    }
    assert sample["gpus"] or sample["gpu_note"]


def test_a_printed_sample_has_the_disk_of_the_runs_and_the_trainer_of_the_newest_that_trains(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "not there yet"
    assert main(["top", "--json", "--runs", str(folder)]) == 0
    sample = json.loads(capsys.readouterr().out)
    [disk] = sample["disks"]
    assert disk["folder"] == str(folder) and disk["total_bytes"] >= disk["free_bytes"] > 0
    assert sample["trainer"] is None
    run = RunDirectory.create(tmp_path, "tiny")
    write_status(run, Status(phase="training", step=1, total_steps=9))
    RunDirectory.create(tmp_path, "later")
    assert main(["top", "--json", "--runs", str(tmp_path)]) == 0
    assert json.loads(capsys.readouterr().out)["trainer"]["pid"] == os.getpid()


def test_the_screen_is_drawn_in_ascii_where_the_terminal_cannot_show_blocks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for encoding, term, blocks in (
        ("UTF-8", "xterm", True),
        ("utf8", "tmux-256color", True),
        ("ISO-8859-1", "xterm", False),
        ("UTF-8", "linux", False),
    ):
        monkeypatch.setattr("locale.getpreferredencoding", lambda _=True, encoding=encoding: encoding)
        monkeypatch.setenv("TERM", term)
        assert command.draws_blocks() is blocks
