"""However a command ends, it ends with the right exit code and a message a user can act on."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from workbench.cli import main
from workbench.commands import config
from workbench.errors import ConfigurationError, DivergedError, DoesNotFitError, WorkbenchError
from workbench.runs import RunDirectory, Status, read_status, write_status

COMMAND = [sys.executable, "-m", "workbench"]

BUFFERED = {**os.environ, "PYTHONUNBUFFERED": ""}
"""An environment in which output meets a closed or full stdout late, when Python flushes it."""


def raise_from_a_command(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    def presets(**options: object) -> int:
        raise error

    monkeypatch.setattr(config, "presets", presets)


@pytest.mark.parametrize(
    ("kind", "code"), [(WorkbenchError, 1), (ConfigurationError, 2), (DoesNotFitError, 3), (DivergedError, 4)]
)
def test_an_error_is_told_on_stderr_and_gives_its_exit_code(
    kind: type[WorkbenchError],
    code: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    raise_from_a_command(monkeypatch, kind("what is wrong; what is right"))
    assert main(["presets"]) == code
    assert capsys.readouterr() == ("", "workbench: what is wrong; what is right\n")


def test_an_interrupt_ends_with_130_and_no_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    raise_from_a_command(monkeypatch, KeyboardInterrupt())
    assert main(["presets"]) == 130
    assert capsys.readouterr().err == ""


def test_a_bug_is_owned_in_one_line_that_names_the_file_with_its_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    raise_from_a_command(monkeypatch, ZeroDivisionError("of two\nlines"))
    assert main(["presets"]) == 1
    told = capsys.readouterr().err
    assert told.startswith("workbench: this is a bug in workbench: ZeroDivisionError: of two lines (")
    assert told.count("\n") == 1
    (file,) = re.findall(r"the traceback is in (\S+)\)", told)
    assert "raise error" in Path(file).read_text()


def test_a_bug_is_owned_even_where_no_file_can_be_written(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "missing"))
    raise_from_a_command(monkeypatch, ZeroDivisionError("zero"))
    assert main(["presets"]) == 1
    assert "the traceback could not be written" in capsys.readouterr().err


def test_a_full_disk_is_not_called_a_bug(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    raise_from_a_command(monkeypatch, OSError(28, "No space left on device", "/some/file"))
    assert main(["presets"]) == 1
    assert capsys.readouterr().err == "workbench: No space left on device: /some/file\n"


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("rum quickstart", 'there is no command "rum"; did you mean "run"?'),
        ("quickstart.toml", "to train this preset: workbench run quickstart.toml"),
        (
            "xyzzy",
            "the commands are run, plan, probe, doctor, runs, attach, log, rm, compare, export, sample",
        ),
        ("config", 'there is no command "config"; the commands are config show, config check, config schema'),
        ("config shew quickstart", 'there is no command "config shew"; did you mean "config show"?'),
        (
            "run quickstart --steps 3",
            'run: there is no option "--steps"; a field is set by --set train.steps=VALUE',
        ),
        ("plan gpt2 --micro-batch-size=3", "a field is set by --set train.micro_batch_size=VALUE"),
        ("stop --steps", 'stop: there is no option "--steps"; `workbench stop --help` lists'),
        ("run quickstart --det", 'run: there is no option "--det"; did you mean "--detach"?'),
        ("runs --xyzzy=3", 'runs: there is no option "--xyzzy"; `workbench runs --help` lists'),
        ("runs some extra", "runs: unexpected argument 'extra'; `workbench runs --help` lists"),
        (
            "run quickstart --set",
            "run: argument --set: expected one argument; `workbench run --help` explains it",
        ),
        ("export RUN", "export: the following arguments are required: DIR; `workbench export --help`"),
        ("sample --tokens many", 'sample: argument --tokens: "many" is not a whole number'),
        ("sample --top-p half", 'sample: argument --top-p: "half" is not a number'),
        ("--runs there runs", "--runs belongs behind a command"),
        ("--json=1", "--json belongs behind a command"),
        ("--verison", 'there is no option "--verison"; did you mean "--version"?'),
        ("--xyzzy runs", 'there is no option "--xyzzy"'),
        ("--xyzzy", "lists the commands, which come first"),
    ],
)
def test_a_command_line_that_makes_no_sense_ends_with_2_and_says_why(
    line: str, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(line.split()) == 2
    printed = capsys.readouterr()
    assert told in printed.err
    assert printed.err.startswith("workbench: ") and printed.err.count("\n") == 1
    assert printed.out == ""


@pytest.mark.parametrize("preset", ["quickstrat", "/", "/dev/null/x", "", "a\0b"])
@pytest.mark.parametrize("verb", ["show", "check"])
def test_a_preset_that_is_not_there_ends_with_2(
    verb: str, preset: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["config", verb, preset]) == 2
    assert capsys.readouterr().err.startswith("workbench: ")


@pytest.mark.parametrize("line", ["config schema", "presets"])
def test_a_reader_that_leaves_early_hears_no_complaint(line: str) -> None:
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [*COMMAND, *line.split()], stdout=write, stderr=subprocess.PIPE, env=BUFFERED, check=False
    )
    os.close(write)
    assert (done.returncode, done.stderr) == (128 + signal.SIGPIPE, b"")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
@pytest.mark.parametrize("line", ["config schema", "presets", "--help"])
def test_output_that_cannot_be_written_is_an_error(line: str) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [*COMMAND, *line.split()],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            env=BUFFERED,
            check=False,
        )
    assert done.returncode == 1
    assert "No space left on device" in done.stderr
    assert done.stderr.count("\n") == 1
    assert "bug" not in done.stderr


def test_a_terminal_without_unicode_is_no_reason_to_fail(tmp_path: Path) -> None:
    preset = tmp_path / "snow.toml"
    preset.write_text('description = "☃"\n[model]\narchitecture = "gpt2"\n', encoding="utf-8")
    done = subprocess.run(
        [*COMMAND, "config", "show", str(preset)],
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_the_module_ends_with_the_exit_code_of_the_command() -> None:
    done = subprocess.run([*COMMAND, "config", "check", "nothing-like-it"], capture_output=True, check=False)
    assert done.returncode == 2
    assert b"Traceback" not in done.stderr


def test_interrupted_python_is_not_left_with_another_signal_handler() -> None:
    before = signal.getsignal(signal.SIGINT)
    main(["--version"])
    assert signal.getsignal(signal.SIGINT) is before


def test_a_run_whose_checkpoints_are_damaged_is_refused_before_anything_is_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = RunDirectory.create(tmp_path, "p")
    run.config.write_text('[model]\narchitecture = "gpt2"\n')
    write_status(run, Status(phase="stopped", step=5, total_steps=9, exit_code=143))
    for step in (4, 5):
        (run.checkpoints / f"step-{step:08}").mkdir()
    monkeypatch.setattr("workbench.training.command.start_trainer", lambda *_, **__: pytest.fail("started"))
    assert main(["resume", str(run.path)]) == 1
    out, err = capsys.readouterr()
    lines = err.splitlines()
    assert out == "" and "all its 2 checkpoints are damaged" in lines[0]
    assert lines[1:3] == ["  step-00000005: DONE is missing", "  step-00000004: DONE is missing"]
    assert read_status(run).phase == "stopped"


def test_a_detached_run_that_torchrun_starts_several_times_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert main(["run", "any", "--detach"]) == 2
    assert "one of 2 processes that torchrun has started" in capsys.readouterr().err


def test_a_python_file_in_the_current_folder_is_not_imported(tmp_path: Path) -> None:
    for name in ("json", "token", "argparse"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit(99)")
    words = [*COMMAND, "runs", "--runs", str(tmp_path / "runs")]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode != 99, done.stderr


def test_a_current_folder_that_is_gone_is_told_in_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert main(["presets"]) == 2
    assert capsys.readouterr().err == (
        "workbench: the current folder no longer exists; change to one that does\n"
    )
