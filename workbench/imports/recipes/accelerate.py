"""Accelerate's YAML, which says where and in which numbers a script runs; the script's own arguments say the rest."""

from __future__ import annotations

from pathlib import Path

from workbench.imports.findings import Findings
from workbench.imports.recipes.rows import (
    TRAINERS,
    TRAINERS_OPTIMIZER,
    Off,
    Row,
    Take,
    fill,
    judge,
    read_deepspeed_file,
    read_fsdp,
)

NAME = "Accelerate"
_GPUS = "`workbench run --gpus` says how many GPUs a run has"
_MACHINES = "several machines are started by torchrun; docs/distributed.md"
_ZERO = "deepspeed_config"
_TIERS = {"none": "device", "cpu": "host", "nvme": "disk"}

TABLE: dict[str, Row] = {
    "num_processes": _GPUS,
    "gpu_ids": "CUDA_VISIBLE_DEVICES says it",
    "distributed_type": _GPUS,
    "num_machines": _MACHINES,
    "machine_rank": _MACHINES,
    "main_process_ip": _MACHINES,
    "main_process_port": _MACHINES,
    "rdzv_backend": _MACHINES,
    "same_network": _MACHINES,
    "compute_environment": "it is about where a script is started",
    "main_training_function": "it is about where a script is started",
    "command_file": "it is about where a script is started",
    "commands": "it is about where a script is started",
    "debug": "the log has what a run does",
    "enable_cpu_affinity": "threads are placed by Workbench",
    "tpu_env": "it is about TPUs",
    "tpu_use_cluster": "it is about TPUs",
    "tpu_use_sudo": "it is about TPUs",
    "tpu_name": "it is about TPUs",
    "tpu_zone": "it is about TPUs",
    "downcast_bf16": "it is about TPUs",
    "fsdp_config": "state is partitioned between GPUs by `workbench run --gpus`",
    "dynamo_backend": "blocks are not compiled",
    "dynamo_config": "blocks are not compiled",
    "ipex_config": "it is about Intel's extension",
    "mpirun_config": _MACHINES,
    "megatron_lm_config": Off("tensors are not divided between GPUs; leave it out"),
    "parallelism_config": Off("tensors are not divided between GPUs; leave it out"),
    "fp8_config": Off("fp8 is not built; leave it out"),
    f"{_ZERO}.gradient_accumulation_steps": Take("train.gradient_accumulation", "micro-batches of a step"),
    f"{_ZERO}.gradient_clipping": Take("train.gradient_clipping", "largest norm of the whole gradient"),
    f"{_ZERO}.offload_optimizer_nvme_path": Take("offload.disk_path"),
    f"{_ZERO}.offload_param_nvme_path": Take("offload.disk_path"),
    f"{_ZERO}.zero3_init_flag": "weights are made or read unit by unit, straight into their tier",
    f"{_ZERO}.zero3_save_16bit_model": "every checkpoint holds the whole model as a Hugging Face folder",
    f"{_ZERO}.deepspeed_multinode_launcher": _MACHINES,
    f"{_ZERO}.deepspeed_hostfile": _MACHINES,
    f"{_ZERO}.deepspeed_inclusion_filter": _MACHINES,
    f"{_ZERO}.deepspeed_exclusion_filter": _MACHINES,
    f"{_ZERO}.deepspeed_moe_layer_cls_names": "units are found in the module tree, whatever the modules are",
}


def read(found: Findings, folder: Path) -> None:
    """Judge every key. `folder`: where the file lies, for the DeepSpeed file that it names."""
    precision = found.word("mixed_precision")
    if precision in ("bf16", "fp16"):
        found.put(
            "train.precision",
            precision,
            "mixed_precision",
            "weights in 16 bits, master weights in fp32",
            "used",
        )
    elif precision == "no":
        found.put("train.precision", "fp32", "mixed_precision", "no mixed precision, so all is fp32")
    elif precision is not None:
        found.refuse("mixed_precision", 'not built; "no", "fp16" and "bf16" are')
    if found.switch("use_cpu") is True:
        found.put("train.device", "cpu", "use_cpu", "it trains on the processor")
    else:
        found.judge("use_cpu", "meaningless here", "train.device chooses the GPU where there is one")
    _read_zero(found, folder)
    read_fsdp(found)
    judge(found, TABLE, NAME)
    fill(found, TRAINERS_OPTIMIZER, TRAINERS)


def _read_zero(found: Findings, folder: Path) -> None:
    if not found.has_section(_ZERO):
        return
    read_deepspeed_file(found, f"{_ZERO}.deepspeed_config_file", folder)
    stage_key = f"{_ZERO}.zero_stage"
    stage = found.whole(stage_key)
    stage = stage if isinstance(stage, int) else 2
    found.judge(
        stage_key, "mapped", "what may be offloaded: stages 1 and 2 the state, stage 3 the weights too"
    )
    for key, field, least in (
        ("offload_optimizer_device", "state", 1),
        ("offload_param_device", "weights", 3),
    ):
        name = f"{_ZERO}.{key}"
        written = found.word(name)
        if written is None:
            continue
        if written not in _TIERS:
            found.refuse(name, 'must be "none", "cpu" or "nvme"')
        elif stage < least and written != "none":
            found.judge(name, "meaningless here", f"stage {stage} does not offload it")
        else:
            found.put(f"offload.{field}", _TIERS[written], name, f"the {field} of the model", "mapped")
    for key in ("offload_optimizer_nvme_path", "offload_param_nvme_path"):
        if (member := found.get(f"{_ZERO}.{key}")) is not None and member.value == "none":
            found.judge(member, "meaningless here", "nothing of it is on disk")
    weights, state = (found.settings.get(f"offload.{field}") for field in ("weights", "state"))
    if weights is not None and weights.value == "host" and (state is None or state.value == "device"):
        found.fill(
            "offload.state", f"{_ZERO}.offload_param_device", "the state is not above its weights", "host"
        )
