"""What a plan looks like, and what stands in `plan.json` beside it."""

from __future__ import annotations

import json
import math
import re

import pytest
from synthetic import gpt2, machine

from workbench.config import load_config, parse_config, to_toml
from workbench.formatting import in_sentence, seconds
from workbench.plan.machine import planned_machine
from workbench.plan.memory import TierNeed
from workbench.plan.outcome import compare
from workbench.plan.planner import Plan, Planner
from workbench.plan.report import bar, plan_text
from workbench.presets import changed_preset, find_preset


@pytest.fixture(scope="module")
def plan() -> Plan:
    config = load_config(find_preset("gpt2-10b"), ["offload.state_format=compact"])
    return Planner(gpt2(50, 4096), planned_machine(machine(gpu_gib=31))).plan(config)


def test_a_bar_gives_each_row_its_share_and_leaves_what_is_free() -> None:
    tier = TierNeed("host", {"weights": 50, "state": 25}, 100)
    assert bar(tier, 20) == "[aaaaaaaaaabbbbb.....]"


def test_a_bar_of_what_does_not_fit_shows_where_the_tier_ends() -> None:
    tier = TierNeed("host", {"weights": 150, "state": 50}, 100)
    assert bar(tier, 20) == "[aaaaaaaaaa|aaaaabbbbb]"


def test_the_text_names_every_row_lane_and_the_bottleneck(plan: Plan) -> None:
    text = plan_text(plan)
    assert plan.time is not None
    for tier in plan.memory.tiers:
        for name in tier.needs:
            assert name in text
    assert "10,279,239,680 parameters on invented: it fits" in text
    assert "the bottleneck" in text
    assert "1,000 steps: " in text
    assert "TB written a day" in text
    assert "other programs" not in text
    assert text.isascii()


def test_a_plan_says_what_its_speeds_are_worth_and_names_the_machine_within_its_sentence() -> None:
    there = machine(gpu_gib=31).model_copy(update={"name": "A desktop with a card", "busy_cores": 3.0})
    small = load_config(find_preset("quickstart"), ["checkpoint.every=0"])
    made = Planner(gpt2(2, 64, 257, 128), planned_machine(there)).plan(small)
    assert in_sentence("AMD EPYC 9555, 8 cores") == "AMD EPYC 9555, 8 cores"
    lines = plan_text(made).splitlines()
    assert "parameters on a desktop with a card: it fits" in lines[0]
    (warning,) = (line for line in lines if "used 3.0 of" in line and "`workbench probe`" in line)
    assert made.as_dict()["busy"] == warning


def test_of_epochs_it_is_told_that_the_steps_are_not_known_yet() -> None:
    config = load_config(find_preset("gpt2-10b"), ["offload.state_format=compact", "train.epochs=2"])
    text = plan_text(Planner(gpt2(50, 4096), planned_machine(machine(gpu_gib=31))).plan(config))
    assert "train.epochs = 2: the number of steps depends on the text; the run prints it at its start" in text


def test_an_evaluation_is_of_whole_rows_and_of_one_at_least() -> None:
    def evaluations_s(tokens: int) -> float:
        small = load_config(find_preset("quickstart"), [f"evaluate.tokens={tokens}"])
        run = Planner(gpt2(2, 64, 257, 128), planned_machine(machine(gpu_gib=31))).plan(small).run
        assert run is not None
        return run.evaluations_s

    assert evaluations_s(1) == evaluations_s(128) == evaluations_s(255) > 0
    assert evaluations_s(256) == pytest.approx(2 * evaluations_s(128))


def test_the_plan_as_data_survives_json_and_adds_up(plan: Plan) -> None:
    data = json.loads(json.dumps(plan.as_dict()))
    for tier in data["memory"]["tiers"]:
        assert tier["needed_bytes"] == sum(tier["needs"].values())
    assert data["time"]["tokens_per_s"] == pytest.approx(10 * 1024 / data["time"]["step_s"])
    assert data["run"]["total_s"] >= data["run"]["steps_s"] == pytest.approx(1000 * data["time"]["step_s"])


def test_a_short_wait_is_told_in_milliseconds() -> None:
    """Nothing that is worth a sentence is 0.00 s."""
    small = load_config(find_preset("quickstart"))
    time = Planner(gpt2(2, 64, 257, 128), planned_machine(machine(gpu_gib=31))).plan(small).time
    assert time is not None and time.waited_s > 0.1 * time.step_s
    assert re.search(r"\d ms of it for this lane", time.bottleneck)
    assert "0.00" not in time.bottleneck


def test_outcome_rows_hold_what_both_sides_have(plan: Plan) -> None:
    assert plan.time is not None
    host = next(tier for tier in plan.memory.tiers if tier.tier == "host")
    measured = {"host_peak_bytes": host.needed_bytes // 2, "step_s": 2 * plan.time.step_s}
    rows = {row.name: row for row in compare({**plan.as_dict(), "measured": measured})}
    assert set(rows) == {"host memory", "step"}
    assert rows["host memory"].factor == pytest.approx(0.5, abs=1e-6)
    assert "0.50 times the planned" in rows["host memory"].text()
    assert rows["step"].factor == pytest.approx(2)
    planned = plan.time.step_s
    for factor, words in (
        (2.4, "2.4 times slower than planned"),
        (0.5, "2.0 times faster than planned"),
        (1.01, "as planned"),
    ):
        row = compare({**plan.as_dict(), "measured": {"step_s": factor * planned}})[0]
        assert f", {words} ({seconds(planned)})" in row.text()


@pytest.mark.parametrize(
    "damaged",
    [
        {},
        {"measured": 3},
        {"memory": [], "measured": {"host_peak_bytes": 5}},
        {"time": 1, "measured": {"step_s": "x"}},
        {"memory": {"tiers": None}, "measured": {"host_peak_bytes": 5}},
        {"memory": {"tiers": 3}, "measured": {"host_peak_bytes": 5}},
        {"time": {"step_s": math.inf}, "measured": {"step_s": 1.0}},
    ],
)
def test_a_damaged_plan_file_gives_no_rows_and_no_error(damaged: dict[str, object]) -> None:
    assert compare(damaged) == []


def test_a_changed_preset_keeps_comments_and_says_what_it_should() -> None:
    path = find_preset("gpt2-10b")
    before = load_config(path)
    after = load_config(
        path,
        [
            "offload.state_format=compact",
            "train.micro_batch_size=5",
            "train.gradient_accumulation=2",
            "model.config.n_layer=40",
        ],
    )
    text = changed_preset(path.read_text(), before, after)
    assert to_toml(parse_config(text, "changed")) == to_toml(after)
    assert "# exact, half or compact" in text
    assert "# handed to the architecture's own configuration class" in text
