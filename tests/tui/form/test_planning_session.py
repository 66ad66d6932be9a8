"""Plans while somebody edits: the planner's own, as soon as model and machine are known, and without a screen."""

from __future__ import annotations

import textwrap
from dataclasses import replace
from itertools import product
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from form_host import LARGE, SMALL, PlannedMachine, shipped_model_profile

from workbench.config import RunConfig, load_config, parse_config
from workbench.errors import ConfigurationError, DoesNotFitError
from workbench.plan.fit import with_field
from workbench.plan.ground import ground_of
from workbench.plan.memory.tiers import MemoryPlan, TierNeed
from workbench.plan.planner import Planner
from workbench.profiles.machine_profile import load_profile
from workbench.system.child_process import CancelledError, ChildProcess
from workbench.tui.form import sources
from workbench.tui.form.planning import Planning, chosen_plan
from workbench.tui.form.sources import Here
from workbench.tui.form.verdict import tier_verdict, verdict, verdict_words


def silent(sentence: str) -> None:
    pass


def session(machine: PlannedMachine | None = None, preset: Path = LARGE) -> tuple[Planning, RunConfig]:
    planning, config = Planning(machine or PlannedMachine()), load_config(preset)
    planning.obtain(config, silent, Event())
    return planning, config


def planner(preset: Path = LARGE, profile: str = "desktop-32gb") -> Planner:
    return Planner(shipped_model_profile(preset), ground_of(load_profile(Path(profile))))


def with_fields(config: RunConfig, **fields: Any) -> RunConfig:
    for name, value in fields.items():
        config = with_field(config, name.replace("__", "."), value)
    return config


def test_before_anything_is_known_it_says_what_it_lacks() -> None:
    planning = Planning(PlannedMachine())
    outlook = planning.look(load_config(LARGE))
    assert outlook.plan is None
    assert outlook.lacks == {"model_profile", "ground"}


def test_what_it_lacks_it_obtains_once() -> None:
    machine = PlannedMachine()
    planning, config = session(machine)
    assert planning.look(config).plan is not None
    planning.obtain(config, silent, Event())
    assert machine.grounds == 1 and machine.asked == []


@pytest.mark.parametrize("weights", ["device", "host", "auto"])
@pytest.mark.parametrize("profile", ["desktop-32gb", "server-80gb"])
def test_the_plan_is_the_planners_own(weights: str, profile: str) -> None:
    planning, config = session(PlannedMachine(profile))
    reference = planner(profile=profile)
    for state, kept, size in product(["host", "auto"], ["exact", "half"], [10, 4]):
        wanted = with_fields(
            config, offload__weights=weights, offload__state=state, offload__state_format=kept,
            train__micro_batch_size=size,
        )  # fmt: skip
        outlook = planning.look(wanted)
        assert outlook.plan is not None
        try:
            expected = reference.plan(wanted)
        except DoesNotFitError:
            assert not outlook.plan.fits
        else:
            assert outlook.plan.as_dict() == expected.as_dict()


def test_where_auto_finds_nothing_that_fits_the_one_that_lacks_least_is_shown() -> None:
    config = with_fields(load_config(LARGE), offload__weights="auto", offload__state="auto")
    reference = planner()
    plan = chosen_plan(reference, config)
    assert not plan.fits
    for weights, state in (("device", "device"), ("device", "host"), ("host", "host")):
        other = reference.plan_fixed(with_fields(config, offload__weights=weights, offload__state=state))
        assert plan.memory.missing_bytes <= other.memory.missing_bytes


def test_another_model_needs_a_model_profile_and_the_first_one_keeps_its_own() -> None:
    machine = PlannedMachine()
    planning, config = session(machine)
    before = planning.model_profile(config)
    model = config.model.model_copy(update={"config": {**config.model.config, "n_layer": 3}})
    other = config.model_copy(update={"model": model})
    assert planning.look(other).lacks == {"model_profile"}
    planning.obtain(other, silent, Event(), take=False)
    assert planning.look(other).lacks == {"model_profile"} and machine.asked == []
    planning.obtain(other, silent, Event())
    assert planning.look(other).plan is not None
    assert planning.model_profile(config) is before
    assert [table["config"]["n_layer"] for table in machine.asked] == [3]


