"""`workbench completion`: the shell completes commands, options, presets and runs by itself."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from workbench.cli import main

pytest.importorskip("shtab")
ASK = """
source "$1"; shift
COMP_WORDS=("$@"); COMP_CWORD=$((${#COMP_WORDS[@]}-1)); _shtab_workbench; echo "${COMPREPLY[*]}"
"""


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
@pytest.mark.parametrize(
    ("line", "completed"),
    [
        ("st", "stop"),
        ("runs --pl", "--plan"),
        ("run quick", "quickstart"),
        ("stop mi", "mine"),
        ("log -f mi", "mine"),
        ("config sch", "schema"),
    ],
)
def test_bash_completes(
    line: str, completed: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["completion", "bash"]) == 0
    script = tmp_path / "completion.bash"
    script.write_text(capsys.readouterr().out)
    (tmp_path / "runs" / "mine").mkdir(parents=True)
    words = ["bash", "-c", ASK, "bash", str(script), "workbench", *line.split()]
    asked = subprocess.run(
        words, capture_output=True, text=True, cwd=tmp_path, env={"PATH": "/usr/bin:/bin"}, timeout=60
    )
    assert (asked.stdout.split(), asked.stderr) == ([completed], "")


def test_other_shells_get_a_script_and_unknown_ones_a_sentence(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for shell in ("zsh", "tcsh"):
        assert main(["completion", shell]) == 0
        assert "workbench" in capsys.readouterr().out
    assert main(["completion", "cmd.exe"]) == 2
    assert "must be one of bash, zsh, tcsh" in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "shtab", None)
    assert main(["completion", "bash"]) == 2
    assert 'pip install "workbench[completion]"' in capsys.readouterr().err
