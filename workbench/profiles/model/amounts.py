"""From what was counted at four sizes to curves that hold for any size.

A block's tensors grow with tokens, with sequences, with the square of the tokens, or not at all. Each one is followed
through all four runs, so that a peak is known moment by moment, and which moment is the highest may change with size.

Invariant: four runs of the same operations give curves that are exact at those sizes. Knows nothing of torch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from workbench.plan.model_profile import Curve

LONGEST = 1 << 20
BATCHES = (1, 2, 16, 128)


class Size(NamedTuple):
    sequences: int
    tokens: int


def four_sizes(tokens: int) -> tuple[Size, Size, Size, Size]:
    """Two and three sequences of `tokens` and of twice as many (a single one is a special case in many a kernel)."""
    return Size(2, tokens), Size(3, tokens), Size(2, 2 * tokens), Size(3, 2 * tokens)


class Amount(NamedTuple):
    """The fields of a `Curve`, without others beside it."""

    fixed: float
    shared_token: float
    shared_pair: float
    per_token: float
    per_token_pair: float

    def at(self, sequences: int, tokens: int) -> float:
        shared = self.fixed + tokens * (self.shared_token + self.shared_pair * tokens)
        return shared + sequences * tokens * (self.per_token + self.per_token_pair * tokens)


@dataclass
class Phase:
    """What ran between two marks. `flops`: of matrix products and attention; `element_bytes`: of all the rest."""

    operations: int = 0
    element_bytes: int = 0
    flops: int = 0


@dataclass
class Recording:
    """Lives of storages: `events` are n + 1 for the birth of storage n and -n - 1 for its end, in order.

    `sizes`: bytes by storage. `marks`: events that were there at each mark; `phases`: one more than marks.
    """

    sizes: list[int] = field(default_factory=list)
    events: list[int] = field(default_factory=list)
    marks: list[int] = field(default_factory=list)
    phases: list[Phase] = field(default_factory=lambda: [Phase()])

    def spans(self) -> list[tuple[int, int]]:
        """Where each phase's events begin and end."""
        ends = [*self.marks, len(self.events)]
        return list(zip([0, *self.marks], ends, strict=True))


def fit(values: Sequence[float], tokens: int) -> Amount:
    """The amount that takes `values` at `four_sizes(tokens)`.

    Values that are of no such form give one in proportion to the tokens.
    """
    two, three, two_longer, three_longer = values
    short, long = three - two, three_longer - two_longer  # of one sequence
    pair = (long - 2 * short) / (2 * tokens * tokens)
    per_token = short / tokens - pair * tokens
    shared, shared_longer = two - 2 * short, two_longer - 2 * long
    fixed, shared_token, shared_pair = 2 * shared - shared_longer, (shared_longer - shared) / tokens, 0.0
    if fixed < 0 < shared:  # more than in proportion: tables over pairs of tokens
        fixed, shared_token, shared_pair = 0.0, 0.0, max(shared, shared_longer / 4) / (tokens * tokens)
    parts = (fixed, shared_token, shared_pair, per_token, pair)
    amount = Amount(*(round(part, 6) + 0.0 for part in parts))
    if min(amount) < 0:
        per_token = max(value / (s * t) for value, (s, t) in zip(values, four_sizes(tokens), strict=True))
        return Amount(0.0, 0.0, 0.0, max(0.0, per_token), 0.0)
    return amount


def curve(amount: Amount) -> Curve:
    return Curve(**amount._asdict())


def fit_phase(recordings: Sequence[Recording], phase: int, name: str, tokens: int) -> Curve:
    """The curve of a phase's `flops` or `element_bytes`."""
    return curve(fit([getattr(r.phases[phase], name) for r in recordings], tokens))


def operations(recordings: Sequence[Recording], phase: int) -> int:
    return max(r.phases[phase].operations for r in recordings)


def alive_after(recordings: Sequence[Recording], phase: int, tokens: int) -> Curve:
    """Bytes that are alive when `phase` ends."""
    totals = [sum(r.sizes[n] for n in _alive(r.events[: r.spans()[phase][1]])) for r in recordings]
    return curve(fit(totals, tokens))


def made_and_gone(recordings: Sequence[Recording], phase: int, tokens: int) -> Curve:
    """Bytes, all together, of what is born in `phase` and does not outlive it."""
    totals = []
    for recording in recordings:
        start, stop = recording.spans()[phase]
        events = set(recording.events[start:stop])
        totals.append(sum(recording.sizes[event - 1] for event in events if event > 0 and -event in events))
    return curve(fit(totals, tokens))


def peak(recordings: Sequence[Recording], phase: int, tokens: int) -> Curve:
    """The most bytes that are alive at a time within `phase`, for any size."""
    first = recordings[0]
    if any(r.events != first.events or r.marks != first.marks for r in recordings):
        # Operations that depend on the data: moments cannot be followed from one size to the next.
        peaks = [max(sum(m) for m in _moments(r, phase, [(s,) for s in r.sizes])) for r in recordings]
        return curve(fit(peaks, tokens))
    amounts = [fit(sizes, tokens) for sizes in zip(*(r.sizes for r in recordings), strict=True)]
    return _highest(Amount(*moment) for moment in _moments(first, phase, amounts))


def _alive(events: Iterable[int]) -> set[int]:
    alive: set[int] = set()
    for event in events:
        if event > 0:
            alive.add(event - 1)
        else:
            alive.remove(-event - 1)
    return alive


def _moments(
    recording: Recording, phase: int, sizes: Sequence[Sequence[float]]
) -> Iterator[tuple[float, ...]]:
    """The sum of the `sizes` alive at the beginning of a phase and after each birth in it."""
    start, stop = recording.spans()[phase]
    live = [0.0] * len(sizes[0])
    for number in _alive(recording.events[:start]):
        live = [a + b for a, b in zip(live, sizes[number], strict=True)]
    yield tuple(live)
    for event in recording.events[start:stop]:
        sign = 1 if event > 0 else -1
        live = [a + sign * b for a, b in zip(live, sizes[abs(event) - 1], strict=True)]
        if event > 0:
            yield tuple(live)


def _highest(moments: Iterable[Amount]) -> Curve:
    """The largest of `moments` at every size."""
    distinct = list(dict.fromkeys(moments))
    highest: dict[Amount, None] = {}
    tokens = 1
    while tokens <= LONGEST:
        for sequences in BATCHES:
            highest[max(distinct, key=lambda m: m.at(sequences, tokens))] = None
        tokens *= 2
    main, *others = map(curve, highest)
    return main.model_copy(update={"beside": tuple(others)})
