"""`python -m benchmarks.gpu`: its plumbing on a CPU, its cases, estimates, goals and tables. No figure is tested."""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.engine.machine import GIB
from benchmarks.engine.processes import Outcome, run_case
from benchmarks.gpu import command, needs
from benchmarks.gpu.cases import FORMATS, OVERLAPS, REAL_MODELS, Case, all_cases
from benchmarks.gpu.checks import CHECKS, Check, run_check
from benchmarks.gpu.goals import goals_of
from benchmarks.gpu.needs import forecast
from benchmarks.gpu.report import goals_met, line_of, tables
from benchmarks.gpu.results import Results, ResultsFileError
from benchmarks.gpu.trainers import Engine, make_trained
from benchmarks.gpu.watch import idle_share_of
from workbench.config import load_config
from workbench.plan.machine import Free, Machine, planned_machine
from workbench.presets import find_preset
from workbench.profiles.model_profile import model_table
from workbench.profiles.named_machines import load_profile
from workbench.profiles.obtain import read_shipped
from workbench.virtual_cuda import VirtualCuda

ROOT = Path(__file__).parents[2]
CLIPPED = Case("gpt2-10b", "engine", state_format="compact", clipping=True)
UNCLIPPED = replace(CLIPPED, clipping=False)
TICK_S = 200e-6
"""As in tests/engine/test_virtual_time.py."""


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "benchmarks.gpu", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)


def entry(case: Case, **changed: Any) -> dict[str, Any]:
    """A case as the results keep it."""
    result = {
        "parameters": case.shape.parameters,
        "median_step_s": 10.0,
        "forward_s": 3.0,
        "backward_s": 6.0,
        "waited_s": 0.5,
        "tokens_per_s": 1024.0,
        "tflops": 60.0,
        "lane_seconds": {"compute": 9.0, "update": 3.6, "read": 0.0},
        "lane_hidden_seconds": {"compute": 9.0, "update": 2.6, "read": 0.0},
        "lane_exposed_seconds": {"compute": 0.0, "update": 1.0, "read": 0.0},
        "device_reserved_bytes": 30 * GIB,
        "device_allocated_bytes": 28 * GIB,
        "host_peak_bytes": 64 * GIB,
        "host_taken_bytes": 60 * GIB,
    }
    return {
        "name": f"{case.name}@10x1024,32GiB",
        "status": "done",
        "case": case.fields(),
        "micro_batch": 10,
        "sequence": 1024,
        "device_label": "32GiB",
        "result": {**result, **changed},
    }


@pytest.mark.slow
def test_a_case_is_measured_kept_and_not_measured_again(tmp_path: Path) -> None:
    output = tmp_path / "results.json"
    arguments = (
        "--device",
        "cpu",
        "--output",
        str(output),
        "--cases",
        "tiny/torch,device-host/compact/delayed/clip",
    )
    first = run(*arguments)
    assert first.returncode == 0, first.stderr
    cases = json.loads(output.read_text())["cases"]
    engine = cases["tiny/engine/device-host/compact/delayed/clip@2x32,cpu"]["result"]
    plain = cases["tiny/torch@2x32,cpu"]["result"]
    for result in (engine, plain):
        assert len(result["step_s"]) == 2
        assert result["tokens_per_s"] == pytest.approx(64 / result["median_step_s"])
    # The same model on the same tokens: they train the same, though in two state formats, until updates are delayed.
    assert engine["losses"][:3] == pytest.approx(plain["losses"][:3], rel=1e-3)
    assert engine["lane_seconds"]["update"] > 0
    assert not list(tmp_path.glob(".*"))
    row = next(line for line in first.stdout.splitlines() if line.startswith("torch "))
    assert f"{plain['median_step_s']:.3f}" in row
    again = run(*arguments)
    assert again.stderr.count("measured already") == 2
    assert "built in" not in again.stderr
    tables_of = [re.sub(r"`.*`", "", done.stdout[done.stdout.index("- CPU") :]) for done in (first, again)]
    assert tables_of[0] == tables_of[1]


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so_and_still_lists_its_cases() -> None:
    done = run()
    assert done.returncode == 2
    assert done.stdout == ""
    assert "torch sees no CUDA device; --device cpu" in done.stderr.splitlines()[-1]
    listed = run("--list", "--models", "gpt2-10b", "--cases", "gpt2-10b/torch")
    assert listed.returncode == 0
    assert listed.stdout.startswith("gpt2-10b/torch ")
    assert "GiB on the device, which has 32.0" in listed.stdout


