"""What keeps a run from going on is told before anything is allocated, and the more specific reason first."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tiny_training import SETTINGS, build_engine, train

from workbench.cli import main
from workbench.config import parse_config, to_toml
from workbench.data.tokenizers import ByteTokenizer
from workbench.errors import ConfigurationError
from workbench.model.build import build_on_meta, model_config
from workbench.runs import RunDirectory, Status, write_status
from workbench.training import going_on
from workbench.training.checkpoints.checkpoint import save_checkpoint
from workbench.training.going_on import check_going_on

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
        progress = {"data": CURSOR}
        save_checkpoint(
            run.checkpoints,
            9,
            engine=engine,
            model=model,
            tokenizer=ByteTokenizer(),
            progress=progress,
            keep=1,
        )
    return run


def check(run: RunDirectory, monkeypatch: pytest.MonkeyPatch, **settings: Any) -> list[object]:
    """`check_going_on` with the tiny model under other settings; the cursors that its sampler was given."""
    cursors: list[object] = []
    sampler = SimpleNamespace(load_state=cursors.append)
    monkeypatch.setattr(going_on, "training_sampler", lambda config, data: sampler)
    model = build_on_meta(model_config("gpt2", {**SETTINGS, **settings}))
    nothing: Any = None
    check_going_on(run, nothing, model, nothing)
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
    ("overrides", "code", "said"),
    [
        (["model.architecture=llama"], 2, "goes on with the model that its checkpoint step-00000009 holds"),
        (["model.config.n_layer=7"], 2, "(--set train.steps=N as well) and a model of the same parameters"),
        (
            ["optimizer.learning_rate=1e-3"],
            2,
            "only with more steps than 9 (--set train.steps=N as well); or",
        ),
        (["train.steps=5"], 0, "is finished: all 9 steps are done (--set train.steps=N"),
        (["train.steps=9", "optimizer.learning_rate=3e-4"], 0, "is finished: all 9 steps are done"),
    ],
)
def test_a_finished_run_is_told_what_is_wrong_with_a_change_before_that_it_is_finished(
    saved: RunDirectory, capsys: pytest.CaptureFixture[str], overrides: list[str], code: int, said: str
) -> None:
    for line in (["resume", str(saved.path)], ["run", "--resume", str(saved.path)]):
        assert main([*line, *(f"--set={override}" for override in overrides)]) == code
        told = capsys.readouterr().err
        assert said in told and told.count("\n") == 1
