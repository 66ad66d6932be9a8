"""The memory that contenders of one size share: each tensor once, made when the first contender asks for it.

All hold the same numbers: normal gradients around 1e-3, normal weights around 0.02, moments after a few steps. A
denormal costs a hundred times what a number costs, and zeros would hide the division, so a benchmark on either would
lie. Sharing keeps 100 million parameters below 5 GB; what a contender leaves behind is as good to the next.
"""

from __future__ import annotations

from functools import cached_property

import torch
from torch import Tensor

from workbench.engine.devices.buffers import zeros
from workbench.layout import MOMENTS, StateFormat, record_bytes
from workbench.optimizer import AdamW
from workbench.optimizer.host import HostOptimizer, Piece, PieceTable

SEED = 1234
DRAWN = 1 << 20
SETTINGS = AdamW(lr=1e-4, weight_decay=0.01)
WARM_UP_SCALES = (1.0, -0.5, 0.8)
"""What the gradients are multiplied with in the steps that warm the moments up, so that these are not alike."""


class Buffers:
    """The tensors for one number of parameters. All are one-dimensional."""

    def __init__(self, parameters: int) -> None:
        self.parameters = parameters
        self._moments: dict[StateFormat, dict[str, Tensor]] = {}

    @cached_property
    def gradient_bf16(self) -> Tensor:
        return self._normal(1e-3, stream=0).bfloat16()

    @cached_property
    def gradient_fp32(self) -> Tensor:
        return self.gradient_bf16.float()

    @cached_property
    def master(self) -> Tensor:
        """Float32 weights."""
        return self._normal(0.02, stream=1)

    @cached_property
    def weights_bf16(self) -> Tensor:
        return self.master.bfloat16()

    @cached_property
    def split_master(self) -> tuple[Tensor, Tensor]:
        """`high` and `low`, which together are the float32 weights."""
        high = torch.empty(self.parameters, dtype=torch.bfloat16)
        low = torch.empty(self.parameters, dtype=torch.int16)
        with HostOptimizer() as host:
            host.split(self.master, high, low)
        return high, low

    def split_piece(self, state_format: StateFormat) -> Piece:
        """Split master and moments in a format."""
        high, low = self.split_master
        return Piece(high=high, low=low, state_format=state_format, **self.moments(state_format))

    def records(self, state_format: StateFormat) -> Tensor:
        """Those of one piece, in pages of their own."""
        return zeros(record_bytes(state_format, self.parameters), torch.uint8)

    def moments(self, state_format: StateFormat) -> dict[str, Tensor]:
        """The tensors of a `Piece` that hold its moments, by name."""
        if state_format not in self._moments:
            self._moments[state_format] = self._warm_moments(state_format)
        return self._moments[state_format]

    def _warm_moments(self, state_format: StateFormat) -> dict[str, Tensor]:
        high, low = self.split_master
        moments = {
            tensor.kind: torch.zeros(tensor.count(self.parameters), dtype=getattr(torch, tensor.dtype))
            for tensor in MOMENTS[state_format]
        }
        table = PieceTable([Piece(high=high, low=low, state_format=state_format, **moments)])
        table.set_gradient(0, self.gradient_bf16)
        with HostOptimizer() as host:
            for step, scale in enumerate(WARM_UP_SCALES, start=1):
                table.set_step(0, step)
                host.update(table, SETTINGS, scale)
        return moments

    def _normal(self, deviation: float, stream: int) -> Tensor:
        """Normal numbers that repeat after a million: drawing 100 million would take longer than measuring them."""
        generator = torch.Generator().manual_seed(SEED + stream)
        drawn = torch.randn(min(self.parameters, DRAWN), generator=generator).mul_(deviation)
        values = torch.empty(self.parameters)
        for first in range(0, self.parameters, DRAWN):
            part = values[first : first + DRAWN]
            part.copy_(drawn[: len(part)])
        return values
