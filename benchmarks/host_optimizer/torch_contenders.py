"""torch's own optimizers and checks, as a user would call them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from benchmarks.host_optimizer.buffers import SETTINGS, WARM_UP_SCALES, Buffers
from benchmarks.host_optimizer.contender import Run, repeat

SWITCHES: dict[str, dict[str, bool]] = {
    "torch_naive": {"foreach": False, "fused": False},
    "torch_foreach": {"foreach": True, "fused": False},
    "torch_fused": {"foreach": False, "fused": True},
}


def make(name: str, buffers: Buffers) -> Run:
    """The contender of this name."""
    if name == "torch_norm":
        return repeat(lambda: float(torch.linalg.vector_norm(buffers.gradient_bf16, dtype=torch.float32)))
    if name == "torch_norm_bf16":
        return repeat(lambda: float(torch.linalg.vector_norm(buffers.gradient_bf16)))
    if name == "torch_isfinite":
        return repeat(lambda: bool(torch.isfinite(buffers.gradient_bf16).all()))
    moments = buffers.moments("exact")
    step = adamw(
        SWITCHES[name.removesuffix("_casts")],
        [buffers.master],
        [buffers.gradient_fp32],
        [moments["exp_avg"]],
        [moments["exp_avg_sq"]],
    )
    return repeat(with_casts(step, buffers) if name.endswith("_casts") else step)


def adamw(
    switches: dict[str, bool],
    weights: Sequence[Tensor],
    gradients: Sequence[Tensor],
    exp_avg: Sequence[Tensor],
    exp_avg_sq: Sequence[Tensor],
) -> Callable[[], object]:
    """`torch.optim.AdamW.step` on these very tensors, after the steps that warmed the moments up."""
    parameters = with_gradients(weights, gradients)
    optimizer = torch.optim.AdamW(
        parameters,
        lr=SETTINGS.lr,
        betas=SETTINGS.betas,
        eps=SETTINGS.eps,
        weight_decay=SETTINGS.weight_decay,
        **switches,
    )
    for parameter, first, second in zip(parameters, exp_avg, exp_avg_sq, strict=True):
        step = torch.tensor(float(len(WARM_UP_SCALES)))
        optimizer.state[parameter] = {"step": step, "exp_avg": first, "exp_avg_sq": second}
    return optimizer.step


def with_gradients(weights: Sequence[Tensor], gradients: Sequence[Tensor]) -> list[torch.nn.Parameter]:
    """Parameters that share the memory of the weights, each with its gradient."""
    parameters = [torch.nn.Parameter(weight) for weight in weights]
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.grad = gradient
    return parameters


def with_casts(step: Callable[[], object], buffers: Buffers) -> Callable[[], None]:
    """A float32 step between the two casts that offloading needs."""
    wide, narrow = buffers.gradient_fp32, buffers.gradient_bf16
    master, weights = buffers.master, buffers.weights_bf16

    def cast_and_step() -> None:
        wide.copy_(narrow)
        step()
        weights.copy_(master)

    return cast_and_step
