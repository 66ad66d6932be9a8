"""The verbs that list and steer runs."""

import json
import math
import sys
import time
import types
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from workbench.commands import runs as run_commands
from workbench.errors import ConfigurationError, WorkbenchError
from workbench.runs import ControlReader, RunDirectory, Status, read_events, write_status
from workbench.runs.metrics import MetricsWriter


@dataclass
class Trainer:
    """Stands in the place of the wait and answers as the trainer does."""

    run: RunDirectory
    act: Callable[[], None] = lambda: None
    waits: int = 0
    obeyed: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.reader = ControlReader(self.run)

    def sleep(self, seconds: float) -> None:
        self.waits += 1
        assert self.waits < 100
        if self.waits == 3:
            for command in self.reader.poll():
                self.obeyed.append(command.verb)
                self.reader.acknowledge(command, f"{command.verb} at step 5")
            self.act()


@pytest.mark.parametrize("verb", ["stop", "save", "pause", "resume"])
def test_a_command_waits_for_the_trainers_answer_and_tells_it(
    run: RunDirectory, verb: str, capsys: pytest.CaptureFixture[str]
) -> None:
    write_status(run, Status(phase="paused" if verb == "resume" else "training", step=4, total_steps=9))
    trainer = Trainer(run)
    assert run_commands.steer(verb=verb, run=run.name, runs=run.path.parent, sleep=trainer.sleep) == 0
    assert trainer.obeyed == [verb]
    assert f"{verb} at step 5" in capsys.readouterr().out


