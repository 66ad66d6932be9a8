"""What forward and backward take beside the engine, at the moment of a step when all together is the most.

Activations come from the model profile. What is alive when follows from what the engine does: checkpointed blocks keep
their input, the loss comes in chunks of tokens, autograd holds gradients until the engine or the update has taken them.

Invariant: the rows of one moment add up to what is alive at that moment; rows of different moments are never added.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from workbench.layout import ITEM_BYTES
from workbench.plan.workload import Workload
from workbench.profiles.model_profile import BlockCost, BlockKind, Curve, ModelProfile

LOSS_CHUNK_BYTES = 64 << 20
"""The logits of so many tokens at once, in fp32 (see engine/loss/fused_head.py)."""
HEAP_BLOCK_BYTES = 32 << 20
"""glibc's largest threshold, from which on a block is mapped by itself (M_MMAP_THRESHOLD in mallopt(3))."""

Rows = dict[str, dict[str, int]]
"""Bytes by tier ("device", "host") and name."""


@dataclass(frozen=True)
class Holes:
    """Bytes that the heap loses for each byte that forwards drop (`dropped`), of small gradients that stay (`kept`),
    and of small gradients that are gathered and dropped (`gathered`)."""

    dropped: float
    kept: float
    gathered: float


HOLES = Holes(dropped=1.4, kept=1.05, gathered=1.8)
HOLES_WITHOUT_WAITING = Holes(dropped=0.5, kept=0.35, gathered=0.35)
"""Where gradients do not wait for the end of backward."""


@dataclass(frozen=True)
class AutogradGradients:
    """Bytes of gradients that autograd holds: when a micro-batch begins, and when its backward has ended.

    `small_kept`, `small_gathered`: those of a whole backward in blocks that the C library's heap keeps, by whether the
    engine copies them out of autograd's tensors.
    """

    at_start: int
    at_end: int
    small_kept: int = 0
    small_gathered: int = 0


def cost_of(kind: BlockKind, model_profile: ModelProfile, dtype: str, *, on_cpu: bool) -> BlockCost:
    """Return the costs of a block computed in `dtype`; from a formula where no block could be run."""
    known = kind.cost("32" if ITEM_BYTES[dtype] >= 4 else "16", on_cpu=on_cpu)
    return formula_cost(model_profile.hidden_size, ITEM_BYTES[dtype]) if known is None else known


def formula_cost(hidden_size: int, item_bytes: int) -> BlockCost:
    """Return the costs of a block that was never run: 34 bytes a token and unit of width at 16 bits, attention scores
    not stored (Korthikanti et al., Reducing Activation Recomputation in Large Transformer Models, 2022, §4.1)."""
    unit = hidden_size * item_bytes
    return BlockCost(
        input=Curve(per_token=unit),
        saved=Curve(per_token=17 * unit),
        passing=Curve(per_token=8 * unit),
        forward_peak=Curve(per_token=10 * unit),
        graph_peak=Curve(per_token=20 * unit),
        backward_peak=Curve(per_token=24 * unit),
        element_bytes=Curve(per_token=40 * unit),
        backward_element_bytes=Curve(per_token=60 * unit),
        operations=40,
        backward_operations=80,
    )


def model_rows(model_profile: ModelProfile, work: Workload, gradients: AutogradGradients) -> Rows:
    """Return the rows of the heaviest moment."""
    return max(_moments(model_profile, work, gradients), key=lambda rows: sum(rows["device"].values()))


