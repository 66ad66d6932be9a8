"""The fit meter: the memory that a plan takes of each tier, its verdict, and the time of a step.

It takes from one line to a whole column. It imports nothing of the plan, which the first picture does not need.
Invariants: every number comes from the plan, and a part of a bar is named by its letter, never by its colour alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from textwrap import wrap
from typing import TYPE_CHECKING, Literal

from textual.content import Content
from textual.widget import Widget

from workbench.formatting import duration, gib, of, seconds
from workbench.tui.glyphs import Glyphs
from workbench.tui.panels.panel import clean

if TYPE_CHECKING:
    from workbench.plan.memory import MemoryPlan, TierNeed
    from workbench.plan.planner import Plan

Verdict = Literal["fits", "tight", "no"]
VERDICT_STYLES: dict[Verdict, str] = {"fits": "$success", "tight": "$warning", "no": "$error bold"}
LETTERS: dict[str, str] = {
    "weights": "w",
    "frozen weights": "f",
    "weight slots": "k",
    "master weights": "m",
    "exp_avg and exp_avg_sq": "v",
    "gradients": "g",
    "records to undo": "u",
    "gradient slots": "q",
    "staging": "s",
    "activations": "a",
    "logits": "l",
    "document masks": "d",
    "building": "b",
    "allocator reserve": "r",
    "workspaces": "p",
    "runtime": "t",
}
"""The rows of a plan in the order in which a bar stacks them, each with its letter."""
_ORDER = {name: number for number, name in enumerate(LETTERS)}
ROW_STYLES = (
    "$text-primary reverse",
    "$text-accent reverse",
    "$text-secondary reverse",
    "$text-success reverse",
    "$text-warning reverse",
    "$foreground reverse",
)
OVER_STYLE = "$error bold reverse"
MUTED = "$text-muted"
LEGEND_COLUMN = 34
LEAST_OF_NOTE = 16
"""Cells that a note has beside a plan's figures, or it is left out."""


def tier_verdict(tier: TierNeed) -> Verdict:
    """Return whether a tier has room, and some left."""
    return "tight" if tier.is_tight else "fits" if tier.fits else "no"


def verdict(memory: MemoryPlan) -> Verdict:
    """Return the worst verdict of the tiers."""
    found = {tier_verdict(tier) for tier in memory.tiers}
    return "no" if "no" in found else "tight" if "tight" in found else "fits"


def verdict_words(memory: MemoryPlan) -> str:
    """Return "fits", "tight: 3% of host is left" or "no: lacks 3.20 GiB of host"."""
    worst = verdict(memory)
    if worst == "no":
        return f"no: lacks {memory.lacking}"
    if worst == "tight":
        left = {
            tier.tier: (tier.free_bytes - tier.needed_bytes) / tier.free_bytes
            for tier in memory.tiers
            if tier_verdict(tier) == "tight"
        }
        least = min(left, key=lambda tier: left[tier])
        return f"tight: {left[least]:.0%} of {least} is left"
    return "fits"


def mark_of(worst: Verdict, glyphs: Glyphs) -> str:
    """Return the character that says the same as the colour."""
    return {"fits": glyphs.good, "tight": glyphs.warning, "no": glyphs.bad}[worst]


def letter_of(row: str) -> str:
    """Return the letter of a row in every bar; "c" for checkpoints, whose row has their number in its name."""
    return LETTERS.get(row, "c" if "checkpoint" in row else "?")