@pytest.mark.parametrize(("phase", "code"), [("stopped", 0), ("failed", 1)])
def test_stop_waits_for_the_end_where_that_is_asked_for(
    run: RunDirectory, phase: str, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    write_status(run, Status(phase="training", step=4, total_steps=9))
    trainer = Trainer(run)
    looks = []

    def sleep(seconds: float) -> None:
        trainer.sleep(seconds)
        looks.append(trainer.waits)
        if trainer.waits == 9:
            write_status(run, Status(phase=phase, step=5, total_steps=9))

    stop = {"verb": "stop", "run": run.name, "runs": run.path.parent, "sleep": sleep}
    assert run_commands.steer(**stop, wait=True) == code
    assert len(looks) == 9
    assert ("it failed at step 5 of 9" in capsys.readouterr().err) is bool(code)


def test_a_trainer_that_does_not_answer_is_waited_for_no_longer_than_said(
    run: RunDirectory, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_status(run, Status(phase="training"))
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])

    def sleep(seconds: float) -> None:
        now[0] += seconds
        assert now[0] < 100

    assert run_commands.steer(verb="save", run=None, runs=run.path.parent, sleep=sleep) == 1
    assert 30 <= now[0] < 31
    assert "no answer to save yet" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("status", "told"),
    [
        (Status(phase="finished", step=9, total_steps=9), "finished at step 9 of 9"),
        (Status(phase="stopped", step=4, total_steps=9), "stopped at step 4 of 9"),
        (Status(phase="training", pid=2**22 + 1, pid_started=1.0), "process 4194305 is gone"),
        (Status(phase="failed", message="the disk is full"), "the disk is full"),
        (None, "status.json is missing"),
    ],
)
def test_a_run_that_is_not_alive_is_not_steered(
    run: RunDirectory, status: Status | None, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if status is not None:
        write_status(run, status)
    for verb in ("stop", "save", "pause"):
        assert run_commands.steer(verb=verb, run=run.name, runs=run.path.parent) == 1
        assert told in capsys.readouterr().err
    assert not run.control.exists()
    assert read_events(run).events == []


@pytest.mark.parametrize(
    ("phase", "changes"),
    [("stopped", []), ("training", []), ("failed", ["offload.state=disk"]), ("finished", ["train.steps=9"])],
)
def test_resume_starts_a_run_without_a_trainer_from_its_last_checkpoint_with_its_changes(
    run: RunDirectory, phase: str, changes: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_status(run, Status(phase=phase, step=4, total_steps=4, pid=2**22 + 1, pid_started=1.0))
    calls: list[dict[str, object]] = []
    command = types.ModuleType("workbench.training.command")
    command.run = lambda **options: calls.append(options) or 7  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "workbench.training.command", command)
    assert run_commands.steer(verb="resume", run=run.name, runs=run.path.parent, overrides=changes) == 7
    expected = {"preset": None, "overrides": changes, "resume": str(run.path), "detach": True, "runs": None}
    assert calls == [expected]


@pytest.mark.parametrize("phase", ["training", "paused"])
def test_a_run_that_has_a_trainer_is_not_changed(
    run: RunDirectory, phase: str, capsys: pytest.CaptureFixture[str]
) -> None:
    write_status(run, Status(phase=phase, step=4, total_steps=9))
    assert (
        run_commands.steer(verb="resume", run=run.name, runs=run.path.parent, overrides=["train.steps=9"])
        == 1
    )
    assert f"stop it first (workbench stop {run.name})" in capsys.readouterr().err
    assert not run.control.exists()


def test_a_finished_run_is_not_resumed(run: RunDirectory, capsys: pytest.CaptureFixture[str]) -> None:
    write_status(run, Status(phase="finished", step=9, total_steps=9))
    assert run_commands.steer(verb="resume", run=None, runs=run.path.parent) == 1
    told = capsys.readouterr().err
    assert f"it finished at step 9 of 9; `workbench resume {run.name} --set train.steps=N` adds steps" in told


def test_runs_are_listed_as_a_table_and_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_commands.runs(runs=tmp_path, as_json=False) == 0
    assert capsys.readouterr().out == ""
    one, two, three = (RunDirectory.create(tmp_path, name) for name in ("one", "two", "three"))
    write_status(
        one,
        Status(
            phase="training",
            step=5,
            total_steps=10,
            loss=1.25,
            validation_loss=1.5,
            tokens_per_s=12345.6,
            elapsed_s=3725,
        ),
    )
    write_status(two, Status(phase="finished", step=10, total_steps=10))
    three.status.write_text("garbage")
    assert run_commands.runs(runs=tmp_path, as_json=False) == 0
    table = capsys.readouterr().out.splitlines()
    rows = {line.split()[0]: line.split()[1:] for line in table[1:]}
    assert rows[one.name] == ["running", "5/10", "1.2500", "1.5000", "12,346", "1h02m"]
    assert rows[two.name] == ["finished", "10/10", "-", "-", "-", "0s"]
    assert rows[three.name] == ["unknown", "-", "-", "-", "-", "-"]
    assert list(rows) == sorted(rows, reverse=True)
    assert len({len(line) for line in table}) == 1
    assert run_commands.runs(runs=tmp_path, as_json=True) == 0
    listed = {item["name"]: item for item in json.loads(capsys.readouterr().out)}
    assert listed[one.name]["state"] == "running"
    assert listed[one.name]["loss"] == 1.25
    assert "damaged" in listed[three.name]["problem"]


def test_the_list_as_json_names_the_best_checkpoint_of_a_run(
    run: RunDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    for best in (None, {"step": 30, "validation_loss": 2.5}):
        if best is not None:
            run.checkpoints.mkdir(exist_ok=True)
            (run.checkpoints / "best.json").write_text(json.dumps(best))
        assert run_commands.runs(runs=run.path.parent, as_json=True) == 0
        [row] = json.loads(capsys.readouterr().out)
        found = (row["best_step"], row["best_validation_loss"])
        assert found == ((None, None) if best is None else (30, 2.5))


def test_the_list_as_json_names_the_lowest_validation_loss_where_no_best_checkpoint_is_kept(
    run: RunDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    writer = MetricsWriter(run.metrics)
    for step, loss in ((1, math.nan), (2, 2.5), (3, math.nan), (4, 2.75)):
        writer.append(step=step, validation_loss=loss)
    writer.close()
    assert run_commands.runs(runs=run.path.parent, as_json=True) == 0
    [row] = json.loads(capsys.readouterr().out)
    assert (row["best_step"], row["best_validation_loss"]) == (2, 2.5)


@pytest.mark.parametrize(
    ("name", "said"),
    [("there", "no run in it yet"), ("file", "is not a folder"), ("nowhere", "no such folder")],
)
def test_a_folder_without_runs_is_told_from_one_that_is_not_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, said: str
) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "file").touch()
    with pytest.raises(ConfigurationError, match=said):
        run_commands.steer(verb="stop", run=None, runs=tmp_path / name)
    assert run_commands.runs(runs=tmp_path / name, as_json=False) == 0
    assert said in capsys.readouterr().err


def test_the_list_holds_only_runs_with_the_word_in_their_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one = RunDirectory.create(tmp_path, "p", ["high", "sweep"])
    RunDirectory.create(tmp_path, "p")
    assert run_commands.runs(runs=tmp_path, as_json=True, name="sweep") == 0
    (listed,) = json.loads(capsys.readouterr().out)
    assert (listed["name"], listed["labels"]) == (one.name, ["high", "sweep"])
    assert run_commands.runs(runs=tmp_path, as_json=False, name="other") == 0
    assert capsys.readouterr().err == f"None of the 2 runs in {tmp_path} has 'other' in its name\n"


def test_the_log_is_printed_whole(run: RunDirectory, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_commands.log(run=None, runs=run.path.parent, follow=False) == 0
    assert "has printed nothing yet" in capsys.readouterr().err
    run.log.write_text("one\ntwö\n")
    assert run_commands.log(run=None, runs=run.path.parent, follow=False) == 0
    assert capsys.readouterr().out == "one\ntwö\n"


def test_a_followed_log_goes_on_to_the_last_words_of_the_run(
    run: RunDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    write_status(run, Status(phase="training"))
    pieces = iter([b"one\ntw", "\u00f6".encode()[:1], "\u00f6".encode()[1:] + b"\nlast\n"])

    def sleep(seconds: float) -> None:
        piece = next(pieces, None)
        assert piece is not None, "it goes on after the end"
        with run.log.open("ab") as log:
            log.write(piece)
        if b"last" in piece:
            write_status(run, Status(phase="finished"))

    assert run_commands.log(run=run.name, runs=run.path.parent, follow=True, sleep=sleep) == 0
    assert capsys.readouterr().out == "one\ntw\u00f6\nlast\n"


def test_a_run_is_deleted_after_a_yes_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    one, two, three = (RunDirectory.create(tmp_path, name) for name in ("one", "two", "three"))
    with pytest.raises(ConfigurationError, match="--yes deletes without asking"):
        run_commands.remove(run=["one"], runs=tmp_path, yes=False)
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
    answers, asked = iter(["n", "y"]), []
    monkeypatch.setattr("builtins.input", lambda question: asked.append(question) or next(answers))
    assert run_commands.remove(run=["one", "two"], runs=tmp_path, yes=False) == 0
    assert RunDirectory.list(tmp_path) == (one, three)
    assert str(one.path) in asked[0] and "0 checkpoints" in asked[0]
    assert f"deleted {two.path}" in capsys.readouterr().out
    with pytest.raises(ConfigurationError):
        run_commands.remove(run=["one", "nope"], runs=tmp_path, yes=True)
    assert RunDirectory.list(tmp_path) == (one, three)
    assert run_commands.remove(run=["one", one.name], runs=tmp_path, yes=True) == 0
    assert RunDirectory.list(tmp_path) == (three,)
    write_status(three, Status(phase="training"))
    with pytest.raises(WorkbenchError, match="stop it first"):
        run_commands.remove(run=["three"], runs=tmp_path, yes=True)
