"""The host optimizer's update against its truth: torch's own AdamW, and the same in float64."""

from __future__ import annotations

import torch

from workbench.optimizer.host import AdamWSettings, HostOptimizer, Piece, PieceTable


def test_moments_have_the_bits_of_torch_single_tensor_adamw() -> None:
    generator = torch.Generator().manual_seed(1)
    parameter = torch.randn(1025, generator=generator)
    theirs = parameter.clone().requires_grad_()
    reference = torch.optim.AdamW([theirs], lr=1e-3, weight_decay=0.1, foreach=False)
    piece = Piece(torch.zeros(1025), torch.zeros(1025), master=parameter)
    table = PieceTable([piece])
    with HostOptimizer(threads=2) as optimizer:
        for step in range(1, 6):
            theirs.grad = torch.randn(1025, generator=generator)
            reference.step()
            table.set_gradient(0, theirs.grad)
            table.set_step(0, step)
            optimizer.update(table, AdamWSettings(learning_rate=1e-3, weight_decay=0.1))
            assert torch.equal(piece.exp_avg, reference.state[theirs]["exp_avg"])
            assert torch.equal(piece.exp_avg_sq, reference.state[theirs]["exp_avg_sq"])
