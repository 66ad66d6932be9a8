"""A plan for several ranks: the state once in all, a machine's memory for all of its ranks, and the exchange's time."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from rank_processes import RankProcesses
from synthetic import gpt2, machine, workload
from tiny_training import build_engine

from workbench.cli import main
from workbench.config import RunConfig, load_config
from workbench.engine.devices.device import CpuDevice
from workbench.layout import Layout
from workbench.plan.fit import fit
from workbench.plan.machine import planned_machine
from workbench.plan.memory import EngineNeeds
from workbench.plan.planner import Plan, Planner
from workbench.plan.rates import Rates
from workbench.plan.report import next_gpu_line, plan_text
from workbench.plan.step_time import step_time
from workbench.presets import find_preset
from workbench.profiles.machine_profile import MachineProfile, PeersProfile

STATE = ("master weights", "exp_avg and exp_avg_sq")
MODEL = gpt2(50, 4096)


def peers(gpu: float = 200e9, network: float = 20e9, gpus: int = 8) -> PeersProfile:
    return PeersProfile(gpus=gpus, gpu_bytes_per_s=gpu, network_bytes_per_s=network, exchange_s=40e-6)


def server(**changes: Any) -> MachineProfile:
    return machine(host_gib=900).model_copy(update={"peers": peers(**changes)})


def config(gpus: int | str, **offload: Any) -> RunConfig:
    made = load_config(find_preset("gpt2-10b"), [f"parallel.gpus={gpus}", "train.gradient_clipping=0"])
    return made.model_copy(update={"offload": made.offload.model_copy(update=offload)})


def planned(gpus: int, profile: MachineProfile | None = None, **offload: Any) -> Plan:
    return Planner(MODEL, planned_machine(profile or server())).plan(config(gpus, **offload))


def needs(plan: Plan) -> dict[str, dict[str, int]]:
    return {tier.tier: tier.needs for tier in plan.memory.tiers}


@pytest.mark.parametrize("gpus", [2, 8])
def test_a_machine_holds_the_state_once_whatever_its_gpus(gpus: int) -> None:
    alone, shared = needs(planned(1)), needs(planned(gpus))
    for name in STATE:
        assert shared["host"][name] == pytest.approx(alone["host"][name], rel=1e-3)
    assert shared["host"]["runtime"] == gpus * alone["host"]["runtime"]
    assert shared["device"]["weights"] == alone["device"]["weights"]


def test_more_machines_hold_a_part_each() -> None:
    one, four = needs(planned(8)), needs(planned(32))
    for name in STATE:
        assert four["host"][name] == pytest.approx(one["host"][name] / 4, rel=1e-3)


def memory_of(rank: int, size: int, options: dict[str, Any]) -> tuple[dict[str, dict[str, int]], Layout]:
    model, engine = build_engine(device=CpuDevice(options.pop("shared_memory")), **options)
    with engine:
        ids = torch.arange(32).reshape(2, 16)
        engine.backward(model(input_ids=ids, labels=ids, use_cache=False).loss)
        engine.step()
        engine.wait()
        return engine.memory(), engine.layout


@pytest.mark.parametrize("overlap", ["exact", "delayed"])
@pytest.mark.parametrize("weights", ["device", "host"])
def test_ranks_hold_what_is_planned(weights: str, overlap: str, tmp_path: Path) -> None:
    """All ranks together: a small chunk has one owner, and a plan counts equal parts."""
    shared_memory = weights == "device"
    options = {"precision": "fp32", "weights": weights, "state": "host", "chunk_bytes": 1 << 17}
    options |= {"shared_memory": shared_memory, "overlap": overlap}
    processes = RankProcesses(2, tmp_path)
    try:
        found = processes.run(memory_of, options)
    finally:
        processes.kill()
    work = workload(
        shared_memory=shared_memory,
        weights=weights,
        overlap=overlap,
        precision="float32",
        chunk_bytes=1 << 17,
        ranks=2,
        local_ranks=2,
        micro_batch_size=2,
    )
    plan = EngineNeeds(found[0][1], work).memory_breakdown()
    entries = [*(("host", name) for name in STATE), ("host", "gradients"), ("device", "weights")]
    # Older weights, which a delayed engine's forward reads.
    apart = weights == "host" and overlap == "delayed"
    for tier, name in [*entries, ("host", "weights")] if apart else entries:
        held = sum(memory[tier].get(name, 0) for memory, _ in found)
        assert 0 < held == pytest.approx(2 * plan[tier][name], rel=1e-3), name


def test_updates_ahead_of_the_verdict_are_planned_for_the_share_of_each_rank() -> None:
    """All ranks together have records for the model once, and the update's time hides behind backward."""
    with_clipping = ["train.gradient_clipping=1.0", 'offload.weights="device"', 'offload.state="host"']
    plans = {}
    for gpus in (1, 8):
        made = load_config(find_preset("gpt2-10b"), [f"parallel.gpus={gpus}", *with_clipping])
        plans[gpus] = Planner(MODEL, planned_machine(server(gpu=1e15))).plan(made)
        assert plans[gpus].speculation == 1.0
    records = [needs(plan)["host"]["records to undo"] for plan in plans.values()]
    assert records[1] == pytest.approx(records[0], rel=1e-3)
    layout, work = MODEL.layout("bfloat16", 16 << 20, "exact", 0.0), workload(gradient_clipping=1.0)
    exposed = []
    for speculation in (0.0, 1.0):
        of_eight = replace(work, ranks=8, local_ranks=8, speculation=speculation)
        time = step_time(layout, MODEL, of_eight, Rates(server(gpu=1e15), "auto", 8, 8))
        exposed.append(sum(each.exposed_s for lane, each in time.lanes.items() if lane.value == "update"))
    assert exposed[1] < 0.5 * exposed[0]