def test_cases_cover_every_overlap_format_and_placement_with_and_without_clipping() -> None:
    cases = all_cases()
    assert len({case.name for case in cases}) == len(cases)
    for model in REAL_MODELS:
        engine = {c for c in cases if c.model == model and c.contender == "engine"}
        assert engine >= {
            Case(model, "engine", weights, "host", state_format, overlap, clipping)
            for weights in ("device", "host")
            for state_format in FORMATS
            for overlap in OVERLAPS
            for clipping in (True, False)
        }
        assert {c.contender for c in cases if c.model == model} == {"engine", "torch", "torchao", "deepspeed"}
    # What says most comes first: a session that is cut short has shown it.
    assert {case.model for case in cases[:8]} == {"gpt2-1.5b", "gpt2-124m"}
    assert {case.state for case in cases[:8]} == {"device", "host"}
    assert cases[8:10] == [CLIPPED, UNCLIPPED]


def test_what_fits_on_32_gib_is_told_from_what_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    profile = read_shipped(model_table(load_config(find_preset("gpt2-10b"))))
    monkeypatch.setattr(needs, "_model_profile", lambda model: profile)
    machine = Machine("a GPU", Free(host=120 * GIB, device=32 * GIB, disk=None), True, None)

    def reason(case: Case, on: Machine = machine) -> str:
        return forecast(case, 10, 1024, on).reason or ""

    assert reason(CLIPPED) == reason(replace(CLIPPED, weights="host")) == ""
    assert "GiB on the device, which has 32.0" in reason(Case("gpt2-10b", "torch"))
    small = replace(machine, free=Free(host=40 * GIB, device=32 * GIB, disk=None))
    assert re.match(r"lacks [\d.]+ GiB of host, by the plan", reason(CLIPPED, small))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert reason(Case("gpt2-1.5b", "deepspeed")) == "deepspeed is not installed"


def test_a_command_ends_within_ten_minutes_and_the_next_one_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """By a forged clock on which each case takes its whole limit."""
    now = [0.0]
    run: list[float] = []

    def case(package: str, given: dict[str, Any], limit_s: float = 0.0) -> Any:
        now[0] += limit_s
        if "probe" in given:
            return command.Outcome({"machine": "forged", "device_free_bytes": 80 * GIB})
        run.append(now[0])
        return command.Outcome(None, "it broke")

    monkeypatch.setattr(command, "run_case", case)
    monkeypatch.setattr(command, "run_check", lambda check: {"status": "done", "reason": "passed"})
    monkeypatch.setattr(command, "forecast", lambda *given: needs.Forecast())
    monkeypatch.setattr(command.time, "monotonic", lambda: now[0])
    arguments = ["--output", str(tmp_path / "results.json"), "--models", "gpt2-10b"]
    for _ in range(3):
        begin, before = now[0], len(run)
        assert command.main(arguments) == 0, "that a case failed is a result"
        assert run[before:] and run[-1] - begin <= 600
        lines = capsys.readouterr().out.splitlines()
        assert sum(": failed, it broke" in line for line in lines) == len(run) - before
        assert len(json.loads((tmp_path / "results.json").read_text())["cases"]) == len(CHECKS) + len(run)


def test_a_check_that_fails_or_takes_too_long_says_so() -> None:
    assert run_check(Check("well", ("-c", "print('3 passed')"), 60))["reason"].startswith("3 passed (")
    broken = run_check(Check("broken", ("-c", "print('1 failed'); raise SystemExit(1)"), 60))
    assert (broken["status"], broken["reason"]) == ("failed", "exit code 1: 1 failed")
    slow = run_check(Check("slow", ("-c", "import time; time.sleep(60)"), 1))
    assert (slow["status"], slow["reason"]) == ("failed", "not done after 1 s")


