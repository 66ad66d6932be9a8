"""What is measured: models, contenders, and every combination of the engine's placements, formats and overlaps.

A case's name is its identity in the results.
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
    "gpt2-124m": Shape("gpt2-124m", 12, 768, 12),
    "gpt2-1.5b": Shape("gpt2-1.5b", 48, 1600, 25),
    "gpt2-4b": Shape("gpt2-4b", 34, 3072, 24),
    "gpt2-10b": Shape("gpt2-10b", 50, 4096, 32),
}
REAL_MODELS = ("gpt2-10b", "gpt2-4b", "gpt2-1.5b", "gpt2-124m")
SMALL_BELOW = 3_000_000_000
"""Parameters of a model whose state may well lie on the device."""
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
    activations: str = "device"

    @property
    def name(self) -> str:
        if self.contender != "engine":
            return f"{self.model}/{self.contender}"
        clip = "clip" if self.clipping else "noclip"
        waiting = "" if self.activations == "device" else "/activations-host"
        return f"{self.model}/engine/{self.weights}-{self.state}/{self.state_format}/{self.overlap}/{clip}{waiting}"

    @property
    def shape(self) -> Shape:
        return MODELS[self.model]

    def fields(self) -> dict[str, Any]:
        return asdict(self)


def all_cases(models: Sequence[str] = REAL_MODELS) -> list[Case]:
    """Every case of `models`, each once, in the order in which they say most, for a GPU is lent for minutes.

    Small models with their state on the device and on the host; the large ones in `compact` and `exact`, which the
    goals are about; what else there is; weights, then activations on the host; then every combination.
    """
    small = [model for model in models if MODELS[model].parameters < SMALL_BELOW]
    large = [model for model in models if model not in small]
    clips = (True, False)
    cases = [Case(m, "engine", state=s, clipping=c) for m in small for s in ("device", "host") for c in clips]
    formats: tuple[StateFormat, ...] = ("compact", "exact")
    cases += [Case(m, "engine", state_format=f, clipping=c) for m in large for f in formats for c in clips]
    cases += [Case(m, contender) for m in (*small, *large) for contender in ALTERNATIVES]
    for model in (*large, *small):
        cases += [Case(model, "engine", weights="host", state_format=f, clipping=True) for f in formats]
        cases.append(Case(model, "engine", state_format="compact", clipping=True, activations="host"))
    for overlap in OVERLAPS:
        for weights in ("device", "host"):
            for state_format in FORMATS:
                for model in models:
                    for clipping in clips:
                        cases.append(Case(model, "engine", weights, "host", state_format, overlap, clipping))
    return list(dict.fromkeys(cases))


def chosen(cases: Sequence[Case], patterns: Sequence[str]) -> list[Case]:
    """The cases whose names match one of `patterns` (`*` and `?`), or contain it; all where there are none."""
    if not patterns:
        return list(cases)
    return [c for c in cases if any(fnmatch.fnmatch(c.name, p) or p in c.name for p in patterns)]
