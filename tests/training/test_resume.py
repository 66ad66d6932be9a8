"""Going on from a checkpoint: what stands in its way is found early, and what has changed is said."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from stored_checkpoints import store_checkpoint
from tiny_training import SETTINGS, build_engine, flip, save, train

from workbench.cli import main
from workbench.config import parse_config, to_toml
from workbench.errors import ConfigurationError
from workbench.model.build import build_on_meta, model_config
from workbench.runs import MetricsWriter, RunDirectory, Status, write_status
from workbench.runs.checkpoints import NotResumableError, Progress, check_resumable
from workbench.training import batches, resume_check, session
from workbench.training.resume_check import (
    changed_settings,
    check_resume,
    check_same_model,
    check_steps_left,
    resume_line,
    settings_of,
)

PRESET = '[model]\narchitecture = "gpt2"\n[train]\nsteps = 9\n'
CURSOR = {"tokens": 100}


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    """A finished run with a checkpoint of the tiny model."""
    run = RunDirectory.create(tmp_path_factory.mktemp("runs"), "tiny")
    run.config.write_text(to_toml(parse_config(PRESET, "p")))
    write_status(run, Status(phase="finished", step=9, total_steps=9, exit_code=0, message="9 steps"))
    model, engine = build_engine()
    with engine:
        train(model, engine, 1)
        save(run.checkpoints, 9, model, engine, progress=Progress(data=CURSOR))
    return run


def check(run: RunDirectory, monkeypatch: pytest.MonkeyPatch, **settings: Any) -> list[object]:
    """`check_resume` with the tiny model under other settings; the cursors that its sampler was given."""
    cursors: list[object] = []
    sampler = SimpleNamespace(load_state=cursors.append)
    monkeypatch.setattr(batches, "training_sampler", lambda config, data: sampler)
    model = build_on_meta(model_config("gpt2", {**SETTINGS, **settings}))
    nothing: Any = None
    check_resume(run, nothing, model, nothing)
    return cursors


def test_the_same_model_goes_on_with_its_cursor_whatever_its_dropout(
    saved: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert check(saved, monkeypatch) == [CURSOR]
    assert check(saved, monkeypatch, attn_pdrop=0.3) == [CURSOR]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"n_embd": 32}, "transformer.wte.weight has 4,112 elements there and 8,224 here"),
        ({"n_layer": 3}, "it has no trained parameter transformer.h.2"),
        ({"n_layer": 1}, "it also has a trained parameter transformer.h.1"),
    ],
)
def test_a_model_of_other_parameters_is_refused_before_it_has_memory(
    saved: RunDirectory, monkeypatch: pytest.MonkeyPatch, settings: dict[str, int], said: str
) -> None:
    with pytest.raises(ConfigurationError, match="is a checkpoint of another model") as refused:
        check(saved, monkeypatch, **settings)
    assert said in str(refused.value)


def test_a_run_that_has_saved_nothing_may_have_any_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert check(RunDirectory.create(tmp_path, "tiny"), monkeypatch, n_layer=1) == []


@pytest.mark.parametrize(
    ("override", "code", "words"),
    [
        ("train.steps=5", 2, "train.steps = 5: run {} has done 9 steps already; give a larger number"),
        ("train.steps=9", 1, "run {} is finished: all 9 steps are done (--set train.steps=N"),
        ("optimizer.learning_rate=1e-3", 1, "run {} is finished: all 9 steps are done (--set train.steps=N"),
    ],
)
def test_a_run_that_is_finished_goes_on_only_with_more_steps(
    saved: RunDirectory, capsys: pytest.CaptureFixture[str], override: str, code: int, words: str
) -> None:
    for line in (["resume", str(saved.path)], ["run", "--resume", str(saved.path)]):
        assert main([*line, f"--set={override}"]) == code
        err = capsys.readouterr().err
        assert words.format(saved.name) in err and err.count("\n") == 1


MODEL = '[model]\narchitecture = "gpt2"\n'


def between(*overrides: str, precision: str = "fp32") -> dict[str, list[object]]:
    before = settings_of(parse_config(MODEL, "p"), "fp32")
    return changed_settings(before, settings_of(parse_config(MODEL, "p", overrides), precision))


def test_each_change_is_told_with_what_it_was_and_that_the_state_is_the_same() -> None:
    changed = between("offload.weights=host", "offload.overlap=serial", "offload.threads=3")
    assert resume_line("step-00000003", changed, []) == (
        'resuming from step-00000003, with offload.weights = "host" (saved under "device"), offload.overlap = "serial" '
        '(saved under "exact"), offload.threads = 3 (saved under "auto"): the state is restored bit for bit'
    )


def test_what_was_rounded_is_told_and_a_precision_by_the_configurations_word() -> None:
    changed = between("offload.state_format=half", precision="bf16")
    assert changed["train.precision"] == ["fp32", "bf16"]
    line = resume_line("step-00000003", changed, ["exp_avg is rounded", "no more"])
    assert line.endswith(": exp_avg is rounded; no more")
    assert "bit for bit" not in line


FROM_FILES = '[model]\npretrained = "there"\n'
ADAPTED = FROM_FILES + "[adapter]\nrank = 4\n"


@pytest.mark.parametrize(
    ("text", "override", "refused"),
    [
        (MODEL, "model.architecture=llama", True),
        (MODEL, "model.pretrained=elsewhere", True),
        (MODEL, "model.config.attn_pdrop=0.3", False),
        (FROM_FILES, "model.pretrained=elsewhere", True),
        (FROM_FILES, "adapter.rank=4", True),
        (ADAPTED, "model.pretrained=elsewhere", False),
        (ADAPTED, "adapter.rank=8", True),
        (ADAPTED, "adapter.dropout=0.1", False),
    ],
)
def test_a_run_with_a_checkpoint_is_not_given_another_model(
    text: str, override: str, refused: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = RunDirectory(tmp_path / "the-run")
    stored, wanted = parse_config(text, "p"), parse_config(text, "p", [override])
    check_same_model(run, stored, wanted)  # nothing is saved yet
    saved = SimpleNamespace(path=Path("step-00000003"))
    monkeypatch.setattr(resume_check, "newest_checkpoint", lambda root: saved)
    check_same_model(run, stored, stored)
    if not refused:
        check_same_model(run, stored, wanted)
        return
    with pytest.raises(
        ConfigurationError, match=re.escape(override.split("=")[0].split(".rank")[0]) + ".*step-00000003"
    ):
        check_same_model(run, stored, wanted)


def saved_twice(run: RunDirectory) -> None:
    model, engine = build_engine()
    with engine:
        train(model, engine, 1)
        for step in (3, 6):
            save(run.checkpoints, step, model, engine)


def flip_state(checkpoint: Path) -> str:
    """Turn one bit of a state file; return the file's name."""
    target = min((checkpoint / "state").glob("*exp_avg"))
    flip(target)
    return target.name