def test_the_device_is_idle_where_no_kernel_covers_the_time() -> None:
    assert idle_share_of([(0, 4), (1, 2), (3, 5), (9, 10)]) == pytest.approx(0.4)
    assert idle_share_of([]) is None


@pytest.mark.parametrize(
    ("case", "changed", "missed"),
    [
        # A step of 10 s with 3.6 s of updates: forward and backward alone take what is given, the rest is exposed.
        (CLIPPED, {"forward_s": 3.0, "backward_s": 6.2}, []),  # 0.8 s, allowed 0.6 + 0.3
        (CLIPPED, {"forward_s": 3.0, "backward_s": 6.0}, ["exposed <= max(0, update - forward) + 3 %"]),
        (CLIPPED, {"forward_s": 4.0, "backward_s": 5.5}, ["exposed <= max(0, update - forward) + 3 %"]),
        (UNCLIPPED, {"forward_s": 3.0, "backward_s": 6.8, "waited_s": 0.2}, []),
        (UNCLIPPED, {"forward_s": 3.0, "backward_s": 6.6, "waited_s": 0.2}, ["exposed < 3 % of the step"]),
        (UNCLIPPED, {"forward_s": 3.0, "backward_s": 7.0}, ["exposed < 3 % of the step"]),  # it waited 0.5 s
        (UNCLIPPED, {"backward_s": 7.0, "waited_s": 0, "host_peak_bytes": 66 * GIB}, ["host peak < 65 GiB"]),
        (
            UNCLIPPED,
            {"backward_s": 7.0, "waited_s": 0, "device_reserved_bytes": 33 * GIB},
            ["device peak < 32 GiB"],
        ),
    ],
)
def test_goals_are_met_or_missed_by_their_figures(
    case: Case, changed: dict[str, float], missed: list[str]
) -> None:
    held = entry(case, **changed)
    goals = goals_of(case, held["result"], 10)
    assert len(goals) == 3
    assert [g.words for g in goals if not g.met] == missed
    assert goals_met([held]) == (not missed)


def test_tables_show_figures_lanes_goals_and_what_was_left_out() -> None:
    skipped = {**entry(Case("gpt2-10b", "torch")), "status": "skipped", "reason": "too large"}
    figures, lanes, goals, rest = tables([entry(UNCLIPPED), skipped])
    assert figures.title.startswith("gpt2-10b, 10,279,") and "micro-batch 10 of 1024" in figures.title
    assert figures.rows[0][:2] == ("engine/device-host/compact/exact/noclip", "10.000")
    assert "1.000 (10.0%)" in figures.rows[0]
    assert lanes.rows == (("engine/device-host/compact/exact/noclip", "update", "3.600", "2.600", "1.000"),)
    assert [row[-1] for row in goals.rows] == ["no", "yes", "yes"]
    assert rest.rows == (("gpt2-10b/torch@10x1024,32GiB", "skipped", "too large"),)


def test_a_line_says_what_a_case_came_to() -> None:
    line = line_of(entry(UNCLIPPED, planned_step_s=9.5, idle_share=0.02))
    assert line == (
        "gpt2-10b/engine/device-host/compact/exact/noclip@10x1024,32GiB: done, 10.000 s a step, planned 9.500, "
        "1,024 tokens/s, exposed 10.0%, idle 2.0%, device 30.00 GiB, host 64.00 GiB"
    )


