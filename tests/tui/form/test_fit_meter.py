"""The meter says the plan's own numbers in any room, and needs no colour for it."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from form_host import LARGE, PlannedMachine, large_lacks
from textual.app import App, ComposeResult

from workbench.config import load_config
from workbench.plan.fit import with_field
from workbench.plan.memory import MemoryPlan, TierNeed
from workbench.plan.planner import Plan
from workbench.tui.form.meter import LETTERS, FitMeter, letter_of, tier_verdict, verdict, verdict_words
from workbench.tui.form.planner import ConfigPlanner
from workbench.tui.glyphs import BLOCKS, PLAIN, Glyphs


def plan_of(profile: str | None = "desktop-32gb", **fields: object) -> Plan:
    config = load_config(LARGE)
    for name, value in fields.items():
        config = with_field(config, name.replace("__", "."), value)
    plan = ConfigPlanner(PlannedMachine(profile)).plan(config).plan
    assert plan is not None
    return plan


PLANS = {
    "no": plan_of(),
    "fits": plan_of(offload__state_format="compact"),
    "host": plan_of(offload__weights="host", offload__activations="host"),
    "unmeasured": plan_of(None),
}


class Shown(App[None]):
    def __init__(self, plan: Plan | None, glyphs: Glyphs, note: str = "", stale: bool = False) -> None:
        super().__init__()
        self.meter = FitMeter(glyphs)
        self.given = plan, note, stale

    def compose(self) -> ComposeResult:
        yield self.meter

    def on_mount(self) -> None:
        plan, note, stale = self.given
        self.meter.show(plan, note, stale=stale)


def lines_of(
    plan: Plan | None, width: int, height: int, glyphs: Glyphs = BLOCKS, note: str = "", stale: bool = False
) -> list[str]:
    found: list[str] = []

    async def scenario() -> None:
        app = Shown(plan, glyphs, note, stale)
        async with app.run_test():
            lines = app.meter.lines(width, height)
            assert all(line.cell_length <= max(width, 40) for line in lines)
            found.extend(line.plain for line in lines)

    asyncio.run(scenario())
    return found


def test_every_row_has_a_letter_of_its_own() -> None:
    assert len(set(LETTERS.values())) == len(LETTERS)
    for plan in PLANS.values():
        for tier in plan.memory.tiers:
            found = [letter_of(name) for name in tier.needs]
            assert "?" not in found and len(set(found)) == len(found), tier.needs


@pytest.mark.parametrize("name", PLANS)
@pytest.mark.parametrize("size", [(20, 3), (58, 1), (58, 2), (78, 4), (36, 20), (60, 40), (100, 12)])
def test_any_room_is_enough(name: str, size: tuple[int, int]) -> None:
    lines = lines_of(PLANS[name], *size)
    assert 0 < len(lines) <= size[1]


@pytest.mark.parametrize("size", [(78, 4), (78, 6), (48, 40)])
def test_speeds_of_a_busy_machine_are_called_so_once(size: tuple[int, int]) -> None:
    text = " ".join(lines_of(replace(PLANS["fits"], busy="others were busy"), *size))
    assert text.count("busy") == 1
    assert "busy" not in " ".join(lines_of(PLANS["fits"], *size))


def test_in_plain_mode_all_of_it_is_ascii() -> None:
    for size in ((58, 2), (78, 4), (60, 40)):
        assert all(line.isascii() for line in lines_of(PLANS["no"], *size, PLAIN))


def test_with_room_every_row_of_every_tier_is_named_with_its_size() -> None:
    text = "\n".join(lines_of(PLANS["no"], 60, 60))
    for tier in PLANS["no"].memory.tiers:
        assert tier.tier in text
        for name, size in tier.needs.items():
            assert f"{letter_of(name)} {name}" in text
            assert f"{size / (1 << 30):,.2f} GiB" in text or f"{size / (1 << 20):,.1f} MiB" in text


def test_it_says_what_is_missing_how_fast_and_why() -> None:
    plan = PLANS["no"]
    assert plan.time is not None
    text = " ".join("\n".join(lines_of(plan, 60, 60)).split())
    assert f"{plan.memory.missing_bytes / (1 << 30):.2f} GiB too much" in text
    assert f"{plan.time.tokens_per_s:,.0f} tokens/s" in text
    assert plan.time.bottleneck in text
    (short,) = lines_of(plan, 100, 1)
    assert f"no: {large_lacks()}" in short and "tokens/s" in short


def test_what_is_over_is_beyond_the_part_that_is_there() -> None:
    host = next(line for line in lines_of(PLANS["no"], 78, 4) if line.startswith("host"))
    _, tier, _ = PLANS["no"].memory.tiers
    sizes = f"{tier.needed_bytes / (1 << 30):.1f} of {tier.free_bytes / (1 << 30):.1f} GiB"
    assert BLOCKS.rest not in host and f"{sizes} ✗" in host
    device = next(line for line in lines_of(PLANS["no"], 78, 4) if line.startswith("device"))
    assert BLOCKS.rest in device and "✓" in device


def test_a_note_takes_no_figure_from_a_short_plan() -> None:
    note = "on a desktop with a card of a long name; F7: this machine"
    for width, end in ((78, "on a desktop with a card"), (60, "on a desktop")):
        (short,) = lines_of(PLANS["fits"], width, 1, note=note)
        assert "a step" in short and "tokens/s" in short and end in short and len(short) <= width


def test_a_plan_of_before_is_called_so_and_gives_no_verdict() -> None:
    text = "\n".join(lines_of(PLANS["no"], 78, 4, note="there are problems", stale=True))
    assert "! there are problems" in text and "lacks" not in text


def test_an_unmeasured_machine_has_memory_and_says_how_to_get_the_time() -> None:
    text = " ".join(" ".join(lines_of(PLANS["unmeasured"], 60, 40)).split())
    assert "GiB too much" in text and "time not known" in text and "workbench probe" in text


@pytest.mark.parametrize(
    ("needed", "free", "expected"),
    [
        (0, 0, "fits"),
        (94, 100, "fits"),
        (95, 100, "fits"),
        (96, 100, "tight"),
        (100, 100, "tight"),
        (101, 100, "no"),
    ],
)
def test_less_than_a_twentieth_left_is_tight(needed: int, free: int, expected: str) -> None:
    tier = TierNeed("host", {"weights": needed}, free)
    assert tier_verdict(tier) == expected
    memory = MemoryPlan(1, (TierNeed("device", {"weights": 1}, 100), tier))
    assert verdict(memory) == expected


def test_the_verdict_has_the_missing_bytes_or_the_share_that_is_left() -> None:
    memory = PLANS["no"].memory
    assert verdict_words(memory) == f"no: {large_lacks()}"
    tight = replace(memory, tiers=(TierNeed("host", {"weights": 97}, 100),))
    assert verdict_words(tight) == "tight: 3% of host is left"
