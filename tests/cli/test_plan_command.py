"""`workbench plan`: exit codes, JSON, other machines, the search and what it writes; no helper process, no training."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest

from workbench.cli import main
from workbench.config import load_config
from workbench.presets import find_preset
from workbench.profiles.named_machines import load_profile


def test_the_large_preset_does_not_fit_a_24_gb_card_and_the_exit_code_says_so(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["plan", "gpt2-10b", "--machine", "desktop-24gb"]) == 3
    said = capsys.readouterr().out
    assert "IT DOES NOT FIT" in said
    assert "are needed and" in said


def test_a_small_preset_fits_and_json_holds_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "quickstart", "--machine", "server-h200", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["fits"] is True
    assert data["time"]["step_s"] > 0
    assert data["remedies"] == []


def test_a_search_finds_what_fits_and_writes_a_preset_that_is_read_back(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "mine.toml"
    arguments = ["plan", "gpt2-10b", "--machine", "desktop-32gb", "--fit", "--write", str(target)]
    assert main(arguments) == 0
    assert "offload.state_format: exact -> " in capsys.readouterr().out
    assert load_config(target).offload.state_format != "exact"
    assert main(arguments) == 2, "what is there is not written over"
    assert "already exists" in capsys.readouterr().err
    assert main(["plan", str(target), "--machine", "desktop-32gb"]) == 0


def test_a_search_warns_of_what_it_found_and_not_of_what_it_was_given(
    capsys: pytest.CaptureFixture[str],
) -> None:
    disk = ["--set", "offload.disk_path=/invented"]
    arguments = ["plan", "gpt2-10b", "--machine", "desktop-24gb", *disk]
    assert main(arguments) == 3
    assert "offload.disk_path" in capsys.readouterr().err, "nothing is on disk"
    assert main([*arguments, "--fit"]) == 0
    assert "offload.disk_path" not in capsys.readouterr().err, "what was found has its state there"


def test_the_tutorials_case_fits_in_compact_and_says_why_exact_does_not(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["plan", "gpt2-10b", "--machine", "desktop-32gb"]) == 3
    said = capsys.readouterr().out
    assert "the state, kept exact, is" in said
    assert 'offload.state_format = "' in said
    compact = ["--set", "offload.state_format=compact"]
    assert main(["plan", "gpt2-10b", "--machine", "desktop-32gb", *compact]) == 0
    assert ": it fits" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--machine", "nowhere.toml"], "machine nowhere.toml: cannot be read"),
        (["--write", "x.toml"], "--write: needs --fit"),
        (["--keep", "offload.state"], "--keep: needs --fit"),
        (["--machine", "server-80gb", "--set", "train.device=cpu"], 'train.device = "cpu"'),
        (["--machine", "server-80gb", "--fit", "--keep", "train.steps"], "--keep train.steps"),
        (["--memory", "64G"], "--memory: needs --gpu too"),
        (["--gpu", "RTX-4090"], "--gpu: needs --memory too"),
        (["--gpu", "RTX-4090", "--memory", "lots"], '--memory "lots": expected a size'),
        (["--gpu", "RTX-4090", "--memory", "64G", "--disk", "lots"], '--disk "lots": expected a size'),
        (["--gpu", "RTX-4095", "--memory", "64G"], "did you mean RTX-4090"),
        (
            ["--gpu", "T4", "--memory", "64G", "--machine", "server-80gb"],
            "described by --gpu too; leave one out",
        ),
        (["--gpu", "T4", "--memory", "64G", "--channels", "0"], "--channels 0: expected 1 to 64"),
        (["--gpu", "none", "--memory", "8G", "--set", "train.device=cuda"], 'train.device = "cuda"'),
        (["--fit", "--keep", "offload.stat"], "did you mean offload.state?"),
        (["--fit", "--write", "/dev/null"], "--write /dev/null: already exists"),
        (["--fit", "--write", "/nowhere/x.toml"], "--write /nowhere/x.toml: there is no folder /nowhere"),
        (["--set", "data.sequence_length=129"], "data.sequence_length = 129: the model has 128 positions"),
        (
            ["--set", "offload.disk_path=~nobody-here/x", "--fit"],
            'offload.disk_path = "~nobody-here/x": user nobody-here has no home',
        ),
        (["--set", "offload.disk_path=/dev/null", "--set", "offload.state=auto"], "there is no such folder"),
    ],
)
def test_what_makes_no_sense_is_refused_in_one_message_before_anything_is_measured(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workbench.profiles.probe_command.measured_machine", pytest.fail)
    assert main(["plan", "quickstart", *arguments]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert "Traceback" not in error


DGX2 = ["--gpu", "V100-32GB", "--memory", "1.5T", "--channels", "12", "--ddr", "2666", "--pcie", "3x16"]


def test_a_described_machine_is_planned_as_the_known_one_of_the_same_parts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`machine new` writes what `plan` takes."""

    def planned(*arguments: str) -> Any:
        assert main(["plan", "gpt2-10b", *arguments, "--json"]) == 0
        data = json.loads(capsys.readouterr().out)
        return data["memory"]["tiers"][:2], data["time"]

    known = planned("--machine", "server-v100-32gb")
    assert planned(*DGX2) == known
    mine = tmp_path / "mine.toml"
    assert main(["machine", "new", str(mine), *DGX2]) == 0
    assert f"written: {mine}" in capsys.readouterr().err
    written = planned("--machine", str(mine))
    assert written == known
    slower = planned(*DGX2, "--rate", "host.read_bytes_per_s=20e9")
    assert slower[1]["step_s"] > 1.3 * known[1]["step_s"]
    assert main(["machine", "new", str(mine), *DGX2]) == 2
    assert "already exists" in capsys.readouterr().err
    assert main(["machine", "new"]) == 2
    assert "describe the machine, for example --gpu" in capsys.readouterr().err