def test_a_default_of_the_model_written_out_needs_no_other_model_profile() -> None:
    planning, _ = session(preset=SMALL)
    text = SMALL.read_text().replace(
        '[model]\narchitecture = "gpt2"', '[model]\narchitecture = "gpt2"\npretrained = ""'
    )
    assert planning.look(parse_config(text, "")).plan is not None


def test_another_device_or_disk_needs_another_look_at_the_machine() -> None:
    planning, config = session()
    assert planning.look(with_fields(config, train__device="cuda:1")).lacks == {"ground"}
    assert planning.look(with_fields(config, offload__disk_path="/tmp")).lacks == {"ground"}


def test_a_model_profile_that_cannot_be_taken_is_a_refusal_at_the_model_until_asked_anew() -> None:
    machine = PlannedMachine()
    machine.refusal = ConfigurationError("model.config: n_embd = 4099 is no multiple of n_head = 32")
    planning, config = Planning(machine), load_config(LARGE)
    settings = {**config.model.config, "n_embd": 4099}
    config = config.model_copy(update={"model": config.model.model_copy(update={"config": settings})})
    planning.obtain(config, silent, Event())
    outlook = planning.look(config)
    assert (outlook.at, outlook.plan) == ("model.config", None)
    assert "is no multiple of n_head" in outlook.refused
    planning.forget_machine()
    machine.refusal = None
    planning.obtain(config, silent, Event())
    assert planning.look(config).plan is not None


def test_a_model_that_transformers_does_not_know_is_refused_without_a_model_profile() -> None:
    planning, config = Planning(PlannedMachine()), load_config(LARGE)
    model = config.model.model_copy(update={"architecture": "gpt22"})
    outlook = planning.look(config.model_copy(update={"model": model}))
    assert outlook.at == "model.architecture" and outlook.refused.endswith('did you mean "gpt2"?')
    assert not outlook.lacks


def test_a_machine_without_that_device_is_a_refusal_at_its_field() -> None:
    planning, config = session(PlannedMachine())
    outlook = planning.look(config := with_fields(config, train__device="cpu"))
    assert outlook.lacks == {"ground"}
    planning.obtain(config, silent, Event())
    outlook = planning.look(config)
    assert outlook.at == "train.device" and outlook.refused


def test_called_off_nothing_is_known_afterwards() -> None:
    machine = PlannedMachine()
    machine.hold()
    planning, config = Planning(machine), load_config(LARGE)
    config = config.model_copy(update={"model": config.model.model_copy(update={"config": {"n_layer": 2}})})
    cancelled = Event()
    cancelled.set()
    with pytest.raises(CancelledError):
        planning.obtain(config, silent, cancelled)
    assert planning.look(config).lacks == {"model_profile"}


def test_without_a_measured_machine_memory_is_planned_and_time_is_not() -> None:
    planning, config = session(PlannedMachine(None))
    outlook = planning.look(config)
    assert outlook.plan is not None and outlook.plan.time is None
    assert planning.is_measured(config) is False
    measured, _ = session()
    other = measured.look(config).plan
    assert other is not None and outlook.plan.memory == other.memory


def test_a_search_finds_what_the_verb_finds() -> None:
    from workbench.plan.fit import fit

    planning, config = session()
    keep = frozenset({"train.micro_batch_size", "offload.activations"})
    found, expected = planning.fit(config, keep), fit(planner(), config, keep)
    assert found is not None
    assert found.changes == expected.changes and found.plan.as_dict() == expected.plan.as_dict()
    assert Planning(PlannedMachine()).fit(config) is None


