"""How the moments of AdamW are kept: which tensors a format has, and how many bytes they take. No torch.

| format | exp_avg | exp_avg_sq | bytes a parameter |
|---|---|---|---|
| `exact` | fp32 | fp32 | 8 |
| `half` | bf16, rounded stochastically | the same | 4 |
| `compact` | int8, a signed square root | uint8, a square root | 2 + 8/256 |

In `compact`, exp_avg is code * |code| * scale and exp_avg_sq is code^2 * scale, with a scale for every 256 elements.
The master weights are the same in every format.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

StateFormat = Literal["exact", "half", "compact"]

BLOCK = 256
"""Elements that share a scale in `compact`."""

ITEM_BYTES = {"float32": 4, "bfloat16": 2, "int8": 1, "uint8": 1}


class MomentTensor(NamedTuple):
    """One tensor of a format's moments: an element of `dtype` for each `elements` of the parameter."""

    kind: str
    dtype: str
    elements: int

    def count(self, parameters: int) -> int:
        """Its elements for so many parameters; a block that is not full counts as one."""
        return -(-parameters // self.elements)


MOMENTS: dict[StateFormat, tuple[MomentTensor, ...]] = {
    "exact": (MomentTensor("exp_avg", "float32", 1), MomentTensor("exp_avg_sq", "float32", 1)),
    "half": (MomentTensor("exp_avg", "bfloat16", 1), MomentTensor("exp_avg_sq", "bfloat16", 1)),
    "compact": (
        MomentTensor("exp_avg", "int8", 1),
        MomentTensor("exp_avg_sq", "uint8", 1),
        MomentTensor("exp_avg_scale", "float32", BLOCK),
        MomentTensor("exp_avg_sq_scale", "float32", BLOCK),
    ),
}


def moment_bytes(state_format: StateFormat, parameters: int) -> int:
    """Bytes of both moments of so many parameters, scales included."""
    return sum(t.count(parameters) * ITEM_BYTES[t.dtype] for t in MOMENTS[state_format])
