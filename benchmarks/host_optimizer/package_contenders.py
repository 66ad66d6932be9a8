"""The optimizers of packages that are installed on demand. packages.py has made them importable."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from benchmarks.host_optimizer.buffers import SETTINGS, WARM_UP_SCALES, Buffers
from benchmarks.host_optimizer.contender import Run, UnavailableError, repeat
from benchmarks.host_optimizer.torch_contenders import with_casts, with_gradients

NUMBERS: dict[str, Any] = {
    "lr": SETTINGS.lr,
    "betas": SETTINGS.betas,
    "eps": SETTINGS.eps,
    "weight_decay": SETTINGS.weight_decay,
}
QUANTIZED_BLOCK = 256
"""torchao keeps a tensor's moments in float32 where its length is not a multiple of this."""
LEAST_QUANTIZED = 4096
"""Below this both packages keep float32."""


def make(name: str, buffers: Buffers) -> Run:
    """The contender of this name, after a first step, which is where these packages compile or fail."""
    steps: dict[str, Callable[[Buffers], Callable[[], object]]] = {
        "deepspeed_casts": deepspeed_casts,
        "deepspeed_bf16": deepspeed_bf16,
        "torchao_8bit": torchao_8bit,
        "bitsandbytes_8bit": bitsandbytes_8bit,
    }
    try:
        step = steps[name](buffers)
        step()
    except UnavailableError:
        raise
    except Exception as error:  # whatever a foreign package raises, the others are still measured
        reason = str(error).strip() or type(error).__name__
        raise UnavailableError(f"it fails here: {reason.splitlines()[0]}") from error
    return repeat(step)


def deepspeed_casts(buffers: Buffers) -> Callable[[], object]:
    """Float32 master, gradient and moments, with the casts that offloading needs."""
    return with_casts(_deepspeed(buffers, buffers.master, buffers.gradient_fp32), buffers)


def deepspeed_bf16(buffers: Buffers) -> Callable[[], object]:
    """bfloat16 parameters and gradients, no master; moments in float32, its default."""
    return _deepspeed(buffers, buffers.weights_bf16, buffers.gradient_bf16)


def _deepspeed(buffers: Buffers, weight: Tensor, gradient: Tensor) -> Callable[[], object]:
    from deepspeed.ops.adam import DeepSpeedCPUAdam

    parameters = with_gradients([weight], [gradient])
    optimizer = DeepSpeedCPUAdam(parameters, adamw_mode=True, **NUMBERS)
    optimizer.state[parameters[0]] = {"step": len(WARM_UP_SCALES), **buffers.moments("exact")}
    step: Callable[[], object] = optimizer.step
    return step


def torchao_8bit(buffers: Buffers) -> Callable[[], object]:
    """8-bit moments of its own beside the shared float32 weights; compiled by torch.compile."""
    from torchao.optim import AdamW8bit

    step: Callable[[], object] = AdamW8bit(_quantized_parameters(buffers), **NUMBERS).step
    return step


def bitsandbytes_8bit(buffers: Buffers) -> Callable[[], object]:
    """8-bit moments of its own beside the shared float32 weights."""
    from bitsandbytes.optim import AdamW8bit

    step: Callable[[], object] = AdamW8bit(_quantized_parameters(buffers), **NUMBERS).step
    return step


def _quantized_parameters(buffers: Buffers) -> list[Any]:
    """As many of the parameters as both packages keep in 8 bits: all but fewer than 256."""
    length = buffers.parameters // QUANTIZED_BLOCK * QUANTIZED_BLOCK
    if length < LEAST_QUANTIZED:
        raise UnavailableError(f"it keeps fewer than {LEAST_QUANTIZED:,} parameters in float32")
    return with_gradients([buffers.master[:length]], [buffers.gradient_fp32[:length]])
