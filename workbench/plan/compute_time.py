"""Seconds of forward and backward, piece by piece: measured ones where this machine has them, else arithmetic.

The arithmetic: matrix products at the device's matrix speed, operations on elements at its memory bandwidth, and no
faster than operations can be launched (a roofline with a floor).

Invariant: what comes out is for one micro-batch of the workload, on a machine that does nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass

from workbench.layout import ITEM_BYTES
from workbench.plan.activations import cost_of
from workbench.plan.rates import Rates
from workbench.plan.workload import Workload
from workbench.profiles.model_profile import BlockKind, ModelProfile, ModelTimes

LOGIT_PASSES = 6
"""Times that the loss and its gradient read or write a logit, in fp32."""


@dataclass(frozen=True)
class ComputeTimes:
    """Seconds. `forward` and `backward`: of a block by its kind, a recompute included; the outer parts apart.

    `measured`: on this machine, not computed from its matrix speed.
    """

    forward: tuple[float, ...]
    backward: tuple[float, ...]
    outer_forward: float
    outer_backward: float
    measured: bool


def compute_times(
    model_profile: ModelProfile, work: Workload, rates: Rates, times: ModelTimes | None
) -> ComputeTimes:
    """Return the times of a micro-batch of `work`."""
    dtype = work.compute_dtype
    if times is not None and times.dtype == dtype and len(times.kinds) == len(model_profile.kinds):
        return _scaled(model_profile, work, times)
    forward, backward = [], []
    for kind in model_profile.kinds:
        ahead, back = _block(kind, model_profile, work, rates, dtype)
        forward.append(ahead)
        backward.append(back + (ahead if work.activation_checkpointing else 0.0))
    outer = _outer(model_profile, work, rates, dtype)
    return ComputeTimes(tuple(forward), tuple(backward), *outer, measured=False)


def _scaled(model_profile: ModelProfile, work: Workload, times: ModelTimes) -> ComputeTimes:
    """Return measured times at the workload's size."""
    forward, backward = [], []
    for kind, measured in zip(model_profile.kinds, times.kinds, strict=True):
        there = kind.flops.at(times.sequences, times.tokens)
        here = kind.flops.at(work.micro_batch_size, work.sequence_length)
        larger = here / there if there else 1.0
        masked = _mask_flops(kind, work) / times.matrix_flops_per_s
        once = measured.forward_s if work.activation_checkpointing else measured.graph_s
        forward.append(larger * once + masked)
        again = larger * measured.graph_s + masked if work.activation_checkpointing else 0.0
        backward.append(again + larger * measured.backward_s + 2 * masked)
    tokens = work.micro_batch_size * work.sequence_length / (times.sequences * times.tokens)
    return ComputeTimes(
        tuple(forward),
        tuple(backward),
        tokens * times.outer_forward_s,
        tokens * times.outer_backward_s,
        measured=True,
    )


def _mask_flops(kind: BlockKind, work: Workload) -> float:
    """Return what a mask that keeps documents apart adds to a block's forward: with it, kernels go through the pairs in
    which a token would look ahead, too, which are half of all pairs."""
    pairs = work.micro_batch_size * work.sequence_length**2
    return 0.5 * kind.flops.per_token_pair * pairs if work.separate_documents else 0.0


def _block(
    kind: BlockKind, model_profile: ModelProfile, work: Workload, rates: Rates, dtype: str
) -> tuple[float, float]:
    sequences, tokens = work.micro_batch_size, work.sequence_length
    cost = cost_of(kind, model_profile, dtype, on_cpu=rates.shared)
    matrix = rates.matrix_s(kind.flops.at(sequences, tokens), dtype)
    ahead = rates.elements_s(cost.element_bytes.at(sequences, tokens))
    back = rates.elements_s(cost.backward_element_bytes.at(sequences, tokens))
    # A frozen matrix gets no gradient, which is half of a matrix's products in backward.
    products = (2 - kind.frozen_share) * matrix
    launch, launch_back = cost.operations * rates.launch_s, cost.backward_operations * rates.launch_s
    if rates.shared:
        return matrix + ahead + launch, products + back + launch_back
    return max(matrix + ahead, launch), max(products + back, launch_back)


def _outer(model_profile: ModelProfile, work: Workload, rates: Rates, dtype: str) -> tuple[float, float]:
    """Return the times of embedding, head and loss.

    In chunks, the head's gradients are made in the forward: engine/loss/fused_head.py.
    """
    tokens = work.micro_batch_size * work.sequence_length
    product = rates.matrix_s(2.0 * tokens * model_profile.vocab_size * model_profile.head_width, dtype)
    logits = rates.elements_s(LOGIT_PASSES * 4.0 * tokens * model_profile.vocab_size)
    embedding = rates.elements_s(3.0 * tokens * model_profile.hidden_size * ITEM_BYTES[dtype])
    # The embedding's gradient is as large as the embedding, whatever was looked up.
    rows = rates.elements_s(3.0 * model_profile.vocab_size * model_profile.hidden_size * ITEM_BYTES[dtype])
    rows *= model_profile.trains_embedding
    back = 2 if model_profile.trains_head else 1
    if model_profile.loss_in_chunks:
        return (1 + back) * product + logits + embedding, rows + embedding
    return product + logits / 2 + embedding, back * product + logits / 2 + rows + embedding
