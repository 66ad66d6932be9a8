"""Dropout as an accelerator has it, on a CPU: one operation that keeps a byte an element, within attention too.

A CPU takes dropout apart, keeps its mask in the dtype of the values, and falls back to attention without fusion.

Invariant: only what is kept changes; without dropout this mode changes nothing and says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode

DROPOUTS = (functional.dropout, torch.dropout)


class FusedDropout(TorchFunctionMode):
    """`met`: whether there was any dropout while this was on."""

    def __init__(self) -> None:
        super().__init__()
        self.met = False

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        if func in DROPOUTS:
            values, share, training = _arguments(*args, **kwargs)
            if training and 0 < share < 1:
                self.met = True
                return torch.native_dropout(values, share, True)[0]
        elif func is functional.scaled_dot_product_attention:
            share = kwargs.get("dropout_p", args[4] if len(args) > 4 else 0.0)
            if share:
                # Fused with dropout it keeps what it keeps without, and two numbers.
                self.met = True
                args = (*args[:4], 0.0, *args[5:]) if len(args) > 4 else args
                kwargs = {k: v for k, v in kwargs.items() if k != "dropout_p"}
        return func(*args, **kwargs)


def _arguments(
    input: torch.Tensor, p: float = 0.5, training: bool = True, inplace: bool = False, **rest: Any
) -> tuple[torch.Tensor, float, bool]:
    return input, p, bool(rest.get("train", training))
