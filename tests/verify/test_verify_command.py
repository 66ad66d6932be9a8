"""`workbench verify` on the command line: its table, its exit code, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from small_trials import PRESET, write_preset

from workbench.cli import main
from workbench.engine.step_tasks import StepTasks
from workbench.timeline import Task

Captured = pytest.CaptureFixture[str]


def test_a_table_of_rows_that_hold_ends_with_exit_0_and_leaves_the_process_as_it_was(
    tmp_path: Path, capsys: Captured
) -> None:
    before, threads = torch.get_rng_state(), torch.get_num_threads()
    assert main(["verify", str(write_preset(tmp_path))]) == 0
    told = capsys.readouterr()
    *table, empty, last = told.out.splitlines()
    assert last == f"all {len(table) - 1} rows pass" and not empty
    assert all("  ok" in line for line in table[1:])
    assert "small: shrunk to 5 blocks of width 32" in told.err and "9/9 save and resume" in told.err
    assert torch.equal(torch.get_rng_state(), before) and torch.get_num_threads() == threads


def test_rows_are_data_with_json(tmp_path: Path, capsys: Captured) -> None:
    assert (
        main(
            ["verify", str(write_preset(tmp_path)), "--json", "--steps", "5", "--set", "offload.state=device"]
        )
        == 0
    )
    said = json.loads(capsys.readouterr().out)
    assert said["holds"] is True and said["preset"] == "small" and said["steps"] == 5
    for row in said["rows"]:
        assert row["holds"] is True
        assert (row["worst"] is None) == (row["allowed"] is None)
        assert row["worst"] is None or row["worst"] <= row["allowed"]
    assert {"first step", "accumulation", "clipping", "overflow", "tied weights", "5 steps"} <= {
        row["name"] for row in said["rows"]
    }


def test_the_gpus_code_is_verified_on_a_virtual_device(tmp_path: Path, capsys: Captured) -> None:
    preset = str(write_preset(tmp_path))
    small = ["--steps", "5", "--set", "model.config.n_layer=2"]
    assert main(["verify", preset, "--json", "--device", "virtual", *small]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["holds"] is True and said["device"] == "virtual"
    rows = {row["name"]: row for row in said["rows"]}
    assert {"first step", "races", "host memory"} <= rows.keys() and "operations" in rows["races"]["note"]


def test_a_broken_engine_ends_with_exit_1_and_rows_that_say_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    check_overflow = StepTasks.check_overflow

    def unclipped(self: StepTasks, task: Task) -> None:
        check_overflow(self, task)
        self._current.scale = self._current.unscale

    monkeypatch.setattr(StepTasks, "check_overflow", unclipped)
    assert main(["verify", str(write_preset(tmp_path))]) == 1
    lines = capsys.readouterr().out.splitlines()
    failed = [line for line in lines if "  FAILED" in line]
    assert any(line.startswith("clipping") for line in failed)
    assert any(line.startswith("first step       loss") and "  ok" in line for line in lines)
    assert lines[-1].endswith(f"of {len(lines) - 3} rows FAILED")


@pytest.mark.parametrize(
    ("words", "because"),
    [
        (["--steps", "4"], "--steps 4: at least 5"),
        (["--set", "model.architecture=gtp2"], 'did you mean "gpt2"'),
        (["--set", "model.config.n_layr=2"], 'did you mean "n_layer"'),
        (["--set", "train.device=cuda:7"], "train.device = 'cuda:7'"),
        (["--set", 'data.source="/nowhere/texts"'], 'data.source = "/nowhere/texts": there is no such file'),
        (["--set", 'data.tokenizer="/nowhere/tokens"'], 'data.tokenizer = "/nowhere/tokens"'),
        (["--set", "offload.state=disk"], "the disk tier has no folder"),
        (["--set", "offload.state=disk", "--set", "offload.disk_path=/nowhere"], "there is no such folder"),
    ],
)
def test_what_a_run_would_refuse_is_refused(
    words: list[str], because: str, tmp_path: Path, capsys: Captured
) -> None:
    assert main(["verify", str(write_preset(tmp_path)), *words]) == 2
    told = capsys.readouterr()
    assert because in told.err and not told.out


def test_frozen_parameters_and_groups_are_verified(tmp_path: Path, capsys: Captured) -> None:
    options = (
        'model.freeze=["*.1.mlp.*", "*.ln_f.*"]',
        'optimizer.no_decay=["*.wte.*"]',
        'optimizer.learning_rate_scales={"*.0.*" = 0.1}',
    )
    words = [word for option in options for word in ("--set", option)]
    assert main(["verify", str(write_preset(tmp_path)), *words]) == 0, capsys.readouterr().out


def test_the_model_itself_is_verified_where_it_fits(tmp_path: Path, capsys: Captured) -> None:
    preset = write_preset(tmp_path, PRESET.replace("n_layer = 5", "n_layer = 6"))
    assert main(["verify", str(preset), "--full", "--set", "train.micro_batch_size=3"]) == 0
    told = capsys.readouterr()
    assert "small: the model itself, 0.1 million parameters" in told.err


def test_a_model_that_does_not_fit_ends_with_exit_3_before_it_is_built(capsys: Captured) -> None:
    assert main(["verify", "gpt2-10b", "--full", "--set", "train.device=cpu"]) == 3
    told = capsys.readouterr()
    assert "do not fit on the host" in told.err and "GiB are free" in told.err and not told.out


def test_the_disk_tier_is_verified_in_its_own_folder_and_leaves_nothing_there(
    tmp_path: Path, capsys: Captured
) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    options = [
        "offload.weights=disk",
        "offload.state=disk",
        f"offload.disk_path={disk}",
        "train.precision=bf16",
    ]
    words = [word for option in options for word in ("--set", option)]
    assert main(["verify", str(write_preset(tmp_path)), *words]) == 0, capsys.readouterr().out
    assert not list(disk.iterdir())


@pytest.mark.slow
def test_a_placement_that_is_left_open_is_the_one_a_run_would_choose(
    tmp_path: Path, capsys: Captured
) -> None:
    options = ["--set", "offload.weights=auto", "--set", "offload.state=auto"]
    assert main(["verify", str(write_preset(tmp_path)), *options]) == 0
    assert "placement: " in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("preset", ["quickstart", "gpt2-10b"])
@pytest.mark.parametrize(
    "option", ["", "train.precision=bf16", "offload.overlap=delayed", "offload.state_format=compact"]
)
def test_the_presets_that_are_shipped_hold(preset: str, option: str, capsys: Captured) -> None:
    words = ["--set", "train.device=cpu", "--set", "train.activation_checkpointing=true"]
    if option:
        words += ["--set", option]
    assert main(["verify", preset, *words]) == 0, capsys.readouterr().out
