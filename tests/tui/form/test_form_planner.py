"""Plans while somebody edits: the planner's own, as soon as the facts are known, and refusals at their fields."""

from __future__ import annotations

import textwrap
from itertools import product
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from form_host import LARGE, SMALL, PlannedMachine, shipped_model_profile

from workbench.config import RunConfig, load_config
from workbench.errors import ConfigurationError, DoesNotFitError
from workbench.plan.fit import fit, with_field
from workbench.plan.machine import planned_machine
from workbench.plan.planner import Planner
from workbench.profiles.named_machines import load_profile
from workbench.profiles.this_machine import Gpu
from workbench.system.child_process import CancelledError, ChildProcess
from workbench.tui.form import planner as planning
from workbench.tui.form.planner import ConfigPlanner, ThisMachine, plan_or_nearest


def reference(preset: Path = LARGE, profile: str = "desktop-32gb") -> Planner:
    return Planner(shipped_model_profile(preset), planned_machine(load_profile(Path(profile))))


def with_fields(config: RunConfig, **fields: Any) -> RunConfig:
    for name, value in fields.items():
        config = with_field(config, name.replace("__", "."), value)
    return config


def with_model(config: RunConfig, /, **settings: Any) -> RunConfig:
    return config.model_copy(update={"model": config.model.model_copy(update=settings)})


def take(planner: ConfigPlanner, config: RunConfig) -> None:
    planner.take_profile(config, lambda sentence: None, Event())


@pytest.mark.parametrize("weights", ["device", "host", "auto"])
@pytest.mark.parametrize("profile", ["desktop-32gb", "server-80gb"])
def test_the_plan_is_the_planners_own(weights: str, profile: str) -> None:
    planner, config, own = (
        ConfigPlanner(PlannedMachine(profile)),
        load_config(LARGE),
        reference(profile=profile),
    )
    for state, kept, size in product(["host", "auto"], ["exact", "half"], [10, 4]):
        wanted = with_fields(
            config, offload__weights=weights, offload__state=state, offload__state_format=kept,
            train__micro_batch_size=size,
        )  # fmt: skip
        plan = planner.plan(wanted).plan
        assert plan is not None
        try:
            expected = own.plan(wanted)
        except DoesNotFitError:
            assert not plan.fits
        else:
            assert plan.as_dict() == expected.as_dict()


def test_where_auto_finds_nothing_that_fits_the_one_that_lacks_least_is_shown() -> None:
    config = with_fields(load_config(LARGE), offload__weights="auto", offload__state="auto")
    planner = reference()
    plan = plan_or_nearest(planner, config)
    assert not plan.fits
    for weights, state in (("device", "device"), ("device", "host"), ("host", "host")):
        other = planner.plan_fixed(with_fields(config, offload__weights=weights, offload__state=state))
        assert plan.memory.missing_bytes <= other.memory.missing_bytes


def test_facts_are_asked_for_once_for_each_model_and_place() -> None:
    machine = PlannedMachine()
    planner, config = ConfigPlanner(machine), load_config(LARGE)
    other = with_model(config, config={**config.model.config, "n_layer": 3})
    same = with_model(config, revision="")
    for wanted in (config, config, same, with_fields(config, train__steps=7)):
        assert planner.plan(wanted).plan is not None
    assert machine.looks == 1 and planner.plan(other).needs_profile and not machine.asked
    take(planner, other)
    assert planner.plan(other).plan is not None and planner.plan(config).plan is not None
    assert [table["config"]["n_layer"] for table in machine.asked] == [3]
    planner.plan(with_fields(config, train__device="cuda:1"))
    planner.plan(with_fields(config, offload__disk_path="/tmp"))
    assert machine.looks == 3
    planner.forget_machine()
    assert planner.plan(other).plan is not None and machine.looks == 4 and len(machine.asked) == 1


