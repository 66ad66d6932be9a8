"""`memory`: the peak resident size of two training steps beside plain torch's, each case a process of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.engine.processes import Outcome, run_case, tell
from benchmarks.engine.shapes import shape_of
from benchmarks.host_optimizer.report import NOTHING, Table

PARAMETERS = 1_000_000_000
TOKENS = 128
PLAIN = "plain torch"
FLAT = 1.05


@dataclass(frozen=True)
class MemoryCase:
    """How the engine trains. `depth` multiplies the blocks; `goal` is the largest share of plain torch's peak."""

    state_format: str
    tier: str = "host"
    gradient_clipping: float = 0.0
    depth: int = 1
    goal: float | None = None


CASES: dict[str, MemoryCase] = {
    "exact": MemoryCase("exact", goal=0.9),
    "exact-clip": MemoryCase("exact", gradient_clipping=1.0, goal=0.9),
    "half": MemoryCase("half"),
    "half-clip": MemoryCase("half", gradient_clipping=1.0),
    "compact": MemoryCase("compact", goal=0.6),
    "compact-clip": MemoryCase("compact", gradient_clipping=1.0, goal=0.6),
    "disk-exact": MemoryCase("exact", "disk"),
    "disk-exact-2x": MemoryCase("exact", "disk", depth=2),
    "disk-compact": MemoryCase("compact", "disk"),
    "disk-compact-2x": MemoryCase("compact", "disk", depth=2),
}


@dataclass(frozen=True)
class Memory:
    """All that was measured. `good`: nothing failed and every goal is met."""

    table: Table
    notes: tuple[str, ...]
    rows: tuple[dict[str, Any], ...]
    good: bool


def measure_memory(parameters: int, tokens: int, cases: Sequence[str], disk: Path, limit_s: float) -> Memory:
    """Measure plain torch and `cases` one after the other."""
    shape = shape_of(parameters)
    notes = (
        f"GPT-2 with {shape.n_layer} blocks of width {shape.n_embd} and {shape.vocab_size:,} tokens, "
        f"{shape.parameters:,} parameters; micro-batch 1, {tokens} tokens, 2 steps",
        "plain torch: fp32, torch.optim.AdamW(fused=True); the engine: bf16 storage, state on the host unless its row "
        "says disk (then weights and state are)",
    )
    outcomes: dict[str, Outcome] = {}
    for name in (PLAIN, *cases):
        case = None if name == PLAIN else CASES[name]
        layers = shape.n_layer * (1 if case is None else case.depth)
        tell(f"{name}: {layers} blocks")
        outcomes[name] = run_case(
            "benchmarks.engine",
            {
                "verb": "memory",
                "contender": name,
                "parameters": parameters,
                "layers": layers,
                "width": shape.n_embd,
                "tokens": tokens,
                **({} if case is None else _settings(case)),
            },
            limit_s=limit_s,
            folder_in=disk if case is not None and case.tier == "disk" else None,
        )
    return _report(outcomes, notes)


def _settings(case: MemoryCase) -> dict[str, Any]:
    return {
        "state_format": case.state_format,
        "tier": case.tier,
        "gradient_clipping": case.gradient_clipping,
    }


def _report(outcomes: Mapping[str, Outcome], notes: tuple[str, ...]) -> Memory:
    columns = ("case", "parameters", "peak GiB", "B a parameter", f"x {PLAIN}", "goal", "met", "s a step")
    plain = outcomes[PLAIN].result
    rows: list[tuple[str, ...]] = []
    failures, good = [], True
    for name, outcome in outcomes.items():
        result = outcome.result
        if result is None:
            failures.append(f"{name} failed: {outcome.failure}")
            rows.append((name, *[NOTHING] * (len(columns) - 1)))
            good = False
            continue
        ratio = None if plain is None else result["peak_bytes"] / plain["peak_bytes"]
        goal, met = _goal(name, outcomes)
        good &= met is not False
        rows.append(
            (
                name,
                f"{result['parameters']:,}",
                f"{result['peak_bytes'] / 2**30:.2f}",
                f"{result['peak_bytes'] / result['parameters']:.2f}",
                # Another depth is another model: its peak has no share in plain torch's.
                NOTHING if ratio is None or name.endswith("-2x") else f"{ratio:.3f}",
                goal,
                NOTHING if met is None else "yes" if met else "no",
                f"{result['step_s'][-1]:.2f}",
            )
        )
    measured = tuple({"case": n, **(o.result or {"failure": o.failure})} for n, o in outcomes.items())
    table = Table("Peak resident size", columns, tuple(rows))
    return Memory(table, (*notes, *failures), measured, good)


def _goal(name: str, outcomes: Mapping[str, Outcome]) -> tuple[str, bool | None]:
    """A case's goal in words, and whether it is met; None where there is nothing to compare with."""
    mine = outcomes[name].result
    assert mine is not None
    if name.endswith("-2x"):
        single = outcomes.get(name.removesuffix("-2x"), Outcome(None)).result
        ratio = mine["peak_bytes"] / single["peak_bytes"] if single else None
        text = f"{FLAT:.2f} of half the depth" + (f" (is {ratio:.3f})" if ratio else "")
        return text, None if ratio is None else ratio <= FLAT
    plain = outcomes[PLAIN].result
    goal = CASES[name].goal if name in CASES else None
    if goal is None:
        return NOTHING, None
    return f"{goal:.2f}", None if plain is None else mine["peak_bytes"] <= goal * plain["peak_bytes"]