def resume(run: RunDirectory) -> list[str]:
    """What is warned of."""
    warned: list[str] = []
    trainer: Any = SimpleNamespace(restore=lambda progress: None, settings=dict)
    with_metrics = MetricsWriter(run.metrics)
    journal: Any = SimpleNamespace(warn=warned.append, phase=lambda name: None, metrics=with_metrics)
    _, engine = build_engine(seed=9)
    with engine:
        session.resume_from_checkpoint(run, engine, trainer, journal)
    return warned


def test_a_flipped_bit_is_warned_of_where_another_checkpoint_stands(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path, "tiny")
    saved_twice(run)
    name = flip_state(run.checkpoints / "step-00000006")
    [warning] = resume(run)
    assert f"step-00000006: state/{name} is damaged: its checksum" in warning


def test_where_none_stands_each_has_its_line_and_the_model_can_be_had(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path, "tiny")
    saved_twice(run)
    names = [flip_state(run.checkpoints / f"step-{step:08}") for step in (6, 3)]
    check_resumable(run)  # it takes reading
    with pytest.raises(NotResumableError) as refused:
        resume(run)
    _, six, three, *ways = str(refused.value).splitlines()
    assert f"step-00000006: state/{names[0]} is damaged" in six
    assert f"step-00000003: state/{names[1]} is damaged" in three
    assert any(f"export {run.path} DIR --step 6" in way for way in ways)


def test_fewer_steps_than_are_done_are_refused(run: RunDirectory) -> None:
    config = parse_config('model.architecture = "gpt2"', "p", ["train.steps=3"])
    check_steps_left(run, config)  # nothing is saved yet
    store_checkpoint(run, 4, {})
    with pytest.raises(
        ConfigurationError, match=r"train.steps = 3: run .* has done 4 steps already; give a larger number"
    ):
        check_steps_left(run, config)
    for enough in ("train.steps=4", "train.epochs=0.1"):
        check_steps_left(run, parse_config('model.architecture = "gpt2"', "p", [enough]))
