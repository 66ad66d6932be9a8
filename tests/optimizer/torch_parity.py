"""Runs the host optimizer beside torch.optim.AdamW(foreach=False) and reports how far apart they are.

A script as well as a module, because torch chooses its kernels once a process, by ATEN_CPU_CAPABILITY.
"""

from __future__ import annotations

import json

import torch
from torch import Tensor

from workbench.optimizer.host import AdamW, HostOptimizer, Piece, PieceTable

LENGTHS = (*range(1, 34), 63, 64, 65, 127, 257, 1023, 1025, 65_539)


def gradients(length: int, generator: torch.Generator) -> Tensor:
    """Normal values over twenty orders of magnitude, zeros, denormals and huge ones."""
    exponents = torch.randint(-12, 8, (length,), generator=generator)
    values = torch.randn(length, generator=generator) * 10.0**exponents
    special = torch.tensor([0.0, -0.0, 1e-45, -3e-39, 1.2e-38, 1e15, -1e17])
    places = torch.randint(0, length, (min(length, 7),), generator=generator)
    values[places] = special[: len(places)]
    return values


def excess_over_truth(ours: Tensor, theirs: Tensor, before: Tensor) -> float:
    """|ours - theirs| over what design §5 allows: 1 ulp + 4 * 2^-24 * |change|. At most 1 is within it."""
    ulp = torch.nextafter(theirs.abs(), torch.tensor(torch.inf)) - theirs.abs()
    change = (theirs.double() - before.double()).abs()
    allowed = ulp.double() + 4 * 2.0**-24 * change
    return float(((ours.double() - theirs.double()).abs() / allowed).max())


def different(ours: Tensor, theirs: Tensor) -> int:
    """How many elements differ in any bit."""
    return int((ours.view(torch.int32) != theirs.view(torch.int32)).sum())


def unfused_excess(ours: Tensor, theirs: Tensor, product: Tensor) -> float:
    """|ours - theirs| over 1 ulp and the one rounding of a product that fma leaves out: at most 1."""
    ulp = torch.nextafter(theirs.abs(), torch.tensor(torch.inf)) - theirs.abs()
    allowed = ulp.double() + 2.0**-24 * product.abs().double() + 2.0**-149
    return float(((ours.double() - theirs.double()).abs() / allowed).max())


def compare(settings: AdamW, steps: int = 3, seed: int = 0) -> dict[str, float]:
    """All lengths as pieces of one table, some at odd offsets; each step starts from torch's state."""
    generator = torch.Generator().manual_seed(seed)
    storage = [torch.zeros(sum(LENGTHS) + 3 * len(LENGTHS)) for _ in range(3)]
    worst = {"exp_avg_bits": 0.0, "exp_avg_sq_bits": 0.0, "parameter": 0.0, "exp_avg": 0.0, "exp_avg_sq": 0.0}
    theirs, pieces, offset = [], [], 0
    for number, length in enumerate(LENGTHS):
        offset += number % 4
        exp_avg, exp_avg_sq, master = (block[offset : offset + length] for block in storage)
        offset += length
        master.copy_(torch.randn(length, generator=generator))
        theirs.append(master.clone().requires_grad_())
        pieces.append(Piece(exp_avg, exp_avg_sq, master=master))
    table = PieceTable(pieces)
    reference = (torch.optim.Adam if settings.coupled_decay else torch.optim.AdamW)(
        theirs,
        lr=settings.lr,
        betas=settings.betas,
        eps=settings.eps,
        weight_decay=settings.weight_decay,
        foreach=False,
    )
    with HostOptimizer(threads=2) as optimizer:
        for step in range(1, steps + 1):
            before = [parameter.detach().clone() for parameter in theirs]
            old = [(piece.exp_avg.clone(), piece.exp_avg_sq.clone()) for piece in pieces]
            for index, parameter in enumerate(theirs):
                parameter.grad = gradients(parameter.numel(), generator)
                table.set_gradient(index, parameter.grad)
                table.set_step(index, step)
            reference.step()
            optimizer.update(table, settings)
            for piece, parameter, was, (old_avg, old_sq) in zip(pieces, theirs, before, old, strict=True):
                state, gradient = reference.state[parameter], parameter.grad
                assert piece.master is not None and gradient is not None
                new = {
                    "exp_avg_bits": float(different(piece.exp_avg, state["exp_avg"])),
                    "exp_avg_sq_bits": float(different(piece.exp_avg_sq, state["exp_avg_sq"])),
                    "parameter": excess_over_truth(piece.master, parameter.detach(), was),
                    "exp_avg": unfused_excess(piece.exp_avg, state["exp_avg"], gradient - old_avg),
                    "exp_avg_sq": unfused_excess(piece.exp_avg_sq, state["exp_avg_sq"], old_sq),
                }
                worst = {name: max(worst[name], value) for name, value in new.items()}
                piece.exp_avg.copy_(state["exp_avg"])
                piece.exp_avg_sq.copy_(state["exp_avg_sq"])
                piece.master.copy_(parameter.detach())
    return worst


SETTINGS = {
    "plain": AdamW(),
    "decay": AdamW(lr=3e-2, betas=(0.9, 0.95), weight_decay=0.1),
    "small betas": AdamW(lr=1e-3, betas=(0.3, 0.5), eps=1e-6, weight_decay=0.01),
    "zero betas": AdamW(lr=1e-3, betas=(0.0, 0.0), weight_decay=0.01),
}
COUPLED = {"coupled": AdamW(lr=1e-2, betas=(0.9, 0.99), weight_decay=0.1, coupled_decay=True)}

if __name__ == "__main__":
    report = {name: compare(settings) for name, settings in {**SETTINGS, **COUPLED}.items()}
    print(json.dumps({"capability": torch.backends.cpu.get_cpu_capability(), "worst": report}))
