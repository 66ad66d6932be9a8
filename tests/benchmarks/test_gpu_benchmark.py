"""`python -m benchmarks.gpu`: its plumbing on a CPU, its cases, estimates, goals and tables. No figure is tested."""

from __future__ import annotations

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
from benchmarks.gpu.cases import FORMATS, OVERLAPS, REAL_MODELS, Case, all_cases
from benchmarks.gpu.goals import goals_of
from benchmarks.gpu.needs import reason_to_skip
from benchmarks.gpu.report import goals_met, tables
from benchmarks.gpu.results import Results, ResultsFileError

ROOT = Path(__file__).parents[2]
CLIPPED = Case("gpt2-10b", "engine", state_format="compact", clipping=True)
UNCLIPPED = replace(CLIPPED, clipping=False)


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
    strip = r"`.*`"
    assert re.sub(strip, "", again.stdout) == re.sub(strip, "", first.stdout)


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
    # What the goals are about comes first: a run that is cut short has shown it.
    assert cases[0] == CLIPPED and cases[1] == UNCLIPPED


def test_what_fits_on_32_gib_is_told_from_what_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    host = 120 * GIB
    cap = 32 * GIB
    assert reason_to_skip(CLIPPED, 10, 1024, cap, host) is None
    assert reason_to_skip(replace(CLIPPED, weights="host"), 10, 1024, cap, host) is None
    reason = reason_to_skip(Case("gpt2-10b", "torch"), 10, 1024, cap, host)
    assert reason is not None and "on the device, which has 32.0" in reason
    reason = reason_to_skip(CLIPPED, 10, 1024, cap, 40 * GIB)
    assert reason is not None and "on the host, which has 40.0 free" in reason
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert reason_to_skip(Case("gpt2-1.5b", "deepspeed"), 1, 64, cap, host) == "deepspeed is not installed"


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
