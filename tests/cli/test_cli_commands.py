"""What a command line does: each command reaches its function with what was written, and data goes to stdout."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from workbench import __version__
from workbench.cli import main
from workbench.commands import runs
from workbench.commands.parser import build_parser
from workbench.commands.table import COMMANDS, GROUPS
from workbench.config import fields, parse_config
from workbench.runs import RunDirectory


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Record the calls of the commands about runs instead of making them."""
    asked: list[Any] = []
    command = ModuleType("workbench.training.command")
    command.run = lambda **asked_for: asked.append(asked_for) or 0  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "workbench.training.command", command)
    for name in ("runs", "steer"):
        monkeypatch.setattr(runs, name, command.run)
    return asked


RUN: dict[str, Any] = {
    "preset": "p",
    "overrides": [],
    "resume": None,
    "detach": False,
    "runs": None,
    "run_directory": None,
    "labels": [],
    "max_restarts": 0,
}
STEER: dict[str, Any] = {"run": None, "runs": None}
LIST: dict[str, Any] = {"runs": None, "as_json": False, "plan": False, "name": None}


@pytest.mark.parametrize(
    ("line", "asked"),
    [
        ("run p --set a.b=1 --set c.d=x", {**RUN, "overrides": ["a.b=1", "c.d=x"]}),
        ("run p --resume", {**RUN, "resume": "auto"}),
        ("run p --resume auto", {**RUN, "resume": "auto"}),
        ("run p --resume some/run", {**RUN, "resume": Path("some/run")}),
        ("run --resume quickstart", {**RUN, "preset": "quickstart", "resume": "auto"}),
        ("run --resume .", {**RUN, "preset": None, "resume": Path()}),
        ("run p --detach --runs there", {**RUN, "detach": True, "runs": Path("there")}),
        ("run p --run-directory there/one", {**RUN, "run_directory": Path("there/one")}),
        *((f"{verb} a-run", {**STEER, "verb": verb, "run": "a-run"}) for verb in ("save", "pause")),
        ("stop a-run", {**STEER, "verb": "stop", "run": "a-run", "wait": False}),
        ("stop --wait --runs there", {**STEER, "verb": "stop", "runs": Path("there"), "wait": True}),
        ("resume", {**STEER, "verb": "resume", "overrides": []}),
        ("resume --set train.steps=9", {**STEER, "verb": "resume", "overrides": ["train.steps=9"]}),
        ("runs", LIST),
        ("runs --json --runs there", {**LIST, "as_json": True, "runs": Path("there")}),
        ("runs --plan", {**LIST, "plan": True}),
        ("runs sweep", {**LIST, "name": "sweep"}),
        ("run p --tag a --name b --tag c", {**RUN, "labels": ["b", "a", "c"]}),
    ],
)
def test_a_command_gets_what_was_written(line: str, asked: dict[str, Any], calls: list[Any]) -> None:
    assert main(line.split()) == 0
    assert calls == [asked]


@pytest.mark.parametrize("line", ["run", "run --resume", "run --resume auto"])
def test_run_without_anything_to_train_is_refused(
    line: str, calls: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(line.split()) == 2
    assert "no preset is named" in capsys.readouterr().err
    assert not calls


def test_resuming_takes_a_run_by_a_part_of_its_name(calls: list[Any], tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path, "p", labels=["mine"])
    assert main(["run", "--resume", "mine", "--runs", str(tmp_path)]) == 0
    assert calls == [{**RUN, "preset": None, "resume": run.path, "runs": tmp_path}]


def test_resuming_what_is_neither_a_run_nor_a_preset_is_refused(
    calls: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", "--resume", "quickstrat"]) == 2
    told = capsys.readouterr().err
    assert "no such run, nor a preset" in told
    assert '"quickstart"' in told
    assert not calls


def test_config_show_prints_a_configuration_that_reads_back(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "show", "quickstart", "--set", "train.steps=77"]) == 0
    shown = capsys.readouterr().out
    assert parse_config(shown, "shown").train.steps == 77


def test_config_check_says_ok_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "check", "quickstart"]) == 0
    assert capsys.readouterr().out.endswith("quickstart.toml: ok\n")


def test_config_check_ends_with_2_and_tells_stderr_what_is_wrong(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "check", "quickstart", "--set", "train.steps=0"]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("workbench: --set: train.steps = 0: is too small; ")


def test_config_schema_names_every_field_with_its_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "schema"]) == 0
    schema = capsys.readouterr().out
    words = " ".join(schema.replace("\n# ", " ").split())
    for field in fields():
        assert f"\n{field.key} = " in schema
        assert " ".join(field.help.split()) in words


def test_config_schema_as_json_has_every_field(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "schema", "--json"]) == 0
    schema = json.loads(capsys.readouterr().out)
    assert [(field["table"], field["key"]) for field in schema] == [(f.table, f.key) for f in fields()]
    assert all(field["help"] for field in schema)


def test_presets_are_listed_with_what_they_are_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["presets"]) == 0
    assert "quickstart  shipped  GPT-2" in capsys.readouterr().out


def test_a_broken_preset_is_listed_and_does_not_spoil_the_list(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "broken.toml").write_text("[train]\nsteps = 0\n")
    monkeypatch.setenv("WORKBENCH_PRESETS", str(tmp_path))
    assert main(["presets"]) == 0
    listed = capsys.readouterr().out
    assert "broken.toml:2: train.steps = 0" in listed
    assert "quickstart" in listed
    assert main(["presets", "--json"]) == 0
    broken = next(preset for preset in json.loads(capsys.readouterr().out) if preset["name"] == "broken")
    assert "train.steps" in broken["error"]


def test_the_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"workbench {__version__}\n"


def test_workbench_alone_prints_its_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    assert "workbench run quickstart" in capsys.readouterr().out


def test_the_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    top = capsys.readouterr().out
    for command in COMMANDS:
        group, *word = command.name.split()
        assert re.search(rf"^    {group}\s", top, re.MULTILINE)
        assert main([group, *word, "--help"]) == 0
        assert capsys.readouterr().out.startswith(f"usage: workbench {command.name} ")


def test_hidden_options_stay_out_of_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--help"]) == 0
    assert "--run-directory" not in capsys.readouterr().out


def test_every_group_of_commands_has_commands() -> None:
    assert {command.name.split()[0] for command in COMMANDS if " " in command.name} == set(GROUPS)
    build_parser()


def test_config_show_and_check_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "show", "quickstart", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["model"]["architecture"] == "gpt2"
    assert main(["config", "check", "quickstart", "--json"]) == 0
    checked = json.loads(capsys.readouterr().out)
    assert checked["ok"] and checked["not_checked"] and checked["problems"] == []
    assert main(["config", "check", "quickstart", "--json", "--set", "train.steps=0"]) == 2
    checked = json.loads(capsys.readouterr().out)
    assert not checked["ok"] and checked["problems"][0].startswith("--set: train.steps = 0: is too small; ")