class FitMeter(Widget):
    """Shows one plan. `note` stands beside it, or instead; `stale`: the plan is of an earlier configuration."""

    DEFAULT_CSS = """
    FitMeter { border-title-color: $foreground; text-wrap: nowrap; }
    """

    def __init__(self, glyphs: Glyphs, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.border_title = "Fit"
        self.plan: Plan | None = None
        self.note = ""
        self.stale = False
        self._glyphs = glyphs

    def show(self, plan: Plan | None, note: str = "", *, stale: bool = False) -> None:
        """Draw this plan; None leaves only the note."""
        if plan is not self.plan or (note, stale) != (self.note, self.stale):
            self.plan, self.note, self.stale = plan, note, stale
            self.refresh()

    def render(self) -> Content:
        width, height = self.content_size
        title = "Fit"
        if self.plan is not None and not self.stale:
            title += f" {mark_of(verdict(self.plan.memory), self._glyphs)} {verdict_words(self.plan.memory)}"
        self.border_title = Content(title if len(title) <= width - 2 else title.partition(":")[0])
        return Content("\n").join(self.lines(width, height))

    # Lines

    def lines(self, width: int, height: int) -> list[Content]:
        """Return at most `height` lines; a note on an empty plan may be longer."""
        plan = self.plan
        if plan is None:
            return self._note_lines(width)
        tiers = plan.memory.tiers
        if height < 2 * len(tiers) + 2:
            return list(self._short(plan, width, height))
        time = list(self._time(plan, width))
        found: list[Content] = []
        for rows in range(max(len(tier.needs) for tier in tiers), -1, -1):
            found = self._note_lines(width)
            for tier in tiers:
                found += [self._tier(tier, width), self._bar(tier, width), *self._legend(tier, width, rows)]
            if len(found) + len(time) <= height:
                break
        return [*found, *time][:height] if len(found) < height else [*found[: height - 1], *time[:1]]

    def _note_lines(self, width: int) -> list[Content]:
        return self._dim(self.note, width, "$warning" if self.stale else MUTED)

    def _dim(self, text: str, width: int, style: str = MUTED) -> list[Content]:
        return [Content.styled(line, style) for line in wrap(clean(text, self._glyphs), max(1, width))]

    def _short(self, plan: Plan, width: int, height: int) -> Iterator[Content]:
        tiers = plan.memory.tiers
        if height > len(tiers):
            for tier in tiers:
                name = f"{tier.tier:<9}"
                amount = self._marked(f" {of(tier.needed_bytes, tier.free_bytes)} ", tier)
                room = width - len(name) - len(amount)
                yield Content(name) + (self._bar(tier, room) if room > 4 else Content("")) + amount
        elif height > 1:
            room = (width - 2 * (len(tiers) - 1)) // len(tiers)
            yield Content("  ").join(self._squeezed(tier, room) for tier in tiers)
        spare = height - len(tiers) - 1
        yield self._summary(plan, width, mentions_load=spare <= 0)
        if spare > 0 and plan.time is not None:
            yield from list(self._time(plan, width))[1 : 1 + spare]

    def _summary(self, plan: Plan, width: int, *, mentions_load: bool) -> Content:
        """Return the verdict and what else there is room for, the most important first."""
        if self.stale and self.note:
            return Content.styled(f"{self._glyphs.warning} {self.note}", "$warning")
        worst = verdict(plan.memory)
        line = Content.styled(
            f"{mark_of(worst, self._glyphs)} {verdict_words(plan.memory)}", VERDICT_STYLES[worst]
        )
        others = []
        if plan.time is not None:
            others.append((f"{seconds(plan.time.step_s)} a step", "bold"))
            others.append((f"{plan.time.tokens_per_s:,.0f} tokens/s", "bold"))
            if plan.busy and mentions_load:
                others.append(("measured while busy", MUTED))
        elif not self.note:
            others.append(("time not known", MUTED))
        for text, style in others:
            if len(line) + 2 + len(text) > width:
                break
            line += Content.assemble("  ", (text, style))
        room = width - len(line) - 2
        if self.note and room >= min(len(self.note), LEAST_OF_NOTE):
            line += Content.assemble("  ", (self._glyphs.cut(self.note, room), MUTED))
        return line

    def _marked(self, text: str, tier: TierNeed) -> Content:
        worst = tier_verdict(tier)
        return Content.styled(f"{text}{mark_of(worst, self._glyphs)}", VERDICT_STYLES[worst])

    def _squeezed(self, tier: TierNeed, width: int) -> Content:
        """Return a tier in a part of a line: name, bar where there is room, and its share of the free memory."""
        share = "0 free" if not tier.free_bytes else f"{tier.needed_bytes / tier.free_bytes:.0%}"
        share = ">10x" if tier.needed_bytes >= 10 * tier.free_bytes > 0 else share
        name, right = f"{tier.tier} ", self._marked(f" {share} ", tier)
        room = width - len(name) - len(right)
        line = Content(name) + (self._bar(tier, room) if room > 3 else Content("")) + right
        return line.pad_right(max(0, width - len(line)))

    def _tier(self, tier: TierNeed, width: int) -> Content:
        left = Content.assemble((tier.tier, "bold"), f" {of(tier.needed_bytes, tier.free_bytes)} free")
        worst = tier_verdict(tier)
        mark = mark_of(worst, self._glyphs)
        right = f"{mark} {gib(tier.missing_bytes)} too much" if worst == "no" else f"{mark} {worst}"
        if len(left) + 1 + len(right) > width:
            right = f"{mark} {worst}"
        return _ends(left, Content.styled(right, VERDICT_STYLES[worst]), width)

    def _bar(self, tier: TierNeed, width: int) -> Content:
        """Return each row by its letter, then the free rest; cells beyond the free memory are marked as over."""
        total = max(tier.needed_bytes, tier.free_bytes, 1)
        limit = width if tier.fits else min(width - 1, int(tier.free_bytes * width / total))
        bar = Content("")
        passed = 0
        for number, (name, size) in enumerate(_rows(tier)):
            passed += size
            cells = round(passed * width / total) - len(bar)
            bar += Content.styled(letter_of(name) * cells, ROW_STYLES[number % len(ROW_STYLES)])
        bar += Content.styled(self._glyphs.rest * (width - len(bar)), MUTED)
        return bar[:limit] + Content.styled(bar.plain[limit:], OVER_STYLE)

    def _legend(self, tier: TierNeed, width: int, rows: int) -> list[Content]:
        """Return the rows by their letters, in as many columns as there is room for; the smallest are added up."""
        needs = _rows(tier)
        columns = max(1, width // LEGEND_COLUMN)
        places = rows * columns
        shown = sorted(needs, key=lambda row: -row[1])[: places if len(needs) <= places else places - 1]
        cell = width // columns - (2 if columns > 1 else 0)
        entries = [
            _ends(
                Content.assemble((letter_of(name), ROW_STYLES[number % len(ROW_STYLES)]), f" {name}"),
                Content(gib(size)),
                cell,
            )
            for number, (name, size) in enumerate(needs)
            if (name, size) in shown
        ]
        if len(shown) < len(needs) and rows:
            rest = sum(size for row in needs if row not in shown for size in row[1:])
            more = Content.assemble(("+", MUTED), f" {len(needs) - len(shown)} more")
            entries.append(_ends(more, Content(gib(rest)), cell))
        if not rows:
            return []
        starts = range(0, len(entries), columns)
        return [Content("  ").join(entries[start : start + columns]) for start in starts]

    def _time(self, plan: Plan, width: int) -> Iterator[Content]:
        time = plan.time
        if time is None:
            yield from self._dim(f"time not known: {plan.no_time}", width)
            return
        step = Content.styled(f"{seconds(time.step_s)} a step", "bold")
        yield _ends(step, Content.styled(f"{time.tokens_per_s:,.0f} tokens/s", "bold"), width)
        if plan.busy:
            yield from self._dim("measured while busy; run `workbench probe` when idle", width)
        yield from self._dim(time.bottleneck, width)
        if plan.run is not None:
            basis = "times measured here" if time.measured else "from the machine's speeds"
            steps = f"{plan.config.train.steps:,} steps: {duration(plan.run.total_s)}, {basis}"
            yield from self._dim(steps, width)


def _rows(tier: TierNeed) -> Sequence[tuple[str, int]]:
    return sorted(tier.needs.items(), key=lambda row: _ORDER.get(row[0], len(_ORDER)))


def _ends(left: Content, right: Content, width: int) -> Content:
    """Put one at each end; the right one is left out where there is no room for both."""
    room = width - len(left) - len(right)
    return left if room < 1 else left + Content(" " * room) + right
