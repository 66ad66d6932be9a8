"""`workbench doctor` as a whole: its table, its JSON, its exit code, and checks that fail themselves."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterable
from pathlib import Path

import pytest
from forged_machine import around

from workbench.cli import main
from workbench.doctor import Context, Finding, command, failure, ok, warning
from workbench.doctor.command import CHECKS, Check, run_checks

OK = ok("python", "3.11")
WARNING = warning("threads", "idle", "`export OMP_NUM_THREADS=4`")
FAILURE = failure("torch", "missing", "`pip install torch`")


@pytest.mark.parametrize(
    ("findings", "code", "counts"),
    [
        ([OK, OK], 0, "2 ok, 0 warnings, 0 failures"),
        ([OK, WARNING], 5, "1 ok, 1 warning, 0 failures"),
        ([FAILURE, WARNING, OK], 1, "1 ok, 1 warning, 1 failure"),
    ],
)
def test_every_finding_is_printed_and_the_exit_code_is_that_of_the_worst(
    findings: list[Finding],
    code: int,
    counts: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[tuple[Path | None, Path | None]] = []
    monkeypatch.setattr(command, "check_machine", lambda *folders: asked.append(folders) or findings)
    assert main(["doctor", "--disk", "d", "--runs", "r"]) == code
    out = capsys.readouterr().out
    assert out.splitlines()[-1] == counts and "\x1b" not in out
    for each in findings:
        assert each.finding in out and f"-> {each.remedy}\n" * bool(each.remedy) in out
    assert main(["doctor", "--json"]) == code
    assert json.loads(capsys.readouterr().out) == [vars(each) for each in findings]
    assert asked == [(Path("d"), Path("r")), (None, None)]


def test_a_check_that_raises_hangs_or_misses_a_package_is_a_warning_and_the_others_go_on(
    tmp_path: Path,
) -> None:
    let_go = threading.Event()

    def broken(_: Context) -> Iterable[Finding]:
        yield OK
        raise ZeroDivisionError("by\nnothing")

    def without(_: Context) -> Iterable[Finding]:
        raise ModuleNotFoundError("No module named 'psutil'")

    def hanging(_: Context) -> Iterable[Finding]:
        let_go.wait(60)
        return [OK]

    checks = [
        Check("broken", broken),
        Check("memory", without),
        Check("hanging", hanging, limit_s=0.05),
        Check("python", lambda _: [OK]),
    ]
    try:
        *failed, last = run_checks(checks, around(tmp_path))
    finally:
        let_go.set()
    assert [each.check for each in failed] == ["broken", "memory", "hanging"]
    assert {each.status for each in failed} == {"warning"} and all(each.remedy for each in failed)
    for each, words in zip(
        failed, ("ZeroDivisionError: by nothing", "'psutil'", "no answer within"), strict=True
    ):
        assert words in each.finding
    assert "pip install" in failed[1].remedy
    assert last == OK


def test_this_machine_is_checked_without_torch_in_the_process_that_checks(tmp_path: Path) -> None:
    program = (
        "import sys\n"
        "from workbench.cli import main\n"
        "code = main(['doctor', '--json', '--disk', sys.argv[1], '--runs', sys.argv[1] + '/runs'])\n"
        "heavy = {'torch', 'transformers', 'textual', 'numpy'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
        "sys.exit(code)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    rows = json.loads(done.stdout)
    assert done.returncode in (0, 1, 5), done.stderr
    assert {check.name for check in CHECKS} - {row["check"] for row in rows} <= {"cuda", "pinned memory"}
    assert not [row for row in rows if "the check failed" in row["finding"]], rows
    assert not list(tmp_path.iterdir())