def seconds(gpus: int, profile: MachineProfile) -> float:
    plan = planned(gpus, profile)
    assert plan.time is not None
    return plan.time.step_s


def test_eight_gpus_on_fast_links_take_eight_times_the_tokens_in_no_more_time() -> None:
    one, eight = planned(1).time, planned(8, server(gpu=1e15)).time
    assert one is not None and eight is not None
    assert eight.tokens == 8 * one.tokens
    assert eight.step_s < 1.02 * one.step_s


def test_a_slow_network_is_named_as_the_bottleneck() -> None:
    slow = planned(16, server(network=0.5e9)).time
    assert slow is not None and slow.bottleneck.startswith("the exchange between ranks is the bottleneck")
    assert seconds(16, server(network=0.5e9)) > 2 * seconds(16, server(network=1e15))
    assert seconds(8, server(network=0.5e9)) == seconds(8, server(network=1e15))


def test_an_exchange_takes_what_crosses_each_link() -> None:
    """Between machines sums in fp32 cross the network, and new weights, once each."""
    rates = Rates(server(), "auto", ranks=16, local=8)
    assert rates.reduce_s(1 << 30, 2 << 30) == (7 / 8 / 200e9 + 2 * 8 / 16 / 20e9) * (1 << 30)
    assert Rates(server(), "auto", ranks=8, local=8).reduce_s(1 << 30, 2 << 30) == 7 / 8 / 200e9 * (1 << 30)
    # Where a machine has fewer ranks than the others, gradients cross the network once for each.
    assert Rates(server(), "auto", ranks=12, local=8).reduce_s(1 << 30, 2 << 30) == 8 * 4 / 12 / 20e9 * (
        1 << 30
    )
    assert rates.gather_s(1 << 30) == max(7 / 16 / 200e9, 8 / 16 / 20e9) * (1 << 30)


def test_ranks_of_one_machine_share_its_memory_bandwidth() -> None:
    """Each updates an eighth, and gets an eighth of the channels."""
    layout, work = MODEL.layout("bfloat16", 16 << 20, "exact", 0.0), workload(gradient_clipping=1.0)
    profile, updates = server(gpu=1e15), []
    for ranks in (1, 8):
        time = step_time(
            layout,
            MODEL,
            replace(work, ranks=ranks, local_ranks=ranks),
            Rates(profile, "auto", ranks, ranks),
        )
        updates.append(next(each.busy_s for lane, each in time.lanes.items() if lane.value == "update"))
    assert updates[1] == pytest.approx(updates[0], rel=0.05)


@pytest.mark.parametrize("weights", ["host", "disk"])
def test_weights_off_the_devices_are_there_once_for_all_ranks(weights: str) -> None:
    """On the host they are the upper half of the master weights; on disk all of the state is beside them."""
    options = {"weights": weights, "state": weights}
    alone, eight, sixteen = (needs(planned(gpus, **options)) for gpus in (1, 8, 16))
    for machines, found in ((1, eight), (2, sixteen)):
        assert found["device"]["weight slots"] == alone["device"]["weight slots"]
        assert "weights" not in found["host"]
        held = found[weights]["master weights"]
        assert held * machines == pytest.approx(alone[weights]["master weights"], rel=1e-2)


def test_two_links_bring_half_of_a_block_each() -> None:
    busy = []
    for gpus in (1, 2):
        plan = planned(gpus, server(gpu=1e15), weights="host")
        assert plan.time is not None
        busy.append(next(each.busy_s for lane, each in plan.time.lanes.items() if lane.value == "upload"))
    assert busy[1] < 0.6 * busy[0]


def test_a_slow_network_between_machines_is_what_fetches_wait_for() -> None:
    slow, fast = (planned(16, server(network=speed), weights="host").time for speed in (2e9, 1e15))
    assert slow is not None and fast is not None
    assert slow.step_s > 2 * fast.step_s


def test_a_search_chooses_the_number_of_gpus_for_the_same_sequences_a_step() -> None:
    slow = machine(host_gib=900).model_copy(update={"peers": peers(gpu=1e8, gpus=4)})
    for profile, gpus in ((server(gpus=4), 4), (slow, 1)):
        found = fit(Planner(MODEL, planned_machine(profile)), config("auto"))
        assert found.plan.config.parallel.gpus == gpus
        train = found.plan.config.train
        assert (
            gpus * train.micro_batch_size * train.gradient_accumulation
            == 4 * config(1).train.micro_batch_size
        )


def test_the_words_say_what_a_rank_needs_and_what_one_more_brings(capsys: pytest.CaptureFixture[str]) -> None:
    plan = planned(8)
    text = plan_text(plan)
    assert "8 ranks, 8 on it; a rank needs " in text and "\n  communicate" in text
    more = Planner(MODEL, planned_machine(server())).next_gpu(plan)
    assert more is not None and next_gpu_line(plan, more).startswith("one GPU more, on another machine: ")
    assert main(["plan", "gpt2-10b", "--machine", "server-80gb", "--gpus", "2"]) == 0
    out = capsys.readouterr().out
    assert "2 ranks, 2 on it" in out and "one GPU more: " in out
