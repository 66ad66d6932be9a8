"""The host optimizer's benchmark runs and prints what it promises. What the numbers are is not tested."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.host_optimizer.contender import UnavailableError
from benchmarks.host_optimizer.limits import library

ROOT = Path(__file__).parents[2]
PROMISED = {
    *("torch_naive", "torch_foreach", "torch_fused"),
    *("torch_naive_casts", "torch_foreach_casts", "torch_fused_casts"),
    *("exact", "half", "compact", "fp32"),
    *("sum_of_squares", "torch_norm"),
}
LIMITS = {"limit_exact", "limit_half", "limit_compact", "limit_fp32"}


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "benchmarks.host_optimizer", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)


def limits_compile() -> bool:
    try:
        library()
    except UnavailableError:
        return False
    return True


def test_json_is_all_of_stdout_and_has_a_row_for_each_variant_and_number_of_threads() -> None:
    done = run("--sizes", "20000", "--threads", "1,2", "--repetitions", "1", "--json")
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)
    for row in rows:
        assert list(row) == ["variant", "parameters", "threads", "ns_per_parameter"]
        assert row["parameters"] == 20000
        assert isinstance(row["ns_per_parameter"], float) and row["ns_per_parameter"] > 0
    measured = [(row["variant"], row["threads"]) for row in rows]
    assert len(set(measured)) == len(measured)
    promised = PROMISED | LIMITS if limits_compile() else PROMISED
    assert {(variant, threads) for variant in promised for threads in (1, 2)} <= set(measured)


def test_markdown_names_machine_and_command_and_compares_with_the_limit() -> None:
    if not limits_compile():
        pytest.skip("no C compiler for the limit")
    arguments = (
        "--sizes",
        "2K",
        "--threads",
        "1",
        "--repetitions",
        "1",
        "--variants",
        "half,limit_half",
        "--markdown",
    )
    done = run(*arguments)
    assert done.returncode == 0, done.stderr
    assert "Machine: " in done.stdout
    assert f"`python -m benchmarks.host_optimizer {' '.join(arguments)}`" in done.stdout
    head = next(line for line in done.stdout.splitlines() if line.startswith("| variant"))
    assert head.rstrip("| ").endswith("of the limit")
    half = next(line for line in done.stdout.splitlines() if line.startswith("| half"))
    assert half.rstrip("| ").endswith("%")
