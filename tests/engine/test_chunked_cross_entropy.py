"""Head and cross entropy in chunks: the numbers, beside the same in float64."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from workbench.engine.loss.chunked_cross_entropy import chunked_cross_entropy, default_chunk_tokens

TOKENS, WIDTH, VOCABULARY = 61, 24, 301


def make(dtype: torch.dtype, sharpness: float = 1.0) -> list[Tensor]:
    """Hidden states, weight, bias and targets, a quarter of these masked."""
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(TOKENS, WIDTH, generator=generator) * sharpness
    weight = torch.randn(VOCABULARY, WIDTH, generator=generator) * 0.3
    bias = torch.randn(VOCABULARY, generator=generator)
    targets = torch.randint(VOCABULARY, (TOKENS,), generator=generator)
    targets[torch.rand(TOKENS, generator=generator) < 0.25] = -100
    return [*(t.to(dtype).requires_grad_() for t in (hidden, weight, bias)), targets]


def whole(
    leaves: Sequence[Tensor], pointwise: Sequence[Callable[[Tensor], Tensor]] = (), **options: Any
) -> tuple[Tensor, list[Tensor]]:
    """The loss and the three gradients in float64, by torch's own functions."""
    hidden, weight, bias = (t.detach().double().requires_grad_() for t in leaves[:3])
    logits = functional.linear(hidden, weight, bias)
    for function in pointwise:
        logits = function(logits)
    loss = functional.cross_entropy(logits, leaves[3], **options)
    return loss.detach(), list(torch.autograd.grad(loss, (hidden, weight, bias)))


def error(found: Tensor, expected: Tensor) -> float:
    return float((found.double() - expected).norm() / expected.norm())


POINTWISE = (lambda z: z[..., :290], lambda z: z / 2.0, torch.tanh, lambda z: z * 2.0)


@pytest.mark.parametrize("pointwise", [(), POINTWISE], ids=["logits", "functions of each token"])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("chunk_tokens", [1, 7, 60, 61, 1000])
@pytest.mark.parametrize("label_smoothing", [0.0, 0.1, 0.9])
def test_loss_and_gradients_are_those_of_the_whole_logits(
    label_smoothing: float, chunk_tokens: int, reduction: Any, pointwise: Any
) -> None:
    leaves = make(torch.float32)
    leaves[3].clamp_(max=289)
    options: dict[str, Any] = {
        "reduction": reduction,
        "pointwise": pointwise,
        "label_smoothing": label_smoothing,
    }
    loss = chunked_cross_entropy(*leaves, chunk_tokens=chunk_tokens, **options)
    gradients = torch.autograd.grad(loss, leaves[:3])
    expected, expected_gradients = whole(leaves, **options)
    assert loss.dtype == torch.float32 and loss.shape == ()
    assert error(loss.detach(), expected) < 1e-6
    assert max(error(a, b) for a, b in zip(gradients, expected_gradients, strict=True)) < 1e-6


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("loss_scale", [1.0, 65536.0])
def test_sixteen_bits_lose_no_more_than_their_own_precision(dtype: torch.dtype, loss_scale: float) -> None:
    # Gradients of the mean over many tokens are far below what fp16 can hold; the loss scale has to come first.
    leaves = make(dtype)
    loss = chunked_cross_entropy(*leaves, chunk_tokens=9) * loss_scale
    gradients = torch.autograd.grad(loss, leaves[:3])
    expected, expected_gradients = whole(leaves)
    assert error(loss.detach() / loss_scale, expected) < torch.finfo(dtype).eps
    if dtype == torch.bfloat16 or loss_scale > 1.0:
        errors = [
            error(a.double() / loss_scale, b) for a, b in zip(gradients, expected_gradients, strict=True)
        ]
        assert max(errors) < 2 * torch.finfo(dtype).eps
    assert [g.dtype for g in gradients] == [dtype] * 3


def test_fp16_keeps_the_gradient_of_classes_of_small_probability() -> None:
    leaves = make(torch.float16)
    with torch.no_grad():
        leaves[2][7] = -16.0  # about e**-21 of the whole: nothing in fp16, were it not scaled
    leaves[3][leaves[3] == 7] = 8
    (gradient,) = torch.autograd.grad(chunked_cross_entropy(*leaves, chunk_tokens=9) * 65536.0, leaves[1])
    _, expected = whole(leaves)
    assert error(gradient[7].double() / 65536.0, expected[1][7]) < 0.25


def test_the_weights_gradient_is_summed_in_fp32_over_any_number_of_chunks() -> None:
    leaves = make(torch.bfloat16)
    _, expected = whole(leaves)

    def of_weight(chunk_tokens: int) -> float:
        loss = chunked_cross_entropy(*leaves, chunk_tokens=chunk_tokens)
        return error(torch.autograd.grad(loss, leaves[1])[0], expected[1])

    assert of_weight(1) < 1.2 * of_weight(TOKENS)


@pytest.mark.parametrize("wanted", [(0,), (1,), (2,), (0, 2)])
def test_what_nobody_asked_for_gets_no_gradient_and_changes_no_other(wanted: tuple[int, ...]) -> None:
    leaves = make(torch.float32)
    for index in range(3):
        leaves[index].requires_grad_(index in wanted)
    chunked_cross_entropy(*leaves, chunk_tokens=9).backward()
    _, expected = whole(leaves)
    for index in range(3):
        assert (leaves[index].grad is not None) == (index in wanted)
    assert max(error(leaves[index].grad, expected[index]) for index in wanted) < 1e-6


def test_masked_tokens_change_nothing_and_get_no_gradient() -> None:
    leaves = make(torch.float32)
    masked = leaves[3] == -100

    def run() -> tuple[Tensor, ...]:
        loss = chunked_cross_entropy(*leaves, chunk_tokens=9)
        return loss.detach(), *torch.autograd.grad(loss, leaves[:3])

    before = run()
    with torch.no_grad():
        leaves[0][masked] *= 100.0
    assert all(torch.equal(a, b) for a, b in zip(before, run(), strict=True))
    assert masked.any() and not before[1][masked].any()


def test_nothing_to_count_is_not_a_number_as_in_torch() -> None:
    leaves = make(torch.float32)
    leaves[3].fill_(-100)
    assert chunked_cross_entropy(*leaves, chunk_tokens=9).isnan()


def test_a_second_backward_is_refused() -> None:
    leaves = make(torch.float32)
    loss = chunked_cross_entropy(*leaves, chunk_tokens=9)
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="once"):
        loss.backward()


def test_a_chunk_is_64_mib_of_fp32_logits_and_larger_where_products_are_fast() -> None:
    cpu, cuda = torch.device("cpu"), torch.device("cuda")
    assert default_chunk_tokens(50304, 768, cpu) * 50304 * 4 == pytest.approx(64 << 20, rel=0.01)
    assert default_chunk_tokens(128_000, 4096, cuda) == 1024
    assert default_chunk_tokens(50304, 768, cuda) > 768, (
        "logits weigh more than the sum of the head's gradient"
    )
    assert default_chunk_tokens(1 << 30, 8, cpu) == 1
