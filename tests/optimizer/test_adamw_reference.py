"""The torch reference itself: it is torch's AdamW, in float32 and in float64."""

from __future__ import annotations

import pytest
import torch

from workbench.optimizer import AdamW
from workbench.optimizer.reference import ReferenceParameter


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("decay", [True, False])
def test_the_reference_has_torchs_bits_also_where_gradients_are_missing(
    dtype: torch.dtype, decay: bool
) -> None:
    generator = torch.Generator().manual_seed(1)
    start = torch.randn(10, 7, generator=generator, dtype=dtype)
    theirs = start.clone().requires_grad_()
    settings = AdamW(lr=1e-2, betas=(0.8, 0.99), eps=1e-6, weight_decay=0.1)
    optimizer = torch.optim.AdamW(
        [theirs],
        lr=1e-2,
        betas=(0.8, 0.99),
        eps=1e-6,
        weight_decay=0.1 if decay else 0.0,
        foreach=False,
    )
    ours = ReferenceParameter.fresh(start, decay=decay)
    for step in range(10):
        gradient = None if step % 3 == 1 else torch.randn(10, 7, generator=generator, dtype=dtype)
        theirs.grad = gradient
        optimizer.step()
        ours.update(gradient, settings)
    assert ours.step == 7
    assert torch.equal(ours.parameter, theirs.detach())
    assert torch.equal(ours.exp_avg, optimizer.state[theirs]["exp_avg"])
    assert torch.equal(ours.exp_avg_sq, optimizer.state[theirs]["exp_avg_sq"])
