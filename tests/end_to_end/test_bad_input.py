"""Every mistake of a user ends with exit code 2 and one clear message; odd but legal requests simply work."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from trainers import Trainers, events, losses

from workbench.cli import main
from workbench.runs import RunDirectory, read_status


@pytest.fixture(autouse=True)
def _environment(trainers: Trainers, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command line is called in this process where a process of its own would show nothing more."""
    for name in ("WORKBENCH_CACHE", "WORKBENCH_RUNS", "TMPDIR"):
        monkeypatch.setenv(name, trainers.environment[name])
    monkeypatch.chdir(trainers.folder)


@pytest.fixture
def refused(capfd: pytest.CaptureFixture[str], trainers: Trainers):  # type: ignore[no-untyped-def]
    """Calls the command line and gives its message; nothing may have been begun."""

    def call(*words: object, code: int = 2) -> str:
        before = RunDirectory.list(trainers.runs)
        assert main([str(word) for word in words]) == code
        out, err = capfd.readouterr()
        assert out == "" and "Traceback" not in err and "bug" not in err
        told = [line for line in err.splitlines() if line != "workbench: preparing the text"]
        assert told[0].startswith("workbench: ") and len(told) <= 3, err
        assert RunDirectory.list(trainers.runs) == before
        return "\n".join(told)

    return call


def test_a_mistake_ends_a_real_process_with_2_and_one_line(trainers: Trainers) -> None:
    for words, said in [
        (("run", "nowhere.toml"), "nowhere.toml"),
        (("run", trainers.preset("real"), "--set", "model.architecture=gtp2"), 'did you mean "gpt2"?'),
    ]:
        ended = trainers.call(*words)
        assert (ended.returncode, ended.stdout, ended.stderr.count("\n")) == (2, "", 1)
        assert said in ended.stderr and "Traceback" not in ended.stderr


def test_a_preset_that_is_missing_or_no_preset(refused, trainers: Trainers) -> None:  # type: ignore[no-untyped-def]
    (trainers.folder / "folder.toml").mkdir()
    (trainers.folder / "binary.toml").write_bytes(b"\xff\xfe\0\0")
    assert "quickstart" in refused("run", "quickstrat")
    assert "nowhere.toml" in refused("run", "nowhere.toml")
    assert "is a folder" in refused("run", trainers.folder / "folder.toml")
    assert "binary.toml" in refused("run", trainers.folder / "binary.toml")
    assert "no preset is named" in refused("run")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("model.config.n_embd=33", "n_head|num_heads|divisible"),
        ("model.config.vocab_size=0", "vocab_size = 0: the tokenizer has 257 tokens"),
        ("model.config.n_layers=2", 'did you mean "n_layer"?'),
        ("data.sequence_length=33", "lower it to 32"),
        ("data.source=missing.txt", "no such file or folder"),
        ("data.source=dangling", "no such file or folder"),
        ("data.source=loop", "symbolic links"),
        ("data.source=binary", "not a text file"),
        ("data.source=empty", "the file is empty"),
        ("data.source=empty-folder", "no text file"),
        ("data.source=/dev/null", "neither a file nor a folder"),
        ("data.source=short", "too little text"),
        ("train.device=cuda:77", "cuda:77"),
    ],
)
def test_a_model_data_or_device_that_cannot_be_had_is_told(  # type: ignore[no-untyped-def]
    refused, trainers: Trainers, change: str, said: str
) -> None:
    folder = trainers.folder
    (folder / "binary").write_bytes(b"\0\1\2" * 3000)
    (folder / "empty").touch()
    (folder / "short").write_text("too short")
    (folder / "empty-folder").mkdir(exist_ok=True)
    for name, target in (("dangling", "gone"), ("loop", "loop")):
        if not (folder / name).is_symlink():
            (folder / name).symlink_to(target)
    message = refused("run", trainers.preset("unhad"), "--set", change)
    assert any(part in message for part in said.split("|")), message
    assert change.split("=")[0] in message or "model.config" in message


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read every file")
def test_text_without_the_permission_to_read_it_is_told(refused, trainers: Trainers) -> None:  # type: ignore[no-untyped-def]
    secret = trainers.folder / "secret.txt"
    secret.write_text("text " * 1000)
    secret.chmod(0)
    assert "cannot be read" in refused("run", trainers.preset("secret"), "--set", f"data.source={secret}")


