"""How long the pieces of a model took on one machine: what a planner prefers to arithmetic over matrix speeds.

Beside them stands the machine's matrix speed of that moment, which tells whether it was held up. It is no factor to
scale by: one product's speed swings more than a whole block's.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

TIMES_VERSION = 2
"""Counts up with every change of what is timed."""
Seconds = Annotated[float, Field(ge=0)]
Whole = Annotated[int, Field(ge=1)]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class KindTimes(_Part):
    """Seconds of one block of a kind: a forward without a graph, one with a graph, and the backward of that.

    `mask_forward_s`, `mask_backward_s`: by how much its attention is slower where a mask keeps documents apart.
    """

    forward_s: Seconds
    graph_s: Seconds
    backward_s: Seconds
    mask_forward_s: Seconds = 0.0
    mask_backward_s: Seconds = 0.0


class ModelTimes(_Part):
    """Seconds of a micro-batch of `sequences` x `tokens` computed in `dtype`, piece by piece.

    `kinds`: by the model profile's number of the kind. `outer_forward_s` and `outer_backward_s`: embedding,
    last norm, head
    and loss. `matrix_flops_per_s`: of a large product in `dtype`, measured between the pieces. `fingerprint`: the
    machine's. `busy`: how busy others kept it meanwhile, a clause; empty where they did not matter.
    """

    fingerprint: str
    sequences: Whole
    tokens: Whole
    dtype: str
    kinds: tuple[KindTimes, ...]
    outer_forward_s: Seconds
    outer_backward_s: Seconds
    matrix_flops_per_s: Annotated[float, Field(gt=0)]
    busy: str = ""