REFUSALS = {
    "a model that transformers does not know": (
        "model.architecture",
        lambda config: with_model(config, architecture="gpt22"),
    ),
    "a device that the machine does not have": (
        "train.device",
        lambda config: with_fields(config, train__device="cpu"),
    ),
    "sequences longer than the model reads": (
        "data.sequence_length",
        lambda config: with_fields(config, data__sequence_length=4096),
    ),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_a_refusal_is_at_its_field_and_there_is_no_plan(name: str) -> None:
    field, change = REFUSALS[name]
    result = ConfigPlanner(PlannedMachine()).plan(change(load_config(SMALL)))
    assert (result.field, result.plan, result.needs_profile) == (field, None, False)
    assert result.refused.startswith(field)


def test_a_model_profile_that_fails_is_a_refusal_until_the_machine_is_forgotten() -> None:
    machine = PlannedMachine()
    machine.refusal = ConfigurationError("model.config: n_embd = 4099 is no multiple of n_head = 32")
    planner, config = ConfigPlanner(machine), load_config(LARGE)
    config = with_model(config, config={**config.model.config, "n_embd": 4099})
    take(planner, config)
    result = planner.plan(config)
    assert (result.field, result.plan, result.refused) == ("model.config", None, str(machine.refusal))
    planner.forget_machine()
    machine.refusal = None
    take(planner, config)
    assert planner.plan(config).plan is not None


def test_a_cancelled_model_profile_leaves_nothing() -> None:
    machine, cancelled = PlannedMachine(), Event()
    machine.hold()
    cancelled.set()
    planner, config = ConfigPlanner(machine), with_model(load_config(LARGE), config={"n_layer": 2})
    with pytest.raises(CancelledError):
        planner.take_profile(config, lambda sentence: None, cancelled)
    assert planner.plan(config).needs_profile


def test_without_a_measured_machine_memory_is_planned_and_time_is_not() -> None:
    planner, config = ConfigPlanner(PlannedMachine(None)), load_config(LARGE)
    plan, measured = planner.plan(config).plan, ConfigPlanner(PlannedMachine()).plan(config).plan
    assert plan is not None and measured is not None
    assert plan.time is None and not planner.is_measured(config)
    assert plan.memory == measured.memory


def test_a_search_finds_the_same_as_the_command() -> None:
    planner, config = ConfigPlanner(PlannedMachine()), load_config(LARGE)
    keep = frozenset({"train.micro_batch_size", "offload.activations"})
    found, expected = planner.fit(config, keep), fit(reference(), config, keep)
    assert found.changes == expected.changes and found.plan.as_dict() == expected.plan.as_dict()
    with pytest.raises(ConfigurationError):
        planner.fit(with_model(config, config={"n_layer": 2}))


def test_fields_without_effect_and_values_of_auto_are_noted() -> None:
    planner, config = ConfigPlanner(PlannedMachine()), load_config(LARGE)
    changes = {"offload__delay_warmup": 7, "offload__state": "auto", "offload__state_format": "half"}
    notes = planner.plan(with_fields(config, **changes)).notes
    assert notes["offload.delay_warmup"].startswith("has no effect: ")
    assert '"host"' in notes["offload.state"] and "bfloat16" in notes["train.precision"]
    assert "offload.delay_warmup" not in planner.plan(config).notes


def test_this_machine_is_looked_at_without_measuring_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORKBENCH_CACHE", str(tmp_path / "cache"))
    here = ThisMachine(tmp_path / "runs")
    ground = here.machine("cpu", "")
    assert ground.profile is None and ground.free.host > 0 and ground.free.device is None
    assert ground.free.disk > 0 and ground.free.disk_tier is None
    assert not (tmp_path / "cache").exists()
    with pytest.raises(ConfigurationError, match=r"offload\.disk_path .* there is no such folder"):
        here.machine("cpu", str(tmp_path / "nowhere"))


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
    monkeypatch.setattr(planning, "profiling_process", lambda *, warm: child)
    here, said = ThisMachine(tmp_path / "runs"), list[str]()
    tables = [{"architecture": "gpt2", "config": {"n_layer": layers}} for layers in (1, 2)]
    try:
        for table in tables:
            assert here.take_model_profile(table, said.append, Event()) == model_profile
        monkeypatch.setattr("workbench.plan.machine.free_host_bytes", lambda: 1 << 30)
        assert here.machine("cpu", "").free.host > 1 << 30, "it ends before a run begins"
    finally:
        here.stop_profiler()
    assert here.machine("cpu", "").free.host == 1 << 30
    processes = {sentence for sentence in said if sentence.startswith("process ")}
    assert len(processes) == 1 and len(said) == 4
    assert here.known_model_profile(tables[1]) == model_profile


def test_a_question_that_is_called_off_ends_as_such(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORKBENCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(planning, "profiling_process", lambda *, warm: ChildProcess("-c", "input(); input()"))
    here, cancelled = ThisMachine(tmp_path / "runs"), Event()
    try:
        with pytest.raises(CancelledError):
            here.take_model_profile({"architecture": "gpt2"}, lambda _: cancelled.set(), cancelled)
    finally:
        here.stop_profiler()


@pytest.mark.parametrize("has_bfloat16", [False, True])
def test_a_gpu_that_was_not_measured_is_planned_by_what_its_driver_says(
    has_bfloat16: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORKBENCH_CACHE", str(tmp_path / "cache"))
    gpu = Gpu("a GPU", 24 << 30, 20 << 30, "1.0", has_bfloat16)
    for module in ("workbench.plan.machine", "workbench.profiles.this_machine"):
        monkeypatch.setattr(f"{module}.visible_gpus", lambda: [gpu])
    ground = ThisMachine(tmp_path).machine("cuda:0", "")
    assert (ground.free.device, ground.has_bfloat16, ground.profile) == (20 << 30, has_bfloat16, None)
    with pytest.raises(ConfigurationError, match=r'train\.device = "cuda:1": this machine has no such GPU'):
        ThisMachine(tmp_path).machine("cuda:1", "")