class Shown(io.StringIO):
    """A standard output of which only what was flushed is seen."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = ""

    def flush(self) -> None:
        self.seen = self.getvalue()


@pytest.mark.slow
def test_it_is_rehearsed_on_a_virtual_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each case says at once what it came to, one without time is reported and the next goes on, then come tables."""
    output, shown = tmp_path / "results.json", Shown()
    without_time = "gpt2-124m/engine/device-host/half/exact/clip"
    started: list[str] = []

    def run_watched(package: str, given: dict[str, Any], limit_s: float | None = None) -> Outcome:
        if "case" in given:
            kept = json.loads(output.read_text())["cases"] if output.exists() else {}
            assert list(kept) == [line.split(": ")[0] for line in shown.seen.splitlines()]
            assert len([c for c in kept.values() if c["status"] != "skipped"]) == len(started)
            started.append(Case(**given["case"]).name)
        return run_case(package, given, limit_s=limit_s)

    monkeypatch.setattr(command, "run_case", run_watched)
    monkeypatch.setattr(
        command, "case_limit_s", lambda case, virtual: 1 if case.name == without_time else 600
    )
    monkeypatch.setattr(sys, "stdout", shown)
    patterns = (
        "*/torch,*/deepspeed,*-device/exact/exact/clip,*-host/half/exact/clip,*/device-host/exact/*/noclip"
    )
    arguments = [
        "--virtual",
        "desktop-24gb",
        "--models",
        "gpt2-124m",
        "--micro-batch",
        "2",
        "--sequence",
        "256",
    ]
    assert command.main([*arguments, "--output", str(output), "--cases", patterns]) == 0
    cases = json.loads(output.read_text())["cases"]
    entries = {name.split("@")[0]: entry for name, entry in cases.items()}
    assert started == [name for name, entry in entries.items() if entry["status"] != "skipped"]
    assert entries[without_time]["reason"] == "not done after 1 s"
    assert started.index(without_time) < len(started) - 1
    done = {name: entry["result"] for name, entry in entries.items() if entry["status"] == "done"}
    assert set(done) | {without_time} == set(started)
    assert {entry["status"] for name, entry in entries.items() if "deepspeed" in name} == {"skipped"}
    assert all(entry["machine"].startswith("VIRTUAL, no figure is of a GPU") for entry in entries.values())
    for name, result in done.items():
        assert 0 <= result["idle_share"] < 1 and result["host_peak_bytes"] is None
        if "/exact/noclip" in name:
            # What the engine says it waited for is the time in which the device had nothing to do.
            idle_s = result["idle_share"] * result["median_step_s"]
            assert result["waited_s"] == pytest.approx(idle_s, abs=TICK_S)
    printed = shown.getvalue()[len(shown.seen) :]
    for title in ("gpt2-124m, 124,", "Lanes of a step", "Goals", "Not measured"):
        assert title in printed
    for name, entry in entries.items():
        assert (name.split("/", 1)[1] if entry["status"] == "done" else entry["reason"]) in printed


@pytest.mark.parametrize("check", [c for c in CHECKS if "pytest" in c.words], ids=lambda check: check.name)
def test_a_check_on_a_gpu_names_tests_that_there_are(check: Check) -> None:
    named = subprocess.run(
        [sys.executable, *check.words, "--collect-only"], cwd=ROOT, capture_output=True, text=True
    )
    assert named.returncode == 0, named.stdout


def test_the_engine_lets_all_gradients_wait_where_the_plan_has_room_for_them() -> None:
    server = planned_machine(load_profile(Path("server-80gb")))
    assert forecast(UNCLIPPED, 10, 1024, server).all_gradients_wait
    assert not forecast(CLIPPED, 10, 1024, server).all_gradients_wait
    exact = replace(CLIPPED, state_format="exact")
    assert (
        forecast(exact, 10, 1024, server).speculation,
        forecast(UNCLIPPED, 10, 1024, server).speculation,
    ) == (1.0, 0.0)
    for wait in (False, True):
        with VirtualCuda(values=False):
            case = Case("tiny", "engine", state_format="compact")
            trained = make_trained(case, torch.device("cuda"), all_gradients_wait=wait)
            assert isinstance(trained, Engine)
            waiting = trained.engine.memory()["host"].get("gradients", 0)
            trained.close()
        assert (waiting >= 2 * case.shape.parameters) == wait


def test_results_survive_a_broken_write_and_refuse_a_file_of_something_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "results.json"
    results = Results(path)
    results.put("a", {"status": "done"})
    results.put("b", {"status": "skipped"})
    before = path.read_bytes()

    def full(descriptor: int) -> None:
        raise OSError("no space left")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="no space left"):
        results.put("c", {"status": "done"})
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["results.json"]
    read = Results(path)
    assert (read.has("a"), read.has("b"), read.has("c")) == (True, False, False)
    path.write_text("{}")
    with pytest.raises(ResultsFileError, match="holds no results of this benchmark"):
        Results(path)
