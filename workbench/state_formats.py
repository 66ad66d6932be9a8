"""The tensors of the optimizer state: those of weights and moments in each format, and their bytes. No torch.

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

ITEM_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "int16": 2, "int8": 1, "uint8": 1}


class StateTensor(NamedTuple):
    """One tensor of the state: an element of `dtype` for each `elements` of the parameter."""

    kind: str
    dtype: str
    elements: int

    def count(self, parameters: int) -> int:
        """Return its elements for so many parameters; a block that is not full counts as one."""
        return -(-parameters // self.elements)

    def bytes(self, parameters: int) -> int:
        """Return its bytes for so many parameters."""
        return self.count(parameters) * ITEM_BYTES[self.dtype]


WEIGHT_TENSORS: dict[str, tuple[StateTensor, ...]] = {
    "float32": (StateTensor("master", "float32", 1),),
    "bfloat16": (StateTensor("high", "bfloat16", 1), StateTensor("low", "int16", 1)),
    "float16": (StateTensor("master", "float32", 1), StateTensor("working", "float16", 1)),
}
"""The tensors in which the state keeps the weights, by the dtype that the forward's are stored in: bf16 ones in two
lossless halves."""

MOMENTS: dict[StateFormat, tuple[StateTensor, ...]] = {
    "exact": (StateTensor("exp_avg", "float32", 1), StateTensor("exp_avg_sq", "float32", 1)),
    "half": (StateTensor("exp_avg", "bfloat16", 1), StateTensor("exp_avg_sq", "bfloat16", 1)),
    "compact": (
        StateTensor("exp_avg", "int8", 1),
        StateTensor("exp_avg_sq", "uint8", 1),
        StateTensor("exp_avg_scale", "float32", BLOCK),
        StateTensor("exp_avg_sq_scale", "float32", BLOCK),
    ),
}


def moment_bytes(state_format: StateFormat, parameters: int) -> int:
    """Return the bytes of both moments of so many parameters, scales included."""
    return sum(tensor.bytes(parameters) for tensor in MOMENTS[state_format])
