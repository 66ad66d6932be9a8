"""A home that is not there is one clear sentence, wherever a path that begins with it is written."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from workbench.cli import main
from workbench.config import parse_config
from workbench.data.sources import find_documents
from workbench.errors import ConfigurationError
from workbench.runs import RunDirectory
from workbench.system.folders import expanded, runs_root
from workbench.training.fitting import disk_folder
from workbench.tui.form.planner import ThisMachine
from workbench.tui.run.reading import disk_folder as recorded_disk_folder

NOBODYS = "~no-such-user-here/runs"


def test_a_home_is_written_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    assert expanded("~/x", "") == Path("/home/me/x")
    assert expanded("x/~", "") == Path("x/~")


@pytest.mark.parametrize(
    ("named", "use"),
    [
        ("--runs", lambda: runs_root(Path(NOBODYS))),
        ("offload.disk_path", lambda: ThisMachine(Path("runs")).machine("cpu", NOBODYS)),
        (
            "offload.disk_path",
            lambda: disk_folder(
                parse_config(
                    f'[model]\narchitecture = "gpt2"\n[offload]\nstate = "disk"\ndisk_path = "{NOBODYS}"\n',
                    "",
                )
            ),
        ),
        ("data.source", lambda: find_documents(NOBODYS)),
        ("run", lambda: RunDirectory.open(Path(NOBODYS))),
    ],
    ids=["runs", "form", "trainer", "data", "run"],
)
def test_a_home_that_is_not_there_is_one_sentence(named: str, use: Callable[[], object]) -> None:
    with pytest.raises(ConfigurationError) as caught:
        use()
    assert str(caught.value) == (
        f'{named} = "{NOBODYS}": user no-such-user-here has no home folder here; '
        "write the whole path instead of ~no-such-user-here"
    )


def test_the_environment_is_named_where_it_names_the_folder(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WORKBENCH_RUNS", NOBODYS)
    assert main(["runs"]) == 2
    assert capsys.readouterr().err.startswith('workbench: WORKBENCH_RUNS = "~no-such-user-here/runs": ')


def test_a_run_that_was_recorded_with_one_is_shown_all_the_same() -> None:
    assert recorded_disk_folder({"offload": {"state": "disk", "disk_path": NOBODYS}}) is None
