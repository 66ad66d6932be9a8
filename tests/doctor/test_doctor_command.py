"""`workbench doctor` as a whole: its table, its JSON, its exit code, and checks that fail themselves."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from forged_machine import around

from workbench.doctor import EXIT_WARNINGS, HELP, command
from workbench.doctor.command import CHECKS, Check, exit_code, lines, run_checks
from workbench.doctor.findings import Context, Finding, failure, ok, warning
from workbench.errors import (
    EXIT_CONFIGURATION,
    EXIT_DIVERGED,
    EXIT_DOES_NOT_FIT,
    EXIT_DONE,
    EXIT_ERROR,
    EXIT_INTERRUPTED,
    EXIT_TERMINATED,
)

OK = ok("python", "3.11")
WARNING = warning("threads", "idle", "`export OMP_NUM_THREADS=4`")
FAILURE = failure("torch", "missing", "`pip install torch`")


@pytest.mark.parametrize(
    ("findings", "code"),
    [
        ([], EXIT_DONE),
        ([OK, OK], EXIT_DONE),
        ([OK, WARNING], EXIT_WARNINGS),
        ([FAILURE, WARNING, OK], EXIT_ERROR),
        ([OK, FAILURE], EXIT_ERROR),
    ],
)
def test_the_exit_code_says_the_worst(findings: list[Finding], code: int) -> None:
    assert exit_code(findings) == code


def test_the_code_of_warnings_is_its_own_and_in_the_help() -> None:
    taken = {EXIT_DONE, EXIT_ERROR, EXIT_CONFIGURATION, EXIT_DOES_NOT_FIT, EXIT_DIVERGED}
    assert EXIT_WARNINGS not in taken | {EXIT_INTERRUPTED, EXIT_TERMINATED}
    assert str(EXIT_WARNINGS) in HELP


def test_the_table_has_a_line_a_finding_and_its_remedy_below() -> None:
    assert list(lines([OK, WARNING, FAILURE], colour=False)) == [
        "ok       python   3.11",
        "warning  threads  idle",
        "                  -> `export OMP_NUM_THREADS=4`",
        "failure  torch    missing",
        "                  -> `pip install torch`",
        "",
        "1 ok, 1 warning, 1 failure",
    ]


def test_colour_only_paints_the_status() -> None:
    painted = next(lines([WARNING], colour=True))
    assert painted.startswith("\x1b[33mwarning\x1b[0m") and painted.count("\x1b") == 2


def test_a_check_that_raises_becomes_a_warning_and_the_others_go_on(tmp_path: Path) -> None:
    def broken(_: Context) -> Iterator[Finding]:
        yield OK
        raise ZeroDivisionError("by\nnothing")

    found = run_checks([Check("broken", broken), Check("python", lambda _: [OK])], around(tmp_path))
    assert [(each.check, each.status) for each in found] == [("broken", "warning"), ("python", "ok")]
    assert found[0].finding == "the check failed: ZeroDivisionError: by nothing" and found[0].remedy


def test_a_check_that_misses_a_package_says_to_install_it(tmp_path: Path) -> None:
    def without(_: Context) -> list[Finding]:
        raise ModuleNotFoundError("No module named 'psutil'")

    (found,) = run_checks([Check("memory", without)], around(tmp_path))
    assert found.status == "warning" and "'psutil'" in found.finding and "pip install" in found.remedy


def test_a_check_that_hangs_becomes_a_warning(tmp_path: Path) -> None:
    let_go = threading.Event()

    def hanging(_: Context) -> list[Finding]:
        let_go.wait(60)
        return [OK]

    try:
        found = run_checks(
            [Check("hanging", hanging, limit_s=0.05), Check("python", lambda _: [OK])], around(tmp_path)
        )
    finally:
        let_go.set()
    assert [each.status for each in found] == ["warning", "ok"]
    assert "no answer within" in found[0].finding


def test_checks_are_made_where_no_thread_can_be_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    assert run_checks([Check("python", lambda _: [OK])], around(tmp_path)) == [OK]


def test_a_home_that_is_not_there_is_no_failure_of_doctor_itself() -> None:
    path = Path("~nobody-of-this-name/x")
    assert command._expanded(path) == path
    assert command._expanded(Path("~/x")) == Path.home() / "x"


def test_a_good_machine_with_a_gpu_has_no_warning_but_of_what_is_really_here(tmp_path: Path) -> None:
    forged = [
        check for check in CHECKS if check.name not in ("packages", "threads", "memory", "limits", "runs")
    ]
    found = run_checks(forged, around(tmp_path))
    assert {each.status for each in found} == {"ok"}
    assert {"python", "torch", "driver", "gpu", "cuda", "pinned memory", "extension", "instructions"} <= {
        each.check for each in found
    }


def test_the_verb_prints_every_line_and_returns_the_code(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[Path | None, Path | None]] = []

    def check_machine(disk: Path | None, runs: Path | None) -> list[Finding]:
        asked.append((disk, runs))
        return [OK, WARNING]

    monkeypatch.setattr(command, "check_machine", check_machine)
    assert command.doctor(disk_path=Path("d"), runs=Path("r"), as_json=False) == EXIT_WARNINGS
    out = capsys.readouterr().out
    assert "-> `export OMP_NUM_THREADS=4`" in out and "\x1b" not in out
    assert command.doctor(disk_path=None, runs=None, as_json=True) == EXIT_WARNINGS
    assert json.loads(capsys.readouterr().out) == [
        {"check": "python", "status": "ok", "finding": "3.11", "remedy": ""},
        {"check": "threads", "status": "warning", "finding": "idle", "remedy": "`export OMP_NUM_THREADS=4`"},
    ]
    assert asked == [(Path("d"), Path("r")), (None, None)]


def test_this_machine_is_looked_at_without_torch_in_the_process_that_looks(tmp_path: Path) -> None:
    program = (
        "import sys\n"
        "from pathlib import Path\n"
        "from workbench.doctor.command import doctor\n"
        "assert 'pydantic' not in sys.modules\n"
        "code = doctor(disk_path=Path(sys.argv[1]), runs=Path(sys.argv[1]) / 'runs', as_json=True)\n"
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
    worst = {row["status"] for row in rows}
    assert done.returncode == (1 if "failure" in worst else EXIT_WARNINGS if "warning" in worst else 0), (
        done.stderr
    )
    seen = {row["check"] for row in rows}
    assert {check.name for check in CHECKS} - {"cuda", "pinned memory"} <= seen | {"gpu"}
    assert not [row for row in rows if "the check failed" in row["finding"]], rows
    assert list(tmp_path.iterdir()) == []
