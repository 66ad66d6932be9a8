"""What forward and backward take beside the engine, at the moment of a step when all together is the most.

Activations come from the model profile: a real block was run. What is alive when, follows from what the engine does:
checkpointed blocks keep their input, the loss comes in chunks of tokens, gradients live in autograd's hands until the
engine or the update has taken them.

Invariant: the rows of one moment add up to what is alive at that moment; rows of different moments are never added.
"""

from __future__ import annotations

from dataclasses import dataclass

from workbench.layout import ITEM_BYTES
from workbench.plan.time.compute_time import cost_of
from workbench.plan.workload import Workload
from workbench.profiles.model_profile import ModelProfile

LOSS_CHUNK_BYTES = 64 << 20
"""The logits of so many tokens at once, in fp32 (see engine/loss/fused_head.py)."""

HEAP_BLOCK_BYTES = 32 << 20
"""glibc's largest threshold, from which on a block is mapped by itself (M_MMAP_THRESHOLD in mallopt(3))."""


@dataclass(frozen=True)
class Holes:
    """Bytes that the heap loses for a byte that forwards drop, for one of small gradients that stay, and for one of
    small gradients that are gathered and dropped."""

    dropped: float
    kept: float
    gathered: float


HOLES = Holes(dropped=1.4, kept=1.05, gathered=1.8)
HOLES_WITHOUT_WAITING = Holes(dropped=0.5, kept=0.35, gathered=0.35)
"""Where gradients do not wait for the end of backward."""


@dataclass(frozen=True)
class Gradients:
    """Bytes of gradients that autograd holds: when a micro-batch begins, and when its backward has ended.

    `small_kept`, `small_gathered`: those of a whole backward in blocks that the C library's heap keeps, by whether the
    engine copies them out of autograd's tensors.
    """

    at_start: int
    at_end: int
    small_kept: int = 0
    small_gathered: int = 0


def model_rows(
    model_profile: ModelProfile, work: Workload, gradients: Gradients
) -> dict[str, dict[str, int]]:
    """The rows of the heaviest moment: bytes by tier ("device", "host") and name."""
    return max(_moments(model_profile, work, gradients), key=lambda rows: sum(rows["device"].values()))


def _moments(
    model_profile: ModelProfile, work: Workload, gradients: Gradients
) -> list[dict[str, dict[str, int]]]:
    dtype = work.compute_dtype(work.precision)
    item = ITEM_BYTES[dtype]
    sequences, tokens = work.micro_batch_size, work.sequence_length
    costs = [cost_of(kind, model_profile, dtype, on_cpu=work.shared_memory) for kind in model_profile.kinds]
    inputs = [costs[kind].input.at(sequences, tokens) for _, kind in model_profile.blocks]
    saved = [costs[kind].saved.at(sequences, tokens) for _, kind in model_profile.blocks]
    away = work.activations == "host" and not work.shared_memory
    if work.activation_checkpointing:
        kept = inputs
        inside = [
            max(costs[kind].graph_peak.at(sequences, tokens), costs[kind].backward_peak.at(sequences, tokens))
            for _, kind in model_profile.blocks
        ]
        # The input counts in both: kept for the block, and part of what is alive in it.
        inside = [whole - own for whole, own in zip(inside, inputs, strict=True)]
        forward = [
            costs[kind].forward_peak.at(sequences, tokens) - own
            for (_, kind), own in zip(model_profile.blocks, inputs, strict=True)
        ]
    else:
        kept = saved
        inside = [
            costs[kind].backward_peak.at(sequences, tokens) - own
            for (_, kind), own in zip(model_profile.blocks, saved, strict=True)
        ]
        forward = [
            costs[kind].graph_peak.at(sequences, tokens) - own
            for (_, kind), own in zip(model_profile.blocks, saved, strict=True)
        ]
    total = sum(kept)
    # Of what waits on the host, two blocks' inputs are on their way at a time.
    present = min(total, 2 * max(kept, default=0.0)) if away else total
    hidden = float(sequences * tokens * model_profile.hidden_size * item)
    host = {"activations": int(total)} if away else {}

    def moment(
        activations: float, logits: float, held: float, masks: float = 0.0
    ) -> dict[str, dict[str, int]]:
        rows = {
            "gradients": held,
            "activations": activations,
            "logits": logits,
            "document masks": masks,
        }
        return {"device": {name: int(size) for name, size in rows.items() if size >= 1}, "host": host}

    head, tied = _loss_bytes(model_profile, work, item), _tied_bytes(model_profile, item)
    first = min(present, kept[0]) if kept else 0.0
    walked, waiting, last = mask_bytes(work, len(model_profile.blocks), item)
    return [
        moment(present + max(forward, default=0.0), 0.0, gradients.at_start, walked),
        moment(present + 2 * hidden, head, gradients.at_start, waiting),
        moment(present + max(inside, default=0.0) + hidden, tied, gradients.at_start, walked),
        moment(first + max(inside, default=0.0) + hidden, 0.0, gradients.at_end, last),
        moment(2 * hidden, tied, gradients.at_end),
    ]


