"""Output head and cross entropy in one, a chunk of tokens at a time: the logits never exist as a whole.

The gradients are made in the forward, while a chunk's logits are there, and only scaled in the backward: the head is
not multiplied a second time, and its weight gets one gradient a call. In the forward they are those of the *sum* over
tokens, so that a 16-bit format holds them well; the backward brings in the mean and the loss scale before it narrows.

torch's own `linear_cross_entropy` (from 2.13 on) allows no function between head and loss, such as the scaling and the
capping of many models, and earlier torch has none: this one serves them all.

Invariant: gradients are sums over counted tokens times `_Gradients.scale`; nothing but `backward` takes that away.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

from workbench.sizes import logits_chunk_bytes

STRIP_BYTES = 64 << 20
FP16_SCALE = 256.0
"""A power of two: probabilities down to 2e-10 count in fp16, and sums stay far below its largest number."""

Pointwise = Callable[[Tensor], Tensor]


def default_chunk_tokens(vocabulary: int, width: int, device: torch.device) -> int:
    """Return the number of tokens of a chunk, by `logits_chunk_bytes`."""
    return max(1, logits_chunk_bytes(vocabulary, width, on_host=device.type == "cpu") // (4 * vocabulary))


@dataclass(frozen=True)
class _Settings:
    chunk_tokens: int
    pointwise: tuple[Pointwise, ...]
    ignore_index: int
    reduction: Literal["mean", "sum"]
    label_smoothing: float


@dataclass
class _Gradients:
    """Gradients that the forward has made for the backward, each None where nobody wants it.

    `hidden` is [tokens, width] in the dtype of the hidden states; `weight` [vocabulary, width] and `bias`
    [vocabulary] are fp32. All are `scale` times the gradient of the sum of the losses.
    """

    hidden: Tensor | None
    weight: Tensor | None
    bias: Tensor | None
    scale: float


def chunked_cross_entropy(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    *,
    chunk_tokens: int,
    pointwise: Sequence[Pointwise] = (),
    ignore_index: int = -100,
    reduction: Literal["mean", "sum"] = "mean",
    label_smoothing: float = 0.0,
) -> Tensor:
    """Return `cross_entropy(pointwise(linear(hidden, weight, bias)), targets)`, an fp32 scalar, `chunk_tokens` at a
    time.

    `hidden` [tokens, width] and `weight` [vocabulary, width] (`bias` [vocabulary]) share a floating dtype; `targets`
    int64 [tokens]. `pointwise` are functions of a chunk's logits that treat each token alone; what they capture gets
    no gradient. The mean is over targets other than `ignore_index`, NaN where there are none. Backward runs once, and
    makes no graph of its own.
    """
    settings = _Settings(chunk_tokens, tuple(pointwise), ignore_index, reduction, label_smoothing)
    if not torch.is_grad_enabled():
        return _run(hidden, weight, bias, targets, settings, (False, False, False))[0]
    loss: Tensor = _ChunkedCrossEntropy.apply(hidden, weight, bias, targets, settings)  # type: ignore[no-untyped-call]
    return loss


class _ChunkedCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, settings: _Settings
    ) -> Tensor:
        loss, counted, gradients = _run(
            hidden, weight, bias, targets, settings, tuple(ctx.needs_input_grad[:3])
        )
        ctx.gradients = gradients
        ctx.counted = counted
        ctx.weight_dtype = weight.dtype
        return loss

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_loss: Tensor) -> tuple[Tensor | None, ...]:
        gradients: _Gradients | None = ctx.gradients
        if gradients is None:
            raise RuntimeError("the chunked loss can be backpropagated once only")
        ctx.gradients = None
        factor = grad_loss.float() / (ctx.counted * gradients.scale)
        hidden, weight, bias = gradients.hidden, gradients.weight, gradients.bias
        if hidden is not None:
            # In fp32, whatever the dtype: a factor that is rounded to 16 bits would bend the gradient's length.
            hidden = hidden.float().mul_(factor).to(hidden.dtype)
        if weight is not None:
            weight = weight.mul_(factor).to(ctx.weight_dtype)
        if bias is not None:
            bias = bias.mul_(factor).to(ctx.weight_dtype)
        return hidden, weight, bias, None, None


@torch.no_grad()
def _run(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    settings: _Settings,
    wanted: tuple[bool, ...],
) -> tuple[Tensor, Tensor, _Gradients]:
    """Return the loss, the divisor of its sum, and the gradients that are `wanted` of hidden, weight and bias."""
    tokens = hidden.shape[0]
    is_counted = targets != settings.ignore_index
    classes = torch.where(is_counted, targets, 0).unsqueeze(1)
    losses = torch.empty(tokens, dtype=torch.float32, device=hidden.device)
    gradients = _Gradients(
        torch.empty_like(hidden, memory_format=torch.contiguous_format) if wanted[0] else None,
        torch.zeros(weight.shape, dtype=torch.float32, device=weight.device) if wanted[1] else None,
        torch.zeros(weight.shape[0], dtype=torch.float32, device=weight.device) if wanted[2] else None,
        FP16_SCALE if hidden.dtype == torch.float16 else 1.0,
    )
    chunks = max(1, -(-tokens // settings.chunk_tokens))
    size = max(1, -(-tokens // chunks))
    for start in range(0, tokens, size):
        part = slice(start, start + size)
        logits, final = _logits(hidden[part], weight, bias, settings.pointwise, graph=any(wanted))
        log_probabilities = torch.log_softmax(final.detach(), 1, dtype=torch.float32)
        of_targets = log_probabilities.gather(1, classes[part])
        losses[part] = of_targets.squeeze(1).neg()
        smoothing = settings.label_smoothing
        if smoothing:  # a share of the target's probability goes to all classes alike
            losses[part] = torch.lerp(losses[part], log_probabilities.mean(1).neg(), smoothing)
        if any(wanted):
            change = log_probabilities.exp_().scatter_(1, classes[part], of_targets.expm1() + smoothing)
            if smoothing:
                change.sub_(smoothing / change.shape[1])
            del log_probabilities
            if gradients.scale != 1.0:
                change.mul_(gradients.scale)
            if final is not logits:
                (change,) = torch.autograd.grad(final, logits, change.to(final.dtype))
            del logits, final
            _add(
                gradients, part, hidden[part], weight, change.to(hidden.dtype), is_counted[part].unsqueeze(1)
            )
            # Or it would still be there beside the next chunk's logits.
            del change
    losses.masked_fill_(~is_counted, 0.0)
    counted = is_counted.sum() if settings.reduction == "mean" else torch.ones_like(losses[:1]).squeeze()
    return losses.sum() / counted, counted, gradients


def _logits(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, pointwise: tuple[Pointwise, ...], *, graph: bool
) -> tuple[Tensor, Tensor]:
    """Return a chunk's logits before and after `pointwise`, the second a function of the first for autograd if
    `graph`."""
    logits = functional.linear(hidden, weight, bias)
    if not pointwise:
        return logits, logits
    with torch.set_grad_enabled(graph):
        logits = final = logits.requires_grad_(graph)
        for function in pointwise:
            final = function(final)
    return logits, final


def _add(
    gradients: _Gradients, part: slice, hidden: Tensor, weight: Tensor, change: Tensor, is_counted: Tensor
) -> None:
    """Add the gradients of a chunk, from the gradient `change` of its logits [n, vocabulary]; `is_counted` [n, 1]."""
    if gradients.hidden is not None:
        torch.mm(change, weight, out=gradients.hidden[part])
        gradients.hidden[part].masked_fill_(~is_counted, 0.0)
    if gradients.weight is not None:
        hidden = hidden.masked_fill(~is_counted, 0.0)
        if hidden.dtype == torch.float32:
            gradients.weight.addmm_(change.t(), hidden)
        else:
            # The product comes in 16 bits: a strip of the vocabulary at a time, so that it is never there as a whole.
            strip = max(1, STRIP_BYTES // (4 * hidden.shape[1]))
            for start in range(0, weight.shape[0], strip):
                rows = slice(start, start + strip)
                gradients.weight[rows].add_(torch.mm(change[:, rows].t(), hidden))
    if gradients.bias is not None:
        gradients.bias.add_(torch.mv(change.t(), is_counted.squeeze(1).to(change.dtype)))
