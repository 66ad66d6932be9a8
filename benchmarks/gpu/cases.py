"""What is measured: models, contenders, and every combination of the engine's placements, formats and overlaps.

A case's name is its identity in the results. Cases come in the order in which they say most: the goals' own first.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks.engine.shapes import Shape, shape_of
from workbench.layout import StateFormat

MODELS = {
    "tiny": shape_of(300_000, layers=3),
    "gpt2-1.5b": Shape("gpt2-1.5b", 48, 1600, 25),
    "gpt2-4b": Shape("gpt2-4b", 34, 3072, 24),
    "gpt2-10b": Shape("gpt2-10b", 50, 4096, 32),
}
REAL_MODELS = ("gpt2-10b", "gpt2-4b", "gpt2-1.5b")
FORMATS: tuple[StateFormat, ...] = ("compact", "half", "exact")
OVERLAPS = ("exact", "serial", "delayed")
ALTERNATIVES = {
    "torch": "torch.optim.AdamW(fused=True), all on the device, bf16 without a master copy",
    "torchao": "CPUOffloadOptimizer over the same AdamW, gradients offloaded, bf16 without a master copy",
    "deepspeed": "ZeRO-2 with offload_optimizer, bf16 with an fp32 master",
}
"""Without clipping, each as its documentation has it."""


@dataclass(frozen=True)
class Case:
    """One measurement. Fields after `contender` are the engine's; the alternatives leave them as they are."""

    model: str
    contender: str
    weights: str = "device"
    state: str = "host"
    state_format: StateFormat = "exact"
    overlap: str = "exact"
    clipping: bool = False

    @property
    def name(self) -> str:
        if self.contender != "engine":
            return f"{self.model}/{self.contender}"
        clip = "clip" if self.clipping else "noclip"
        return f"{self.model}/engine/{self.weights}-{self.state}/{self.state_format}/{self.overlap}/{clip}"

    @property
    def shape(self) -> Shape:
        return MODELS[self.model]

    def fields(self) -> dict[str, Any]:
        return asdict(self)


def all_cases(models: Sequence[str] = REAL_MODELS) -> list[Case]:
    """Every case of `models`, those that the goals are about first, each once."""
    cases = []
    for model in models:
        for clipping in (True, False):
            cases.append(Case(model, "engine", state_format="compact", clipping=clipping))
    for model in models:
        cases += [Case(model, contender) for contender in ALTERNATIVES]
        cases += [Case(model, "engine", state="device", clipping=clipping) for clipping in (False, True)]
    for overlap in OVERLAPS:
        for weights in ("device", "host"):
            for state_format in FORMATS:
                for model in models:
                    for clipping in (True, False):
                        cases.append(Case(model, "engine", weights, "host", state_format, overlap, clipping))
    return list(dict.fromkeys(cases))


def chosen(cases: Sequence[Case], patterns: Sequence[str]) -> list[Case]:
    """The cases whose names match one of `patterns` (`*` and `?`), or contain it; all where there are none."""
    if not patterns:
        return list(cases)
    return [c for c in cases if any(fnmatch.fnmatch(c.name, p) or p in c.name for p in patterns)]
