"""How a run ended, where its model is, and what comes next."""

import shutil
import signal
from pathlib import Path

import pytest
from stored_checkpoints import store_checkpoint

from workbench.runs import RunDirectory, Status, launch, liveness, read_status, write_status
from workbench.runs.ending import cause_of_death
from workbench.runs.ending import ending as ending_of
from workbench.system import oom_kills

GONE = {"pid": 2**22 + 1, "pid_started": 1.0, "phase": "training"}


@pytest.mark.parametrize(
    ("status", "saved", "sentence", "commands"),
    [
        (
            Status(phase="finished", step=9, total_steps=9, validation_loss=1.5),
            True,
            "has finished: 9 steps, validation loss 1.5000",
            ("sample", "export", "resume {run} --set train.steps=18"),
        ),
        (
            Status(phase="stopped", step=4, total_steps=9),
            True,
            "was stopped at step 4 of 9",
            ("resume", "sample", "export"),
        ),
        (
            Status(phase="failed", step=4, total_steps=9, message="no room\nat all"),
            True,
            "has failed at step 4 of 9: no room",
            ("log", "resume", "sample"),
        ),
        (Status(phase="failed", message="no room"), False, "has failed: no room", ("log", "resume", "rm")),
        (
            Status(phase="training", step=4, total_steps=9),
            False,
            "is running at step 4 of 9",
            ("attach", "log {run} -f", "stop"),
        ),
    ],
)
def test_an_end_tells_the_model_and_three_commands(
    run: RunDirectory,
    status: Status,
    saved: bool,
    sentence: str,
    commands: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("WORKBENCH_RUNS", str(run.path.parent))
    write_status(run, status)
    if saved:
        store_checkpoint(run, 4, {})
    found = ending_of(run)
    assert found.sentence == f"run {run.name} {sentence}"
    assert found.model == (run.checkpoints / "step-00000004" if saved else None)
    wanted = [c.format(run=run.name) if " " in c else f"{c} {run.name}" for c in commands]
    assert [
        line.startswith(f"workbench {word}") for line, word in zip(found.commands, wanted, strict=True)
    ] == [True] * 3
    lines = found.lines()
    assert (
        lines[0] == found.sentence
        and lines[1].startswith("model: ")
        and lines[-3:] == [f"  {c}" for c in found.commands]
    )
    assert found.lines(sentence=False) == lines[1:]


def test_what_is_over_has_no_trainer_whatever_a_full_disk_let_it_write(
    run: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_status(run, Status(phase="training", step=4, total_steps=9))
    store_checkpoint(run, 4, {})
    assert [line.split()[1] for line in ending_of(run, over=True).commands] == ["log", "resume", "sample"]
    usage = shutil.disk_usage(run.path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=10))
    resume, *_ = ending_of(run, over=True).commands
    assert resume.startswith("workbench resume ") and "  # make room first: 0.00 MB are free" in resume


def test_a_run_elsewhere_is_named_by_its_folder(run: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORKBENCH_RUNS", str(run.path.parent / "others"))
    write_status(run, Status(phase="stopped"))
    assert all(str(run.path) in command for command in ending_of(run).commands)


def test_a_death_tells_the_signal_the_lost_steps_and_what_resuming_does(run: RunDirectory) -> None:
    write_status(run, Status(**GONE, step=7, total_steps=9, exit_code=128 + signal.SIGSEGV))
    sentence = ending_of(run).sentence
    assert "died at step 7 of 9: its process was ended by SIGSEGV;" in sentence
    assert "no checkpoint was saved yet, so `workbench resume` starts again at the first step" in sentence
    store_checkpoint(run, 4, {})
    assert "continues from its last checkpoint, step 4, 3 steps are done again" in ending_of(run).sentence
    assert liveness(read_status(run)) == "died"
    assert launch.exit_reason(run).message in ending_of(run).sentence


@pytest.mark.parametrize("name", ["memory.events", "memory.oom_control"])
def test_a_death_tells_whether_the_system_killed_for_lack_of_memory(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("low 0\noom 3\noom_kill 2\n")
    assert oom_kills.oom_kills(tmp_path) == 2

    def told(before: int | None, code: int | None) -> str:
        return cause_of_death(Status(**GONE, exit_code=code, cgroup=str(tmp_path), oom_kills=before))

    assert told(1, 137) == "its process was ended by SIGKILL: memory ran out, and the system killed 1 process"
    assert told(2, 137) == "its process was ended by SIGKILL; not for lack of memory in its cgroup"
    assert "is gone: memory ran out, and the system killed 2 processes" in told(0, None)
    assert told(2, None).endswith("is gone")
    (tmp_path / name).unlink()
    assert told(0, 137).endswith("SIGKILL; usually the system does this when memory runs out")
    assert told(0, None).endswith("is gone")


def test_a_status_holds_the_count_of_its_own_cgroup(
    run: RunDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "memory.events").write_text("oom_kill 5\n")
    monkeypatch.setattr("workbench.runs.status.own_cgroup", lambda: str(tmp_path))
    write_status(run, Status(phase="training"))
    assert (read_status(run).cgroup, read_status(run).oom_kills) == (str(tmp_path), 5)
