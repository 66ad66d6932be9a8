"""What a run needs is counted as the engine lays it out, and what the machine has is read within its limits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_training import SETTINGS, build_engine

from workbench.config import load_config
from workbench.engine.discovery import find_shards, lay_out
from workbench.errors import DoesNotFitError
from workbench.model.build import build_on_meta, model_config
from workbench.plan import machine
from workbench.plan.memory import MemoryPlan, ModelShape, Workload, plan_memory
from workbench.presets import find_preset
from workbench.training.preparation import prepare_run

GIB = 1 << 30


def plan(**changes: Any) -> MemoryPlan:
    dtype = changes.pop("dtype", torch.float32)
    state_format = changes.pop("state_format", "exact")
    free = {"free_host_bytes": GIB, "free_device_bytes": None, "free_disk_bytes": GIB}
    free |= {name: changes.pop(name) for name in list(changes) if name in free}
    work: dict[str, Any] = {
        "state": "host",
        "shared_memory": free["free_device_bytes"] is None,
        "gradient_accumulation": 1,
        "micro_batch_size": 2,
        "sequence_length": 16,
        "activation_checkpointing": True,
        "checkpoints_kept": 2,
        "compute_dtype": str(dtype).removeprefix("torch."),
        **changes,
    }
    shards = find_shards(build_on_meta(model_config("gpt2", dict(SETTINGS))))
    layout = lay_out(shards, dtype, 1 << 20, state_format)
    return plan_memory(layout, ModelShape(16, 2, 257), Workload(**work), **free)


def needs(plan: MemoryPlan) -> dict[str, dict[str, int]]:
    return {tier.tier: tier.needs for tier in plan.tiers}


@pytest.mark.parametrize("state_format", ["exact", "half", "compact"])
@pytest.mark.parametrize(("dtype", "precision"), [(torch.float32, "fp32"), (torch.bfloat16, "bf16")])
def test_weights_and_state_are_the_bytes_that_the_engine_holds(
    dtype: torch.dtype, precision: str, state_format: str
) -> None:
    model, engine = build_engine(precision=precision, chunk_bytes=1 << 20, state_format=state_format)
    with engine:
        state = sum(tensor.numel() * tensor.element_size() for _, tensor in engine.state())
    host = needs(plan(dtype=dtype, state_format=state_format))["host"]
    assert host["weights"] + host.get("master weights", 0) + host["exp_avg and exp_avg_sq"] == state
    del model


def test_what_lies_on_the_device_and_what_on_the_host_follows_the_placement() -> None:
    split = needs(plan(dtype=torch.bfloat16, free_device_bytes=GIB, shared_memory=False))
    assert {"weights", "gradient slots", "logits"} <= split["device"].keys()
    assert {"master weights", "exp_avg and exp_avg_sq", "gradients"} <= split["host"].keys()
    beside = needs(plan(dtype=torch.bfloat16, free_device_bytes=GIB, shared_memory=False, state="device"))
    assert {"weights", "master weights", "exp_avg and exp_avg_sq", "gradients"} <= beside["device"].keys()
    assert set(beside["host"]) == {"runtime"}


def test_accumulated_gradients_take_four_bytes_where_they_wait() -> None:
    split = needs(
        plan(dtype=torch.bfloat16, free_device_bytes=GIB, shared_memory=False, gradient_accumulation=2)
    )
    assert split["host"]["accumulated gradients"] * 2 == split["host"]["exp_avg and exp_avg_sq"]


def test_checkpointing_and_smaller_batches_lower_the_activations() -> None:
    name = "activations (estimated)"
    less = needs(plan())["host"][name]
    assert needs(plan(activation_checkpointing=False))["host"][name] > less
    assert needs(plan(micro_batch_size=4))["host"][name] == 2 * less


def test_a_tier_that_lacks_a_byte_does_not_fit_and_says_how_much_is_missing() -> None:
    enough = plan().tiers[0].needed_bytes
    assert plan(free_host_bytes=enough).fits
    short = plan(free_host_bytes=enough - 1)
    assert not short.fits
    assert "host: does not fit" in short.table() and "missing" in short.table()
    assert not plan(free_disk_bytes=1000).fits


def test_the_ten_billion_preset_is_refused_with_every_row_of_its_table(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from workbench.training import preparation

    monkeypatch.setattr(preparation, "free_host_bytes", lambda: 16 * GIB)
    monkeypatch.setattr(preparation, "free_disk_bytes", lambda path: 64 * GIB)
    config = load_config(find_preset("gpt2-10b"), ["train.device=cpu"])
    with pytest.raises(DoesNotFitError) as refusal:
        prepare_run(config, tmp_path, pytest.fail)
    table = str(refusal.value)
    assert refusal.value.exit_code == 3
    assert "10,279,239,680 parameters" in table
    rows = [line.strip().rsplit("  ", 1)[0].strip() for line in table.splitlines() if line.startswith("  ")]
    assert rows == [
        *("weights", "exp_avg and exp_avg_sq", "gradients", "activations (estimated)", "logits", "runtime"),
        *("needed", "free", "missing"),
        *("2 + 1 checkpoints", "needed", "free", "missing"),
    ]
    assert "host: does not fit" in table and "disk: does not fit" in table
    assert not list(tmp_path.iterdir())


@pytest.fixture
def cgroup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with 64 GiB available, whose cgroups lie in a folder of ours."""
    import psutil

    monkeypatch.setattr(machine, "CGROUP", tmp_path / "cgroup")
    monkeypatch.setattr(machine, "PROC_CGROUP", tmp_path / "proc")
    monkeypatch.setattr(psutil, "virtual_memory", lambda: type("M", (), {"available": 64 * GIB})())
    return tmp_path


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


