"""Whether a case is worth starting, before it is: the engine's own plan says so, a rough sum for the alternatives.

So one that cannot fit is skipped with a reason, and what was measured stands beside what was planned.
"""

from __future__ import annotations

import functools
import importlib.util
from dataclasses import dataclass
from typing import Any

from benchmarks.engine.machine import GIB
from benchmarks.engine.processes import tell
from benchmarks.gpu.cases import Case
from workbench.config import RunConfig
from workbench.errors import WorkbenchError
from workbench.plan.machine import Machine
from workbench.plan.planner import Planner
from workbench.profiles.model_profile import ModelProfile, model_table
from workbench.profiles.obtain import obtain_model_profile

SLACK_BYTES = GIB // 2
"""What the caching allocator holds beside what is asked of it."""
HOST_BASE_BYTES = 5 * GIB
"""Python, torch and its CUDA libraries, and one unit in fp32 while the model is built."""
BLOCK_ACTIVATIONS = 34
"""Bytes for each token and unit of width that a block keeps in 16 bits (Korthikanti et al., 2022, §4.1)."""


@dataclass(frozen=True)
class Forecast:
    """`reason`: why the case is not worth starting, None where it is. `step_s`: planned, None where it is not known.

    `all_gradients_wait`: the plan finds room for the gradients of all units on the host, `speculation`: for records of
    such a share of them; which the engine is told.
    """

    reason: str | None = None
    step_s: float | None = None
    all_gradients_wait: bool = False
    speculation: float = 0.0


def forecast(case: Case, micro_batch: int, sequence: int, machine: Machine) -> Forecast:
    """Return what is known of `case` on `machine` beforehand."""
    for contender, module in (("torchao", "torchao"), ("deepspeed", "deepspeed")):
        if case.contender == contender and importlib.util.find_spec(module) is None:
            return Forecast(f"{module} is not installed")
    if case.contender in ("torchao", "deepspeed") and machine.free.device is None:
        return Forecast(f"{case.contender} needs a CUDA device")
    if case.contender != "engine":
        return Forecast(_too_large(case, micro_batch, sequence, machine))
    config = case_config(case, micro_batch, sequence)
    try:
        planner = Planner(_model_profile(case.model), machine)
        planner.check(config)
        plan = planner.plan_fixed(config)
    except WorkbenchError as error:
        return Forecast(" ".join(str(error).split()))
    if not plan.fits:
        return Forecast(f"lacks {plan.memory.lacking}, by the plan")
    step_s = None if plan.time is None else plan.time.step_s
    return Forecast(None, step_s, plan.all_gradients_wait, plan.speculation)


def case_config(case: Case, micro_batch: int, sequence: int) -> RunConfig:
    """Return the engine's case as a run's configuration."""
    values: dict[str, Any] = {
        "model": {"architecture": "gpt2", "config": case.shape.settings()},
        "data": {"sequence_length": sequence},
        "train": {
            "micro_batch_size": micro_batch,
            "gradient_clipping": 1.0 if case.clipping else 0.0,
            "activation_checkpointing": True,
        },
        "offload": {
            "weights": case.weights,
            "state": case.state,
            "state_format": case.state_format,
            "overlap": case.overlap,
            "activations": case.activations,
        },
    }
    return RunConfig.model_validate(values)


@functools.cache
def _model_profile(model: str) -> ModelProfile:
    profile = obtain_model_profile(model_table(case_config(Case(model, "engine"), 1, 64)), tell)
    assert profile is not None, "it is made if there is none"
    return profile


def _too_large(case: Case, micro_batch: int, sequence: int, machine: Machine) -> str | None:
    """Return why an alternative does not fit; rough on purpose."""
    shape, tokens = case.shape, micro_batch * sequence
    count = shape.parameters
    activations = (
        2 * shape.n_layer * tokens * shape.n_embd  # each block's input
        + BLOCK_ACTIVATIONS * tokens * shape.n_embd
        + 4 * shape.block_parameters  # one block's gradients, and those on their way
        + tokens * shape.vocab_size * (2 + 4 + 4)
    )
    device = {"torch": 8 * count, "torchao": 4 * count, "deepspeed": 4 * count}[case.contender]
    host = {"torch": 0, "torchao": 8 * count, "deepspeed": 18 * count}[case.contender] + HOST_BASE_BYTES
    device += activations + SLACK_BYTES
    free = machine.free
    if free.device is not None and device > free.device:
        return f"needs about {device / GIB:.1f} GiB on the device, which has {free.device / GIB:.1f}"
    if host > free.host:
        return f"needs about {host / GIB:.1f} GiB on the host, which has {free.host / GIB:.1f} free"
    return None