def mask_bytes(work: Workload, blocks: int, item: int) -> tuple[float, float, float]:
    """Of the masks that keep documents apart: while all blocks are gone through, while the loss is computed, and while
    the first block is walked back.

    A bool for every pair of tokens goes to all blocks; attention makes numbers of `item` bytes of it in each, which a
    block that is not recomputed keeps for its backward.
    """
    if not work.separate_documents:
        return 0.0, 0.0, 0.0
    pairs = float(work.micro_batch_size * work.sequence_length**2)
    if work.activation_checkpointing:
        return pairs * (1 + item), pairs, pairs * (1 + item)
    kept = pairs * item * blocks
    return kept + pairs, kept, pairs * item


def heap_reserve(model_profile: ModelProfile, work: Workload, gradients: Gradients) -> int:
    """What the C library's heap holds in one memory beside what is asked of it: holes that no later block fits in.

    glibc keeps blocks below 32 MiB in its heap, and as it has to align each, mostly finds no room for one where an
    equal one was. So the insides of a block that is walked back come to lie twice; and holes stay between what stays:
    what a forward drops again lies among kept activations, recomputed activations among gradients. How much of them
    is lost is measured, with glibc 2.36 (docs/benchmarks.md).
    """
    if (
        not work.shared_memory or work.state == "disk"
    ):  # there large blocks are given back (see engine/storage/heap.py)
        return 0
    dtype = work.compute_dtype(work.precision)
    item = ITEM_BYTES[dtype]
    tokens = work.micro_batch_size * work.sequence_length
    if tokens * model_profile.hidden_size * 4 * item >= HEAP_BLOCK_BYTES:
        return 0
    sizes = work.micro_batch_size, work.sequence_length
    costs = [cost_of(kind, model_profile, dtype, on_cpu=True) for kind in model_profile.kinds]
    inside = max((cost.backward_peak.at(*sizes) for cost in costs), default=0.0)
    holes = HOLES if work.must_wait or work.several else HOLES_WITHOUT_WAITING
    if not work.activation_checkpointing:
        return int(
            inside + holes.dropped * sum(costs[kind].passing.at(*sizes) for _, kind in model_profile.blocks)
        )
    return int(inside + holes.kept * gradients.small_kept + holes.gathered * gradients.small_gathered)


def _loss_bytes(model_profile: ModelProfile, work: Workload, item: int) -> float:
    """The most that head and loss take, the head's gradient included."""
    tokens = work.micro_batch_size * work.sequence_length
    logits = 4.0 * tokens * model_profile.vocab_size
    weight = float(model_profile.vocab_size * model_profile.head_width) if model_profile.trains_head else 0.0
    # The loss's own softmax and its gradient, beside the logits and (in 16 bits) their copy in fp32.
    whole = 2 * logits + logits * item / 4 + (logits if item < 4 else 0.0) + weight * item
    # A device of its own takes at least a quarter of the head's width in tokens (see engine/loss/fused_head.py).
    chunk = float(LOSS_CHUNK_BYTES)
    if not work.shared_memory:
        chunk = max(chunk, 1.0 * model_profile.head_width * model_profile.vocab_size)
    if not model_profile.loss_in_chunks or logits <= chunk:
        return whole
    # A chunk's logits and the gradient of them; the weight's gradient is summed in fp32, then rounded.
    summed = weight * (4 + (item if item < 4 else 0))
    return 2.0 * chunk + summed + 4.0 * tokens * model_profile.head_width


def _tied_bytes(model_profile: ModelProfile, item: int) -> float:
    """The head's gradient for a tied embedding, which waits for the embedding's own of the same size."""
    waits = model_profile.trains_head and _is_tied(model_profile)
    return float(item * model_profile.vocab_size * model_profile.hidden_size) if waits else 0.0


def _is_tied(model_profile: ModelProfile) -> bool:
    """Whether the head reads the embedding: then no matrix of so many rows is anything but an embedding."""
    rows = [
        p
        for p in (*model_profile.before, *model_profile.after)
        if len(p.shape) == 2 and p.shape[0] == model_profile.vocab_size
    ]
    return bool(rows) and all(p.embeds for p in rows)
