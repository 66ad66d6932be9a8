"""`workbench verify --gpus N`: ranks that share the state train as one rank with all their micro-batches."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from small_trials import write_preset

import workbench.verify.ranks as ranks_module
from workbench.cli import main
from workbench.config import load_config
from workbench.errors import WorkbenchError
from workbench.verify.ranks import check_ranks
from workbench.verify.trial import Trial, open_trial


def dies(*_: Any) -> None:
    os._exit(9)


@pytest.mark.parametrize("overlap", ["exact", "delayed"])
def test_ranks_are_compared_with_plain_torch_and_with_one_rank(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, overlap: str
) -> None:
    changes = ["parallel.gpus=2", "train.device=cpu", "model.config.n_layer=2", f"offload.overlap={overlap}"]
    with open_trial(load_config(write_preset(tmp_path), changes), 5) as trial:
        assert isinstance(trial, Trial) and trial.recipe.accumulation % 2 == 0
        rows = {row.compared: row for row in check_ranks(trial)}
        assert all(row.holds for row in rows.values()), rows
        assert "norm of each gradient" in rows
        alone = trial.recipe.accumulation == 2
        assert ("same bits as one rank with 2 micro-batches" in rows) == alone
        monkeypatch.setattr(ranks_module, "_train", dies)
        with pytest.raises(WorkbenchError, match="a process ended without an answer"):
            list(check_ranks(trial))


def test_what_ranks_cannot_train_is_refused_before_anything_is_trained(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    preset = str(write_preset(tmp_path))
    assert main(["verify", preset, "--gpus", "2", "--device", "virtual"]) == 2
    assert "--device virtual: ranks are verified as processes on the CPU" in capsys.readouterr().err