@pytest.mark.parametrize("place", ["a-file", "a-file/below", "/proc/nowhere", "/dev/null"])
def test_a_run_folder_that_cannot_be_written_is_told(refused, trainers: Trainers, place: str) -> None:  # type: ignore[no-untyped-def]
    (trainers.folder / "a-file").touch()
    message = refused("run", trainers.preset("unwritable"), "--runs", place)
    assert str(Path(place).absolute()) in message and "--runs" in message


def test_a_resumption_of_what_is_no_run_is_told(refused, trainers: Trainers) -> None:  # type: ignore[no-untyped-def]
    (trainers.folder / "no-run").mkdir(exist_ok=True)
    assert "the folder is not a run" in refused("run", "--resume", trainers.folder / "no-run")
    assert "no such run, nor a preset" in refused("run", "--resume", "/nowhere/at/all")
    run = RunDirectory.create(trainers.folder / "other", "p")
    assert "config.toml cannot be read" in refused("run", "--resume", run.path)
    run.config.write_text("[[[")
    assert str(run.config) in refused("run", "--resume", run.path)


@pytest.mark.slow
def test_odd_but_legal_requests_simply_work(trainers: Trainers) -> None:
    process, run = trainers.train(
        "odd preset äß name",
        *("train.steps=1", "log.every=100", "sample.tokens=0", "evaluate.every=0", "evaluate.tokens=1"),
        *("checkpoint.every=1", "checkpoint.keep=1", "data.sequence_length=2", "train.micro_batch_size=3000"),
    )
    assert process.wait(timeout=100) == 0
    assert [path.name for path in run.checkpoints.iterdir()] == ["step-00000001"]
    assert list(losses(run)) == [1] and len(events(run, "evaluation")) == 1
    assert not list(run.samples.iterdir())
    log = run.log.read_text()
    assert "step 00001/1 | " in log
    assert (
        log.count("step 00001/1 | ")
        == log.count("evaluation at step 1 ")
        == log.count("| validation loss")
        == 1
    )

    # A preset's name may have letters that no folder's has; its run is found again all the same.
    unfinished = RunDirectory.create(trainers.runs, "odd preset äß name")
    unfinished.config.write_bytes(run.config.read_bytes())
    resumed = trainers.call("run", trainers.folder / "odd preset äß name.toml", "--resume")
    assert resumed.returncode == 0, resumed.stderr
    assert resumed.stdout.startswith(
        f"run {unfinished.path}\nno checkpoint was saved yet: starting again at the first step\nstep 00001/1 | "
    )


@pytest.mark.slow
def test_what_is_printed_where(trainers: Trainers) -> None:
    ended = trainers.call("run", trainers.preset("printed"), "--set", "train.steps=2")
    run = trainers.run_of("printed")
    assert ended.returncode == 0 and run is not None
    # The profile of a small model is kept for whoever comes next.
    told = [line for line in ended.stderr.splitlines() if "profiling" not in line]
    assert told[0] == "workbench: preparing the text" and told[1].startswith("workbench: 2 steps are ")
    assert told[1].endswith(" epochs of the data") and len(told) == 2
    lines = ended.stdout.splitlines()
    assert lines[0] == f"run {run.path}"
    assert [line.split(" | ")[0] for line in lines[1:4]] == [
        "step 00001/2",
        "step 00002/2",
        "evaluation at step 2",
    ]
    assert lines[4].startswith(f"checkpoint {run.checkpoints / 'step-00000002'} | ")
    assert lines[5] == "sample at step 2:"
    assert run.log.read_text() == ended.stdout
    assert read_status(run).message == "2 steps"
