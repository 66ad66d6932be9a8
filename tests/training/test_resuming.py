"""What is said when a run goes on under other settings than those that it was saved under."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from workbench.config import parse_config
from workbench.errors import ConfigurationError
from workbench.runs import RunDirectory
from workbench.training.checkpoints import same_model
from workbench.training.checkpoints.resuming import changes, settings_of, words
from workbench.training.checkpoints.saved_state import Conversion

MODEL = '[model]\narchitecture = "gpt2"\n'
ROUNDED = Conversion(formats=frozenset({("exact", "half")}))


def between(*overrides: str, dtype: torch.dtype = torch.float32) -> dict[str, list[object]]:
    before = settings_of(parse_config(MODEL, "p"), torch.float32)
    return changes(before, settings_of(parse_config(MODEL, "p", overrides), dtype))


def test_nothing_is_said_of_a_run_that_goes_on_as_it_was() -> None:
    assert between("train.steps=5") == {}
    assert words("step-00000003", {}, Conversion()) == "resuming from step-00000003"


def test_each_change_is_told_with_what_it_was_and_that_the_state_is_the_same() -> None:
    changed = between("offload.weights=host", "offload.overlap=serial", "offload.threads=3")
    assert words("step-00000003", changed, Conversion()) == (
        'resuming from step-00000003, with offload.weights = "host" (saved under "device"), offload.overlap = "serial" '
        '(saved under "exact"), offload.threads = 3 (saved under "auto"): the state is taken over bit for bit'
    )


def test_what_was_rounded_is_told_and_a_precision_by_the_configurations_word() -> None:
    changed = between("offload.state_format=half", dtype=torch.bfloat16)
    assert changed["train.precision"] == ["fp32", "bf16"]
    line = words("step-00000003", changed, ROUNDED)
    assert line.endswith(": exp_avg and exp_avg_sq are converted from exact to half, rounded once")
    assert "bit for bit" not in line


def test_what_an_older_checkpoint_does_not_know_is_no_change() -> None:
    assert changes({}, settings_of(parse_config(MODEL, "p"), torch.float32)) == {}


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
    same_model.check_same_model(run, stored, wanted)  # nothing is saved yet
    saved = SimpleNamespace(path=Path("step-00000003"))
    monkeypatch.setattr(same_model, "find_checkpoints", lambda root, warn: iter([saved]))
    same_model.check_same_model(run, stored, stored)
    if not refused:
        same_model.check_same_model(run, stored, wanted)
        return
    with pytest.raises(
        ConfigurationError, match=re.escape(override.split("=")[0].split(".rank")[0]) + ".*step-00000003"
    ):
        same_model.check_same_model(run, stored, wanted)
