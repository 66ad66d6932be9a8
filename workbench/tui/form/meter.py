"""The fit meter: what a plan takes of each tier, by named rows, whether that fits, and how fast a step is.

From two lines to a whole column, by the room there is. Invariant: every number comes from the plan, and which row a
part of a bar is, is told by its letter and never by its colour alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from textwrap import wrap
from typing import TYPE_CHECKING, ClassVar

from rich.segment import Segment

from workbench.formatting import duration, gib, of, seconds
from workbench.tui.form.verdict import Verdict, tier_verdict, verdict, verdict_words
from workbench.tui.glyphs import Glyphs
from workbench.tui.panels.drawing import Line, clean, ends, keep, width_of
from workbench.tui.panels.panel import Panel

if TYPE_CHECKING:
    from workbench.plan.memory.tiers import TierNeed
    from workbench.plan.planner import Plan

ROWS: tuple[tuple[str, str], ...] = (
    ("weights", "w"),
    ("frozen weights", "f"),
    ("weight slots", "k"),
    ("master weights", "m"),
    ("exp_avg and exp_avg_sq", "v"),
    ("gradients", "g"),
    ("gradient slots", "q"),
    ("staging", "s"),
    ("activations", "a"),
    ("logits", "l"),
    ("document masks", "d"),
    ("building", "b"),
    ("allocator reserve", "r"),
    ("workspaces", "p"),
    ("runtime", "t"),
)
"""The rows of a plan in the order in which a bar stacks them, each with its letter."""
_LETTERS = dict(ROWS)
_ORDER = {name: number for number, (name, _) in enumerate(ROWS)}
COLOURS = 6
LEGEND_COLUMN = 34
PENS: dict[Verdict, str] = {"fits": "good", "tight": "warning", "no": "bad"}


def letter_of(row: str) -> str:
    """The letter that stands for a row in every bar; "c" for checkpoints, whose row names how many."""
    return _LETTERS.get(row, "c" if "checkpoint" in row else "?")


def mark_of(said: Verdict, glyphs: Glyphs) -> str:
    """The character that says the same as the colour."""
    return {"fits": glyphs.good, "tight": glyphs.warning, "no": glyphs.bad}[said]


class FitMeter(Panel, can_focus=False):
    """Shows one plan; `note` is what is going on instead of one, or beside it."""

    TITLE = "Fit"
    COMPONENT_CLASSES: ClassVar[set[str]] = {f"panel--row-{number}" for number in range(COLOURS)} | {
        "panel--over"
    }
    DEFAULT_CSS = """
    FitMeter {
        & > .panel--row-0 { color: $text; background: $primary 70%; }
        & > .panel--row-1 { color: $text; background: $secondary 70%; }
        & > .panel--row-2 { color: $text; background: $accent 60%; }
        & > .panel--row-3 { color: $text; background: $primary 35%; }
        & > .panel--row-4 { color: $text; background: $secondary 35%; }
        & > .panel--row-5 { color: $text; background: $accent 30%; }
        & > .panel--over { color: $text; background: $error 60%; text-style: bold; }
    }
    """

    def __init__(self, glyphs: Glyphs, *, id: str | None = None) -> None:
        super().__init__(glyphs, id=id, classes="-ascii" if glyphs.ascii else None)
        self.plan: Plan | None = None
        self.remark = ""
        self.stale = False

    def show(self, plan: Plan | None, remark: str = "", *, stale: bool = False) -> None:
        """Draw this plan; None leaves only the remark. `stale`: it is the plan of what was there before."""
        if plan is not self.plan or (remark, stale) != (self.remark, self.stale):
            self.plan, self.remark, self.stale = plan, remark, stale
            self.changed()

    def heading(self) -> tuple[str, ...]:
        if self.plan is None or self.stale:
            return ()
        said = verdict(self.plan.memory)
        mark = mark_of(said, self.glyphs)
        return f"{mark} {verdict_words(self.plan.memory)}", f"{mark} {said}"

    # Lines

    def lines(self, width: int, height: int) -> list[Line]:
        plan = self.plan
        if plan is None:
            return self._remark(width)
        tiers = plan.memory.tiers
        if height < 2 * len(tiers) + 2:
            return list(self._short(plan, width, height))
        remark = self._remark(width)
        time = list(self._time(plan, width))
        for rows in range(max(len(tier.needs) for tier in tiers), -1, -1):
            found = [*remark]
            for tier in tiers:
                found += [self._tier(tier, width), self._bar(tier, width)]
                found += self._legend(tier, width, rows)
            if len(found) + len(time) <= height or rows == 0:
                break
        return [*found, *time][:height] if len(found) < height else [*found[: height - 1], *time[:1]]

    def _remark(self, width: int) -> list[Line]:
        pen = "warning" if self.stale else "dim"
        return [self.write(line, pen) for line in wrap(clean(self.remark, self.glyphs), max(1, width))]

    def _short(self, plan: Plan, width: int, height: int) -> Iterator[Line]:
        tiers = plan.memory.tiers
        if height > len(tiers):
            for tier in tiers:
                yield self._one_line(tier, width)
        elif height > 1:
            room = (width - 2 * (len(tiers) - 1)) // len(tiers)
            line: Line = []
            for number, tier in enumerate(tiers):
                line += [Segment("  ")] if number else []
                line += self._squeezed(tier, room)
            yield line
        spare = height - len(tiers) - 1
        yield self._summary(plan, width, says_busy=spare <= 0)
        if spare > 0:
            yield from list(self._time(plan, width))[1 : 1 + spare] if plan.time is not None else ()

    def _summary(self, plan: Plan, width: int, *, says_busy: bool) -> Line:
        if self.stale and self.remark:
            return self.write(f"{self.glyphs.warning} {self.remark}", "warning")
        said = verdict(plan.memory)
        words = self.write(f"{mark_of(said, self.glyphs)} {verdict_words(plan.memory)}", PENS[said])
        parts = [(0, words)]
        if self.remark:
            parts.append((1, self.write(self.remark, "dim")))
        if plan.time is not None:
            parts.append((2, self.write(f"{seconds(plan.time.step_s)} a step", "strong")))
            parts.append((3, self.write(f"{plan.time.tokens_per_s:,.0f} tokens/s", "strong")))
            if plan.busy and says_busy:
                parts.append((4, self.write("measured while busy", "dim")))
        elif not self.remark:
            parts.append((2, self.write("time not known", "dim")))
        return keep(width, parts)

    def _one_line(self, tier: TierNeed, width: int) -> Line:
        said = tier_verdict(tier)
        name = self.write(f"{tier.tier:<9}")
        amount = self.write(
            f" {of(tier.needed_bytes, tier.free_bytes)} {mark_of(said, self.glyphs)}", PENS[said]
        )
        room = width - width_of([*name, *amount])
        return [*name, *self._bar(tier, max(0, room)), *amount] if room > 4 else [*name, *amount]

    def _squeezed(self, tier: TierNeed, width: int) -> Line:
        """A tier in a third of a line: its name, a bar where there is room, and how much of what is free."""
        said = tier_verdict(tier)
        share = f" {_share(tier)} {mark_of(said, self.glyphs)}"
        name = f"{tier.tier} "
        room = width - len(name) - len(share)
        bar = self._bar(tier, room) if room > 3 else []
        line = [*self.write(name), *bar, *self.write(share, PENS[said])]
        return [*line, Segment(" " * max(0, width - width_of(line)))]

    def _tier(self, tier: TierNeed, width: int) -> Line:
        said = tier_verdict(tier)
        left = [
            *self.write(tier.tier, "strong"),
            *self.write(f" {of(tier.needed_bytes, tier.free_bytes)} free"),
        ]
        mark = mark_of(said, self.glyphs)
        long = f"{mark} {gib(tier.missing_bytes)} too much" if said == "no" else f"{mark} {said}"
        right = self.write(long, PENS[said])
        if width_of(left) + 1 + width_of(right) > width:
            right = self.write(f"{mark} {said}", PENS[said])
        return ends(left, right, width)

    def _bar(self, tier: TierNeed, width: int) -> Line:
        """Each row by its letter, then what is left; a needed cell beyond what is free is marked as over."""
        if width <= 0:
            return []
        whole = max(tier.needed_bytes, tier.free_bytes, 1)
        limit = width if tier.fits else min(width - 1, int(tier.free_bytes * width / whole))
        cells: list[tuple[str, str]] = []
        passed = 0
        for number, (name, size) in enumerate(_rows(tier)):
            passed += size
            end = max(len(cells), round(passed * width / whole))
            cells += [(letter_of(name), f"row-{number % COLOURS}")] * (end - len(cells))
        cells += [(self.glyphs.rest, "dim")] * (width - len(cells))
        cells[limit:] = [(letter, "over") for letter, _ in cells[limit:]] if limit < width else []
        return _joined([Segment(letter, self.pen(pen)) for letter, pen in cells])

    def _legend(self, tier: TierNeed, width: int, rows: int) -> list[Line]:
        """The rows by their letters, in as many columns as there is room for; the smallest are added up."""
        named = _rows(tier)
        colours = {name: number % COLOURS for number, (name, _) in enumerate(named)}
        if rows == 0:
            return []
        columns = max(1, width // LEGEND_COLUMN)
        places = rows * columns
        shown = named
        if len(named) > places:
            largest = sorted(named, key=lambda row: -row[1])[: places - 1]
            rest = sum(size for name, size in named if (name, size) not in largest)
            shown = [row for row in named if row in largest] + [("", rest)]
        cell = width // columns - (2 if columns > 1 else 0)
        entries = []
        for name, size in shown:
            mark = self.write(letter_of(name), f"row-{colours[name]}") if name else self.write("+", "dim")
            left = [*mark, *self.write(f" {name or f'{len(named) - len(shown) + 1} more'}")]
            entries.append(_padded(ends(left, self.write(gib(size)), cell), cell))
        lines: list[Line] = []
        for start in range(0, len(entries), columns):
            line: Line = []
            for number, entry in enumerate(entries[start : start + columns]):
                line += [Segment("  ")] if number else []
                line += entry
            lines.append(line)
        return lines

    def _time(self, plan: Plan, width: int) -> Iterator[Line]:
        time = plan.time
        if time is None:
            yield from self.note(f"time not known: {plan.no_time}", width)
            return
        step = self.write(f"{seconds(time.step_s)} a step", "strong")
        yield ends(step, self.write(f"{time.tokens_per_s:,.0f} tokens/s", "strong"), width)
        if plan.busy:
            yield from self.note("measured on a busy machine: `workbench probe` mends it", width)
        yield from self.note(time.bottleneck, width)
        if plan.run is not None:
            basis = "times measured here" if time.measured else "from the machine's speeds"
            yield from self.note(
                f"{plan.config.train.steps:,} steps: {duration(plan.run.total_s)}, {basis}", width
            )


def _rows(tier: TierNeed) -> list[tuple[str, int]]:
    return sorted(tier.needs.items(), key=lambda row: _ORDER.get(row[0], len(_ORDER)))


def _share(tier: TierNeed) -> str:
    if not tier.free_bytes:
        return "0 free"
    share = tier.needed_bytes / tier.free_bytes
    return f"{share:.0%}" if share < 10 else ">10x"


def _padded(line: Line, width: int) -> Line:
    return [*line, Segment(" " * max(0, width - width_of(line)))]


def _joined(cells: Sequence[Segment]) -> Line:
    """Neighbours of one style as one segment."""
    line: Line = []
    for cell in cells:
        if line and line[-1].style == cell.style:
            line[-1] = Segment(line[-1].text + cell.text, cell.style)
        else:
            line.append(cell)
    return line
