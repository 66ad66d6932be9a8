"""The layout as the simulation of time reads it: runs of alike blocks as one shard each, for the sake of speed.

A plan of a hundred blocks has to be made while a key is pressed. What a run of blocks moves and computes is the sum of
theirs; what is lost is how finely lanes overlap within it.

Invariant: elements, by dtype, are those of the engine's own layout, and so is the number of chunks but for where a
parameter is cut.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from workbench.layout import ALIGNMENT, ITEM_BYTES, Layout, ParameterSpec, ShardSpec, build_layout
from workbench.placement import Placement, Tier, stay_on_device
from workbench.plan.census import SIXTEEN_BITS, Census, CensusParameter, stored_dtype
from workbench.state_formats import StateFormat

MOST_GROUPS = 16
"""Runs of blocks; a step has some ten tasks for each."""
WHOLE = 1 << 62
Sums = tuple[tuple[tuple[str, StateFormat, bool], int], ...]
"""Elements, aligned, by (stored dtype, state format, trainable)."""
CRUMB = 100
"""What is less than one part in so many of a shard counts as the rest of it does."""


@dataclass(frozen=True)
class Group:
    """A run of alike shards. `kind`: of its blocks, None for what is outside of them. `chunks`: the engine's."""

    kind: int | None
    count: int
    stays: bool
    chunks: int


@dataclass(frozen=True)
class CoarseLayout:
    """`layout` has one shard a group, in forward order. `alike`: for each group the first that takes the same."""

    layout: Layout
    groups: tuple[Group, ...]
    alike: tuple[int, ...]

    def placements(self, weights: Tier, state: Tier) -> list[Placement]:
        """As `workbench.placement.place` has them for the shards of each group."""
        found = []
        for group in self.groups:
            if state == "device" or group.stays:
                found.append(Placement("device", "device"))
            else:
                found.append(Placement("device" if group.kind is None else weights, state))
        return found


@lru_cache(maxsize=256)
def _sums(
    parameters: tuple[CensusParameter, ...],
    precision: str,
    state_format: StateFormat,
    mixed: bool,
    stays: bool,
) -> Sums:
    """Of the parameters of one shard."""
    sums: dict[tuple[str, StateFormat, bool], int] = {}
    for p in parameters:
        kept: StateFormat = "exact" if stays or len(p.shape) < 2 or p.embeds else state_format
        key = (stored_dtype(p.dtype, precision, mixed), kept if p.trainable else "exact", p.trainable)
        sums[key] = sums.get(key, 0) + -(-p.numel // ALIGNMENT) * ALIGNMENT
    return tuple(sums.items())


def _without_crumbs(sums: Sums) -> Sums:
    """Gains and biases, kept exact beside matrices, would double the tasks for a thousandth of the work."""
    whole = sum(elements for _, elements in sums)
    kept: dict[tuple[str, StateFormat, bool], int] = {}
    for key, elements in sorted(sums, key=lambda item: -item[1]):
        alike = next((k for k in kept if (k[0], k[2]) == (key[0], key[2])), None)
        if alike is not None and elements * CRUMB < whole:
            kept[alike] += elements
        else:
            kept[key] = elements
    return tuple(kept.items())


def coarse_layout(
    census: Census, precision: str, chunk_bytes: int, state_format: StateFormat, device_fraction: float
) -> CoarseLayout:
    """Group the shards of `census` as laid out under these settings (see `Census.layout`)."""
    shards: list[tuple[int | None, tuple[CensusParameter, ...]]] = []
    if census.before:
        shards.append((None, census.before))
    shards += [(kind, census.kinds[kind].parameters) for _, kind in census.blocks]
    if census.after:
        shards.append((None, census.after))
    mixed = any(p.dtype in SIXTEEN_BITS for _, parameters in shards for p in parameters)
    trainable = {id(parameters): sum(p.numel for p in parameters if p.trainable) for _, parameters in shards}
    stay = stay_on_device([trainable[id(parameters)] for _, parameters in shards], device_fraction)
    longest = -(-len(census.blocks) // MOST_GROUPS)
    groups: list[Group] = []
    specs: list[ShardSpec] = []
    at = 0
    while at < len(shards):
        kind, parameters = shards[at]
        stays = stay[at]
        count = 1
        while (
            kind is not None
            and count < longest
            and at + count < len(shards)
            and shards[at + count][0] == kind
            and stay[at + count] == stays
        ):
            count += 1
        sums = _sums(parameters, precision, state_format, mixed, stays)
        chunks = sum(
            count * max(1, -(-elements * ITEM_BYTES[dtype] // chunk_bytes))
            for (dtype, _, is_trainable), elements in sums
            if is_trainable
        )
        groups.append(Group(kind, count, stays, chunks))
        specs.append(
            ShardSpec(
                str(at),
                "outer" if kind is None else "block",
                tuple(
                    ParameterSpec(str(number), (count * elements, 1), dtype, is_trainable, kept)
                    for number, ((dtype, kept, is_trainable), elements) in enumerate(_without_crumbs(sums))
                ),
            )
        )
        at += count
    total = sum(spec.bytes for each in specs for spec in each.parameters if spec.trainable)
    # A model of few shards still overlaps chunk by chunk.
    coarse = max(chunk_bytes, total // MOST_GROUPS) if len(specs) < MOST_GROUPS else WHOLE
    # The last group has head and loss beside it.
    likes = [
        (group, spec.parameters, at == len(specs) - 1)
        for at, (group, spec) in enumerate(zip(groups, specs, strict=True))
    ]
    return CoarseLayout(build_layout(specs, coarse), tuple(groups), tuple(map(likes.index, likes)))
