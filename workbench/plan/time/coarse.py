"""The layout as the simulation of time reads it: runs of alike blocks as one unit each, for the sake of speed.

A plan of a hundred blocks has to be made while a key is pressed. What a run of blocks moves and computes is the sum of
theirs; what is lost is how finely lanes overlap within it.

Invariant: elements, by dtype, are those of the engine's own layout, and so is the number of chunks but for where a
parameter is cut.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from workbench.layout import ALIGNMENT, ITEM_BYTES, Layout, ParameterSpec, UnitSpec, build_layout
from workbench.placement import Placement, Tier, stay_on_device
from workbench.profiles.model_profile import SIXTEEN_BITS, ModelProfile, ParameterProfile, stored_dtype
from workbench.state_formats import StateFormat

MOST_GROUPS = 16
"""Runs of blocks; a step has some ten tasks for each."""
WHOLE = 1 << 62
Sums = tuple[tuple[tuple[str, StateFormat, bool], int], ...]
"""Elements, aligned, by (stored dtype, state format, trainable)."""
CRUMB = 100
"""What is less than one part in so many of a unit counts as the rest of it does."""


@dataclass(frozen=True)
class Group:
    """A run of alike units. `kind`: of its blocks, None for what is outside of them. `chunks`: the engine's."""

    kind: int | None
    count: int
    stays: bool
    chunks: int


@dataclass(frozen=True)
class CoarseLayout:
    """`layout` has one unit a group, in forward order. `alike`: for each group the first that takes the same."""

    layout: Layout
    groups: tuple[Group, ...]
    alike: tuple[int, ...]

    def placements(self, weights: Tier, state: Tier) -> list[Placement]:
        """As `workbench.placement.place` has them for the units of each group."""
        found = []
        for group in self.groups:
            if state == "device" or group.stays:
                found.append(Placement("device", "device"))
            else:
                found.append(Placement("device" if group.kind is None else weights, state))
        return found


@lru_cache(maxsize=256)
def _sums(
    parameters: tuple[ParameterProfile, ...],
    precision: str,
    state_format: StateFormat,
    mixed: bool,
    stays: bool,
) -> Sums:
    """Of the parameters of one unit."""
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
    model_profile: ModelProfile,
    precision: str,
    chunk_bytes: int,
    state_format: StateFormat,
    device_fraction: float,
) -> CoarseLayout:
    """Group the units of `model_profile` as laid out under these settings (see `ModelProfile.layout`)."""
    units: list[tuple[int | None, tuple[ParameterProfile, ...]]] = []
    if model_profile.before:
        units.append((None, model_profile.before))
    units += [(kind, model_profile.kinds[kind].parameters) for _, kind in model_profile.blocks]
    if model_profile.after:
        units.append((None, model_profile.after))
    mixed = any(p.dtype in SIXTEEN_BITS for _, parameters in units for p in parameters)
    trainable = {id(parameters): sum(p.numel for p in parameters if p.trainable) for _, parameters in units}
    stay = stay_on_device([trainable[id(parameters)] for _, parameters in units], device_fraction)
    longest = -(-len(model_profile.blocks) // MOST_GROUPS)
    groups: list[Group] = []
    specs: list[UnitSpec] = []
    at = 0
    while at < len(units):
        kind, parameters = units[at]
        stays = stay[at]
        count = 1
        while (
            kind is not None
            and count < longest
            and at + count < len(units)
            and units[at + count][0] == kind
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
            UnitSpec(
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
    # A model of few units still overlaps chunk by chunk.
    coarse = max(chunk_bytes, total // MOST_GROUPS) if len(specs) < MOST_GROUPS else WHOLE
    # The last group has head and loss beside it.
    likes = [
        (group, spec.parameters, at == len(specs) - 1)
        for at, (group, spec) in enumerate(zip(groups, specs, strict=True))
    ]
    return CoarseLayout(build_layout(specs, coarse), tuple(groups), tuple(map(likes.index, likes)))
