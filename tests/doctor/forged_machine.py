"""Context in which all is well, with files of their own, to be spoilt one thing at a time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from workbench.doctor.findings import Context, Finding, Interpreter, Outcome, Terminal
from workbench.doctor.nvidia import NvidiaCard, NvidiaSample

GIB = 1 << 30
CARD = NvidiaCard("NVIDIA Forged 24", 24 * GIB, 23 * GIB + GIB // 2, 0)
ONE_GPU = NvidiaSample(cards=(CARD,), driver="580.10", cuda="13.0", on_bus=1)
NO_GPU = NvidiaSample(problem="NVML Shared Library Not Found")
GOOD: dict[str, dict[str, Any]] = {
    "extension": {"missing": None},
    "torch": {"version": "2.13.0+cu130", "cuda": "13.0", "hip": None, "threads": 1},
    "update": {"instruction_set": "avx2", "best": "avx2", "error": 1e-7},
    "cuda": {"reason": None, "devices": [{"name": "NVIDIA Forged 24", "bf16": True, "problem": None}]},
    "pinned memory": {"asked": 64 << 20, "registered": 64 << 20},
}


class ForgedTrial:
    """Outcomes that were written down: of a machine with a GPU where all is well, but for `changes`."""

    def __init__(self, changes: Mapping[str, Outcome | dict[str, Any]]) -> None:
        self._outcomes = {stage: Outcome(values) for stage, values in GOOD.items()}
        for stage, change in changes.items():
            is_outcome = isinstance(change, Outcome)
            self._outcomes[stage] = change if is_outcome else Outcome({**GOOD[stage], **change})

    def outcome(self, stage: str) -> Outcome:
        return self._outcomes[stage]


def around(
    folder: Path,
    *,
    trial: Mapping[str, Outcome | dict[str, Any]] | None = None,
    nvidia: NvidiaSample = ONE_GPU,
    files: Mapping[str, str] | None = None,
    **changes: Any,
) -> Context:
    """A machine whose `proc` and `sys` hold `files`, below `folder`."""
    for name, text in (files or {}).items():
        path = folder / "root" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    made = Context(
        environ={"TERM": "xterm-256color"},
        python=Interpreter((3, 11, 7), "CPython", 64, "/home/one/.venv", "/usr"),
        runs=folder / "runs",
        cache=folder / "cache",
        disk=None,
        terminal=Terminal((120, 40), "utf-8"),
        trial=ForgedTrial(trial or {}).outcome,
        nvidia=lambda: nvidia,
        root=folder / "root",
    )
    return replace(made, **changes)


def only(findings: Iterable[Finding]) -> Finding:
    """The one finding that there is."""
    found = list(findings)
    assert len(found) == 1, found
    return found[0]