def test_fields_that_do_nothing_and_choices_of_auto_are_noted() -> None:
    planning, config = session()
    wanted = with_fields(config, offload__delay_warmup=7, offload__state="auto", offload__state_format="half")
    notes = planning.look(wanted).notes
    assert notes["offload.delay_warmup"] == 'has no effect: offload.overlap is not "delayed"'
    assert '"host"' in notes["offload.state"]
    assert notes["train.precision"] == "here this is bfloat16"
    assert "offload.delay_warmup" not in planning.look(config).notes


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


def test_the_verdict_says_what_is_missing() -> None:
    plan = session()[0].look(load_config(LARGE)).plan
    assert plan is not None
    assert verdict_words(plan.memory).startswith("no: lacks ") and "of host" in verdict_words(plan.memory)
    tight = replace(plan.memory, tiers=(TierNeed("host", {"weights": 97}, 100),))
    assert verdict_words(tight) == "tight: 3% of host is left"


def test_this_machine_is_looked_at_without_measuring_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORKBENCH_CACHE", str(tmp_path / "cache"))
    here = Here(tmp_path / "runs")
    ground = here.ground("cpu", "")
    assert ground.machine is None and ground.free.host > 0 and ground.free.device is None
    assert ground.free.disk > 0 and ground.free.disk_tier is None
    assert not (tmp_path / "cache").exists()
    with pytest.raises(ConfigurationError, match=r"offload\.disk_path .* there is no such folder"):
        here.ground("cpu", str(tmp_path / "nowhere"))


def test_what_no_placement_can_mend_has_its_sentence_at_its_field_and_no_plan() -> None:
    config = parse_config(SMALL.read_text(encoding="utf-8"), "", ["data.sequence_length=4096"])
    planning = Planning(PlannedMachine())
    planning.obtain(config, silent, Event())
    outlook = planning.look(config)
    assert outlook.plan is None and outlook.at == "data.sequence_length"
    with pytest.raises(ConfigurationError) as caught:
        Planner(shipped_model_profile(SMALL), PlannedMachine().machine).check(config)
    assert outlook.refused == str(caught.value)


def test_a_model_profile_is_asked_of_one_process_that_stays_and_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORKBENCH_CACHE", str(tmp_path / "cache"))
    model_profile = shipped_model_profile(SMALL)
    program = f"""
        import json, os, sys
        for line in sys.stdin:
            print(json.dumps({{"report": f"process {{os.getpid()}}"}}))
            print(json.dumps({{"answer": json.loads({model_profile.model_dump_json()!r})}}), flush=True)
        """
    child = ChildProcess("-c", textwrap.dedent(program))
    monkeypatch.setattr(sources, "profiling_process", lambda *, warm: child)
    here, said = Here(tmp_path / "runs"), list[str]()
    tables = [{"architecture": "gpt2", "config": {"n_layer": layers}} for layers in (1, 2)]
    try:
        for table in tables:
            assert here.take_model_profile(table, said.append, Event()) == model_profile
        monkeypatch.setattr(sources, "free_host_bytes", lambda: 1 << 30)
        assert here.ground("cpu", "").free.host > 1 << 30, "it ends before a run begins"
    finally:
        here.let_go()
    assert here.ground("cpu", "").free.host == 1 << 30
    processes = {sentence for sentence in said if sentence.startswith("process ")}
    assert len(processes) == 1 and len(said) == 4
    assert here.known_model_profile(tables[1]) == model_profile


def test_a_question_that_is_called_off_ends_as_such(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORKBENCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(sources, "profiling_process", lambda *, warm: ChildProcess("-c", "input(); input()"))
    here, cancelled = Here(tmp_path / "runs"), Event()
    try:
        with pytest.raises(CancelledError):
            here.take_model_profile({"architecture": "gpt2"}, lambda _: cancelled.set(), cancelled)
    finally:
        here.let_go()
