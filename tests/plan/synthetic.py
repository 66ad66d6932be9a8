"""Models and machines made of plain numbers, for plans that need neither torch nor a real machine."""

from __future__ import annotations

from typing import Any

from workbench.plan.memory import formula_cost
from workbench.plan.workload import Workload
from workbench.profiles.machine_profile import (
    DeviceProfile,
    DiskProfile,
    HostProfile,
    LinkProfile,
    MachineProfile,
)
from workbench.profiles.model_profile import BlockKind, Curve, ModelProfile, ParameterProfile

GIB = 1 << 30


def gpt2(layers: int, width: int, vocabulary: int = 50_304, positions: int = 1024) -> ModelProfile:
    """GPT-2's own parameters, its head tied to the embedding; what a block takes comes from the formula."""

    def parameter(name: str, *shape: int, embeds: bool = False) -> ParameterProfile:
        return ParameterProfile(name=name, shape=shape, dtype="float32", embeds=embeds)

    block = (
        parameter("ln_1.weight", width),
        parameter("ln_1.bias", width),
        parameter("attn.c_attn.weight", width, 3 * width),
        parameter("attn.c_attn.bias", 3 * width),
        parameter("attn.c_proj.weight", width, width),
        parameter("attn.c_proj.bias", width),
        parameter("ln_2.weight", width),
        parameter("ln_2.bias", width),
        parameter("mlp.c_fc.weight", width, 4 * width),
        parameter("mlp.c_fc.bias", 4 * width),
        parameter("mlp.c_proj.weight", 4 * width, width),
        parameter("mlp.c_proj.bias", width),
    )
    before = (
        parameter("transformer.wte.weight", vocabulary, width, embeds=True),
        parameter("transformer.wpe.weight", positions, width, embeds=True),
    )
    after = (parameter("transformer.ln_f.weight", width), parameter("transformer.ln_f.bias", width))
    kind = BlockKind(
        parameters=block,
        flops=Curve(per_token=24.0 * width * width, per_token_pair=4.0 * width),
        costs={"32": formula_cost(width, 4), "16": formula_cost(width, 2)},
    )
    return ModelProfile(
        model="gpt2",
        parameters=sum(p.numel for p in (*before, *after)) + layers * sum(p.numel for p in block),
        hidden_size=width,
        head_width=width,
        vocab_size=vocabulary,
        layers=layers,
        positions=positions,
        before=before,
        after=after,
        kinds=(kind,),
        blocks=tuple((f"transformer.h.{number}", 0) for number in range(layers)),
    )


def host(**changes: Any) -> HostProfile:
    values: dict[str, Any] = {
        "cpu": "invented",
        "cores": 16,
        "memory_bytes": 128 * GIB,
        "free_bytes": 120 * GIB,
        "threads": (1, 8, 16),
        "read_bytes_per_s": (12e9, 50e9, 60e9),
        "write_bytes_per_s": (10e9, 40e9, 50e9),
        "copy_bytes_per_s": (8e9, 25e9, 28e9),
        "optimizer_ns": {
            "bfloat16-exact": (2.0, 0.5, 0.45),
            "bfloat16-half": (1.5, 0.4, 0.35),
            "bfloat16-compact": (1.2, 0.3, 0.28),
            "float32-exact": (2.0, 0.6, 0.5),
        },
        "norm_bytes_per_s": {"bfloat16": (10e9, 40e9, 50e9), "float32": (12e9, 45e9, 55e9)},
        "accumulate_bytes_per_s": {"bfloat16": (8e9, 30e9, 30e9), "float32": (6e9, 25e9, 25e9)},
    }
    return HostProfile(**{**values, **changes})


def machine(*, gpu_gib: int | None = 32, host_gib: int = 120, disk_gib: int = 1024) -> MachineProfile:
    """An invented machine with so much free; `gpu_gib` None: without a GPU."""
    shared = gpu_gib is None
    device = DeviceProfile(
        name="invented",
        shared_memory=shared,
        memory_bytes=0 if gpu_gib is None else (gpu_gib + 1) * GIB,
        free_bytes=0 if gpu_gib is None else gpu_gib * GIB,
        matrix_flops_per_s={"float32": 1e12} if shared else {"bfloat16": 150e12, "float32": 50e12},
        memory_bytes_per_s=40e9 if shared else 1.2e12,
        launch_s=5e-6,
    )
    link = LinkProfile(
        up_bytes_per_s=25e9,
        down_bytes_per_s=25e9,
        both_up_bytes_per_s=20e9,
        both_down_bytes_per_s=20e9,
        unpinned_up_bytes_per_s=8e9,
        unpinned_down_bytes_per_s=8e9,
    )
    disk = DiskProfile(
        path="/invented",
        free_bytes=disk_gib * GIB,
        direct=True,
        read_bytes_per_s=6e9,
        write_bytes_per_s=4e9,
        checked_read_bytes_per_s=2e9,
        checked_write_bytes_per_s=2e9,
    )
    return MachineProfile(
        name="invented",
        source="planned",
        host=host(memory_bytes=(host_gib + 8) * GIB, free_bytes=host_gib * GIB),
        device=device,
        link=None if shared else link,
        disk=disk,
    )


def workload(**changes: Any) -> Workload:
    values: dict[str, Any] = {
        "weights": "device",
        "state": "host",
        "shared_memory": False,
        "precision": "bfloat16",
        "gradient_accumulation": 1,
        "micro_batch_size": 8,
        "sequence_length": 1024,
        "activation_checkpointing": True,
        "checkpoints_kept": 2,
    }
    return Workload(**{**values, **changes})