def test_without_a_cgroup_what_is_available_is_free(cgroup: Path) -> None:
    assert machine.free_host_bytes() == 64 * GIB


def test_a_limit_of_version_two_counts_without_the_page_cache(cgroup: Path) -> None:
    write(
        cgroup,
        {
            "proc": "0::/a/b\n",
            "cgroup/a/b/memory.max": f"{8 * GIB}\n",
            "cgroup/a/b/memory.current": f"{6 * GIB}\n",
            "cgroup/a/b/memory.stat": f"anon 1\nactive_file 5\ninactive_file {2 * GIB}\n",
        },
    )
    assert machine.free_host_bytes() == 4 * GIB


def test_the_narrowest_limit_on_the_way_up_counts(cgroup: Path) -> None:
    write(
        cgroup,
        {
            "proc": "0::/a/b\n",
            "cgroup/a/b/memory.max": "max\n",
            "cgroup/a/b/memory.current": "5\n",
            "cgroup/a/memory.max": f"{3 * GIB}\n",
            "cgroup/a/memory.current": f"{GIB}\n",
        },
    )
    assert machine.free_host_bytes() == 2 * GIB


def test_a_limit_of_version_one_counts(cgroup: Path) -> None:
    write(
        cgroup,
        {
            "proc": "12:cpu,cpuacct:/x\n5:memory:/docker/1\n",
            "cgroup/memory/docker/1/memory.limit_in_bytes": f"{2 * GIB}",
            "cgroup/memory/docker/1/memory.usage_in_bytes": f"{GIB}",
            "cgroup/memory/docker/1/memory.stat": f"total_inactive_file {GIB // 2}\n",
        },
    )
    assert machine.free_host_bytes() == 3 * GIB // 2


def test_a_cgroup_that_is_seen_from_inside_a_container_counts(cgroup: Path) -> None:
    # A container sees its own cgroup as the root, whatever path /proc tells.
    write(
        cgroup,
        {
            "proc": "0::/system.slice/docker-1.scope\n",
            "cgroup/memory.max": f"{GIB}\n",
            "cgroup/memory.current": "0\n",
        },
    )
    assert machine.free_host_bytes() == GIB


@pytest.mark.parametrize("text", ["", "nonsense", "0::/a\n", "\xff\n", ":::\n"])
def test_cgroup_files_of_nonsense_limit_nothing(cgroup: Path, text: str) -> None:
    (cgroup / "proc").write_text(text, encoding="latin-1")
    write(
        cgroup, {"cgroup/a/memory.max": "lots", "cgroup/a/memory.current": "-", "cgroup/a/memory.stat": "\n"}
    )
    assert machine.free_host_bytes() == 64 * GIB


def test_a_limit_that_is_used_up_leaves_nothing_and_not_less(cgroup: Path) -> None:
    write(cgroup, {"proc": "0::/\n", "cgroup/memory.max": "10\n", "cgroup/memory.current": "50\n"})
    assert machine.free_host_bytes() == 0


def test_the_room_on_a_disk_is_that_of_the_folder_that_will_be_made(tmp_path: Path) -> None:
    assert machine.free_disk_bytes(tmp_path / "not" / "yet" / "there") > 0