def _moments(model_profile: ModelProfile, work: Workload, gradients: AutogradGradients) -> list[Rows]:
    """Return the rows of five moments: the forward, the loss, the last and the first block of backward, the end."""
    item = ITEM_BYTES[work.compute_dtype]
    sizes = work.micro_batch_size, work.sequence_length
    costs = [
        cost_of(kind, model_profile, work.compute_dtype, on_cpu=work.shared_memory)
        for kind in model_profile.kinds
    ]

    def by_block(of_cost: Callable[[BlockCost], float]) -> list[float]:
        of_kind = [of_cost(cost) for cost in costs]
        return [of_kind[kind] for _, kind in model_profile.blocks]

    # What is kept of a block counts in its peaks, too.
    if work.activation_checkpointing:
        kept = by_block(lambda cost: cost.input.at(*sizes))
        backward = by_block(
            lambda cost: (
                max(cost.graph_peak.at(*sizes), cost.backward_peak.at(*sizes)) - cost.input.at(*sizes)
            )
        )
        forward = by_block(lambda cost: cost.forward_peak.at(*sizes) - cost.input.at(*sizes))
    else:
        kept = by_block(lambda cost: cost.saved.at(*sizes))
        backward = by_block(lambda cost: cost.backward_peak.at(*sizes) - cost.saved.at(*sizes))
        forward = by_block(lambda cost: cost.graph_peak.at(*sizes) - cost.saved.at(*sizes))
    total = sum(kept)
    away = work.activations == "host" and not work.shared_memory
    # Of what waits on the host, two blocks' inputs are on their way at a time.
    present = min(total, 2 * max(kept, default=0.0)) if away else total
    hidden = float(work.micro_batch_size * work.sequence_length * model_profile.hidden_size * item)
    host = {"activations": int(total)} if away else {}

    def moment(activations: float, logits: float, held: float, masks: float = 0.0) -> Rows:
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
    inside = max(backward, default=0.0) + hidden
    return [
        moment(present + max(forward, default=0.0), 0.0, gradients.at_start, walked),
        moment(present + 2 * hidden, head, gradients.at_start, waiting),
        moment(present + inside, tied, gradients.at_start, walked),
        moment(first + inside, 0.0, gradients.at_end, last),
        moment(2 * hidden, tied, gradients.at_end),
    ]


def mask_bytes(work: Workload, blocks: int, item: int) -> tuple[float, float, float]:
    """Return the bytes of the masks that keep documents apart: while all blocks are gone through, while the loss is
    computed, and in the first block's backward.

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


def heap_reserve(model_profile: ModelProfile, work: Workload, gradients: AutogradGradients) -> int:
    """Return what the C library's heap holds beside what is asked of it: holes that no later block fits in.

    glibc keeps blocks below 32 MiB in its heap, and as it has to align each, mostly finds no room for one where an
    equal one was. So the insides of a block in its backward come to lie twice; and holes stay between what stays: what
    a forward drops again lies among kept activations, recomputed activations among gradients. The share that is lost is
    measured, with glibc 2.36 (docs/benchmarks.md).
    """
    if (
        not work.shared_memory or work.state == "disk"
    ):  # there, large blocks are mapped (engine/storage/heap.py)
        return 0
    item = ITEM_BYTES[work.compute_dtype]
    sizes = work.micro_batch_size, work.sequence_length
    if sizes[0] * sizes[1] * model_profile.hidden_size * 4 * item >= HEAP_BLOCK_BYTES:
        return 0
    costs = [cost_of(kind, model_profile, work.compute_dtype, on_cpu=True) for kind in model_profile.kinds]
    inside = max((cost.backward_peak.at(*sizes) for cost in costs), default=0.0)
    holes = HOLES if work.must_wait or work.several else HOLES_WITHOUT_WAITING
    if work.activation_checkpointing:
        return int(inside + holes.kept * gradients.small_kept + holes.gathered * gradients.small_gathered)
    passing = [cost.passing.at(*sizes) for cost in costs]
    return int(inside + holes.dropped * sum(passing[kind] for _, kind in model_profile.blocks))


def _loss_bytes(model_profile: ModelProfile, work: Workload, item: int) -> float:
    """Return the most that head and loss take, the head's gradient included."""
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
    """Return the head's gradient for a tied embedding, which waits for the embedding's own of the same size."""
    rows = [
        p
        for p in (*model_profile.before, *model_profile.after)
        if len(p.shape) == 2 and p.shape[0] == model_profile.vocab_size
    ]
    # The head reads the embedding where no matrix of so many rows is anything but an embedding.
    is_tied = bool(rows) and all(p.embeds for p in rows)
    waits = model_profile.trains_head and is_tied
    return float(item * model_profile.vocab_size * model_profile.hidden_size) if waits else 0.0
