"""What is looked at on a GPU before anything is timed: the machine, and the engine's own tests there."""

from __future__ import annotations

import subprocess
import sys
import time
from dataclasses import dataclass
from typing import Any

from benchmarks.engine.processes import ROOT
from workbench.errors import EXIT_WARNINGS

TESTS = ("-m", "pytest", "-q", "-m", "gpu", "-p", "no:cacheprovider")


@dataclass(frozen=True)
class Check:
    """A command of Python's with its limit. It is well if it exits with 0, or with a warning."""

    name: str
    words: tuple[str, ...]
    limit_s: int


CHECKS = (
    Check("check/doctor", ("-m", "workbench", "doctor"), 60),
    Check("check/probe", ("-m", "workbench", "probe", "--quick"), 90),
    Check("check/memory", (*TESTS, "tests/engine/test_cuda_memory.py"), 120),
    Check("check/training bf16", (*TESTS, "tests/engine/test_cuda.py", "-k", "bf16"), 270),
    Check("check/training fp32", (*TESTS, "tests/engine/test_cuda.py", "-k", "fp32 and not bf16"), 270),
    Check("check/training rest", (*TESTS, "tests/engine/test_cuda.py", "-k", "not fp32 and not bf16"), 270),
)


def run_check(check: Check) -> dict[str, Any]:
    """Run it, its output on stderr; return its status and the last line of its output."""
    begin = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, *check.words], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        printed, _ = process.communicate(timeout=check.limit_s)
    except subprocess.TimeoutExpired:
        process.kill()
        printed, _ = process.communicate()
        return {"status": "failed", "reason": f"not done after {check.limit_s} s", "output": printed}
    seconds = time.perf_counter() - begin
    print(printed, file=sys.stderr, flush=True)
    last = (printed.strip().splitlines() or [""])[-1]
    if process.returncode not in (0, EXIT_WARNINGS):
        reason = f"exit code {process.returncode}: {last}"
        return {"status": "failed", "reason": reason, "output": printed}
    return {"status": "done", "reason": f"{last} ({seconds:.0f} s)"}
