"""Whether a plan fits, in a word and in words. Imports nothing of the plan: the first picture needs none.

Invariant: the words begin with the word.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from workbench.plan.memory.tiers import MemoryPlan, TierNeed

Verdict = Literal["fits", "tight", "no"]
LEAST_LEFT = 0.05
"""Of what a tier has free; a run that leaves less is tight."""


def tier_verdict(tier: TierNeed) -> Verdict:
    """Whether a tier has room, and some left."""
    if not tier.fits:
        return "no"
    left = tier.free_bytes - tier.needed_bytes
    return "tight" if tier.needed_bytes and left < LEAST_LEFT * tier.free_bytes else "fits"


def verdict(memory: MemoryPlan) -> Verdict:
    """The worst of its tiers."""
    found = {tier_verdict(tier) for tier in memory.tiers}
    return "no" if "no" in found else "tight" if "tight" in found else "fits"


def verdict_words(memory: MemoryPlan) -> str:
    """ "fits", "tight: 3 % of host is left", "no: lacks 3.20 GiB of host"."""
    said = verdict(memory)
    if said == "no":
        from workbench.plan.placement import lacking

        return f"no: lacks {lacking(memory)}"
    if said == "tight":
        least = min((t for t in memory.tiers if tier_verdict(t) == "tight"), key=_share_left)
        return f"tight: {_share_left(least):.0%} of {least.tier} is left"
    return "fits"


def _share_left(tier: TierNeed) -> float:
    return (tier.free_bytes - tier.needed_bytes) / max(1, tier.free_bytes)