def test_machines_and_cards_are_listed_with_their_figures_and_sources(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["machine", "list"]) == 0
    said = capsys.readouterr().out
    assert re.search(r"server-80gb +A100-80GB +512 GiB, 8 x DDR-3200", said)
    assert re.search(r"V100-32GB +32 +900 +125 +- +- +15.7 +3x16", said)
    assert main(["machine", "list", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["sources"][data["cards"]["T4"]["source"]] == "NVIDIA T4 Tensor Core GPU data sheet"


def test_a_damaged_profile_names_file_and_key(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    broken = tmp_path / "machine.toml"
    broken.write_text('name = "x"\nsource = "guessed"\n')
    assert main(["plan", "quickstart", "--machine", str(broken)]) == 2
    error = capsys.readouterr().err
    assert str(broken) in error
    assert "source" in error


def test_where_auto_finds_nothing_the_nearest_is_shown_with_what_was_fixed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    fixed = ["--set", "offload.weights=host", "--set", "offload.state=auto"]
    assert main(["plan", "gpt2-10b", "--machine", "desktop-24gb", *fixed]) == 3
    assert "weights on host, state on host (exact)" in capsys.readouterr().out


def test_where_nothing_fits_no_preset_is_written_and_that_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "mine.toml"
    arguments = ["plan", "gpt2-10b", "--machine", "desktop-24gb", "--fit", "--write", str(target)]
    assert main(arguments) == 3
    assert f"nothing fits, so {target} is not written" in capsys.readouterr().err
    assert not target.exists()


@pytest.mark.parametrize(
    ("named", "shared", "timed_on"),
    [("auto", False, "cuda"), ("auto", True, "cpu"), ("cuda:1", False, "cuda:1"), ("cpu", True, "cpu")],
)
def test_this_machine_is_measured_without_a_folder_that_is_not_used_and_timed_on_the_device_measured(
    named: str, shared: bool, timed_on: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    shipped = load_profile(Path("desktop-24gb"))
    device = shipped.device.model_copy(update={"shared_memory": shared})
    profile = shipped.model_copy(update={"device": device})
    measured: list[tuple[str, Path | None]] = []
    timed: list[str] = []
    monkeypatch.setattr(
        "workbench.profiles.probe_command.measured_machine", lambda *of: measured.append(of) or profile
    )
    monkeypatch.setattr("workbench.plan.machine.obtain_times", lambda *_, device, **__: timed.append(device))
    line = f"plan quickstart --set offload.disk_path=/nowhere --set train.device={named}"
    assert main(line.split()) == 0
    assert measured == [(named, None)] and set(timed) == {timed_on}


def test_a_plan_tells_how_often_a_prepared_text_is_read_and_how_many_steps_epochs_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from workbench.data.prepare import prepare

    (tmp_path / "a.txt").write_text("some words. " * 4000)
    words = ["plan", "quickstart", "--machine", "server-h200", "--set", f"data.source={tmp_path / 'a.txt'}"]
    assert main([*words, "--set", "train.epochs=2"]) == 0
    said = capsys.readouterr().out
    assert "depends on the text" in said and " steps: " not in said and "a day" not in said
    config = load_config(find_preset("quickstart"), [words[-1]])
    tokens, train = len(prepare(config.data).train), config.train
    a_step = config.data.sequence_length * train.micro_batch_size * train.gradient_accumulation
    assert main([*words, "--set", "train.epochs=2"]) == 0
    steps = math.ceil(2 * tokens / a_step)
    assert f"{steps:,} steps read the {tokens:,} tokens of the data about" in capsys.readouterr().out
    assert main([*words, "--set", "train.steps=9", "--json"]) == 0
    assert f"about {9 * a_step / tokens:,.2g} times" in json.loads(capsys.readouterr().out)["reading"]
