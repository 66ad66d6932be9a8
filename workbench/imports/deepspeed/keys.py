"""The table of DeepSpeed's keys with their verdicts, and the verdict on every key of a file that no reader has judged.

`DECIDING` keys may decide a field of the preset; the readers judge them. `MEANINGLESS` keys change nothing that is
computed on one GPU, or are done another way here. `HARMFUL` keys would change what is computed, unless they have one of
their harmless values. A name that ends in ".*" stands for all keys under it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from typing import Any, NamedTuple

from workbench.imports.findings import Findings, Judgement, Member
from workbench.imports.lenient_json import KeyPath

ZERO = "zero_optimization"
PARAMS = "optimizer.params"
OFFLOAD_OPTIMIZER = f"{ZERO}.offload_optimizer"
OFFLOAD_PARAM = f"{ZERO}.offload_param"


BF16_STATE = "bf16_master_weights_and_grads bf16_optimizer_states"


def _in(section: str, names: str) -> list[str]:
    return [f"{section}.{name}" if section else name for name in names.split()]


DECIDING = frozenset(
    [
        *_in("", "train_batch_size train_micro_batch_size_per_gpu gradient_accumulation_steps"),
        *_in("", "gradient_clipping steps_per_print tensorboard.enabled"),
        *_in("optimizer", "type"),
        *_in(PARAMS, "lr betas eps weight_decay adam_w_mode"),
        *_in("scheduler", "type"),
        *_in("scheduler.params", "warmup_num_steps warmup_type warmup_min_lr warmup_max_lr total_num_steps"),
        *_in("scheduler.params", "warmup_min_ratio cos_min_ratio last_batch_iteration"),
        *_in("fp16", "enabled loss_scale initial_scale_power loss_scale_window hysteresis min_loss_scale"),
        *_in("fp16", "consecutive_hysteresis"),
        *(
            key
            for name in ("bf16", "bfloat16")
            for key in _in(name, f"enabled check_grad_overflow {BF16_STATE}")
        ),
        *_in("data_types", "grad_accum_dtype param_dtype"),
        *_in(ZERO, "stage overlap_comm cpu_offload cpu_offload_param cpu_offload_params"),
        *_in(OFFLOAD_OPTIMIZER, "device nvme_path ratio pin_memory"),
        *_in(OFFLOAD_PARAM, "device nvme_path pin_memory"),
        *_in("activation_checkpointing", "cpu_checkpointing"),
    ]
)

_MEANINGLESS_TABLE = """
it is about work between GPUs, which Workbench does in one way of its own (docs/distributed.md)
    top: seq_parallel_comm_data_type seq_parallel_communication_data_type mesh_param
    top: comms_logger.* sequence_parallel_size tensor_parallel.* expert_parallel.* local_rank
    top: use_data_before_expert_parallelism distributed_backend pipeline.*
    zero_optimization: legacy_stage1 round_robin_gradients
    zero_optimization: zero_hpz_partition_size mics_shard_size mics_hierarchical_params_gather
    zero_optimization: stage3_use_all_reduce_for_fetch_params stage3_allgather_sequential
several GPUs (parallel.gpus) always reduce gradients to the share that each owns, in fp32, as a mean over all tokens
    top: communication_data_type prescale_gradients gradient_predivide_factor gradient_allreduce_op fp32_allreduce
    zero_optimization: reduce_scatter use_multi_rank_bucket_allreduce
several GPUs (parallel.gpus) always gather new weights share by share, each before the forward that reads it
    top: disable_allgather
    zero_optimization: allgather_partitions
several GPUs (parallel.gpus) exchange one chunk at a time: offload.chunk_mib
    top: allgather_size
    zero_optimization: reduce_bucket_size allgather_bucket_size
blocks go through a ring on the device, which is filled ahead of the work
    zero_optimization: memory_efficient_linear stage3_max_live_parameters max_live_parameters
    zero_optimization: stage3_max_reuse_distance max_reuse_distance
    zero_optimization: stage3_prefetch_bucket_size prefetch_bucket_size
    zero_optimization: stage3_param_persistence_threshold param_persistence_threshold
    zero_optimization: stage3_model_persistence_threshold model_persistence_threshold
    zero_optimization: stage3_module_granularity_threshold module_granularity_threshold
    zero_optimization: stage3_partition_stream_chunk_size partition_stream_chunk_size
Workbench sizes its own buffers: offload.chunk_mib, and as many as the work needs
    zero_optimization: sub_group_size
    zero_optimization.offload_optimizer: buffer_count buffer_size
    zero_optimization.offload_param: buffer_count buffer_size max_in_cpu
gradients have buffers of their own, made once: nothing is left to fragment
    zero_optimization: contiguous_gradients
units are found in the module tree, whatever the modules are
    zero_optimization: leaf_module.*
it is about DeepSpeed's internals
    zero_optimization: override_module_apply log_trace_cache_warnings enable_sanity_checks
a parameter without a gradient is left as it is, as in torch
    zero_optimization: ignore_unused_parameters
host memory that is copied is always pinned, where that can be
    zero_optimization: cpu_offload_use_pin_memory
it belongs to Muon
    zero_optimization: save_muon_momentum_buffer_in_memory
reading ahead and writing behind are lanes of their own, and always on
    zero_optimization.offload_optimizer: pipeline_read pipeline_write
files are allocated in full at the start
    zero_optimization.offload_optimizer: fast_init
the update always overlaps; offload.overlap says how
    zero_optimization.offload_optimizer: super_offload
offload.threads says how many threads the host optimizer has
    zero_optimization.offload_optimizer: cpuadam_cores_perc
gradients go down in their own 16 bits and become fp32 in the update
    zero_optimization.offload_optimizer: convert_grad_on_cpu
reads and writes of the disk tier are sized by Workbench
    aio: block_size queue_depth intra_op_parallelism thread_count single_submit overlap_events use_gds
only DeepSpeed's own checkpoint function reads it; every block is a checkpoint here, by train.activation_checkpointing
    activation_checkpointing: partition_activations number_checkpoints contiguous_memory_optimization
    activation_checkpointing: synchronize_checkpoint_boundary profile
DeepSpeed ignores it; train.activation_checkpointing sets it, and is on by default
    top: gradient_checkpointing
the host optimizer is always Workbench's own
    top: zero_force_ds_cpu_optimizer
every optimizer that is built is tested with every placement
    top: zero_allow_untested_optimizer
another implementation of the same update
    optimizer: legacy_fusion
    optimizer.params: torch_adam fused foreach capturable set_grad_none adamw_mode fp16_optimizer
    fp16: fused_mode
it belongs to another rule than Adam
    optimizer.params: freeze_step cuda_aware comm_backend_name max_coeff min_coeff momentum
    optimizer.params: var_freeze_step var_update_scaler local_step_scaler local_step_clipper coeff_beta
    optimizer.params: factor_max factor_min factor_threshold muon_lr adam_lr ns_method dampening nesterov
it belongs to another schedule than a warm-up
    scheduler.params: lr_range_test_min_lr lr_range_test_step_size lr_range_test_step_rate lr_range_test_staircase
    scheduler.params: cycle_min_lr cycle_max_lr cycle_first_step_size cycle_second_step_size
    scheduler.params: cycle_first_stair_count cycle_second_stair_count cycle_momentum cycle_min_mom cycle_max_mom
    scheduler.params: decay_step_size decay_lr_rate decay_mom_rate
tokens are whole numbers and are not cast
    fp16: auto_cast
gradients join their unit as they are final
    bf16: immediate_grad_update
    bfloat16: immediate_grad_update
buffers keep the format that the model gives them
    data_types: buffer_dtype
gradient accumulation is always Workbench's own
    top: managed_gradient_accumulation
time, memory and speed of every lane are always recorded; `workbench attach` shows them
    top: wall_clock_breakdown memory_breakdown flops_profiler.* timers.* dump_state log_level
metrics are in the run's folder; `workbench metrics` prints them, and log.tracker hands them on
    top: wandb.* comet.* csv_monitor.* tensorboard.* monitor_config.*
checkpoints are Hugging Face folders with Workbench's own state; [checkpoint] says when
    top: checkpoint.* nebula.* datastates.* datastates_ckpt.* use_node_local_storage load_universal_checkpoint
checkpoints of DeepSpeed are not read; Workbench's hold the master weights
    zero_optimization: load_from_fp32_weights elastic_checkpoint pipeline_loading_checkpoint
every checkpoint holds the whole model as a Hugging Face folder
    zero_optimization: stage3_gather_16bit_weights_on_model_save gather_16bit_weights_on_model_save
    zero_optimization: stage3_gather_fp16_weights_on_model_save
training reads only whole batches; [data] and train.steps set how much
    top: dataloader_drop_last
the model's own configuration says it
    top: vocabulary_size
`workbench plan --fit` finds the fastest configuration that fits
    top: autotuning.*
blocks are not compiled
    top: compile.*
weights are made or read unit by unit, straight into their tier
    top: zero_force_ds_cpu_initialization zero_init
kernels are not recorded as graphs
    top: graph_harvesting
it is about generating while training with feedback
    top: hybrid_engine.*
it steers quantisation in training, which is not built
    top: eigenvalue.*
it is about inference
    top: inference.*
it is an option of Accelerate and not of DeepSpeed
    top: deepspeed_plugin.* deepspeed_multinode_launcher zero3_init_flag zero3_save_16bit_model
"""
"""Each reason, and under it the keys that it goes for, by section."""


def _meaningless() -> dict[str, str]:
    """Return the reason of each key of the table."""
    reasons, reason = {}, ""
    for line in _MEANINGLESS_TABLE.strip().split("\n"):
        if line.startswith(" "):
            section, _, names = line.strip().partition(": ")
            reasons.update(dict.fromkeys(_in("" if section == "top" else section, names), reason))
        else:
            reason = line
    return reasons


MEANINGLESS = _meaningless()


class Harm(NamedTuple):
    """The reason to refuse a key; with a value of `harmless`, or as an object that is not `enabled`, it is off."""

    reason: str
    harmless: tuple[Any, ...] = (False, None, "auto")
    used: str = ""
    """The verdict's words for a harmless value that asks for what is done anyway; else empty."""


_ON = (True, None, "auto")
_QUANTIZED = Harm("weights or gradients would be rounded to fewer bits on their way; leave it out")
_EXACT_STATE = Harm(
    "master weights in fp16 lose the smallest updates; write false, as they are always lossless here",
    used="master weights, gradients in sum and state are kept exact",
)

HARMFUL: dict[str, Harm] = {
    f"{PARAMS}.bias_correction": Harm(
        "the bias correction is never left out", _ON, "the means are corrected for their start"
    ),
    f"{PARAMS}.amsgrad": Harm(
        "the maximum of exp_avg_sq is not kept; DeepSpeed refuses it too", used="the plain rule"
    ),
    f"{PARAMS}.fp32_optimizer_states": Harm(
        'write true; offload.state_format = "half" then keeps the moments in bf16, rounded so that they do not stall',
        _ON,
        "the state is kept in fp32",
    ),
    f"{PARAMS}.max_grad_norm": Harm(
        'is not clipping in DeepSpeed and an error there; write "gradient_clipping" at the top of the file instead',
        (None,),
    ),
    "fp16.fp16_master_weights_and_grads": _EXACT_STATE,
    "sparse_gradients": Harm("gradients of embeddings are dense here; write false"),
    f"{ZERO}.zenflow": Harm(
        "ZenFlow updates the larger gradients at once and the others late, which is not AdamW; leave it out "
        '(offload.overlap = "delayed" is the nearest, and lags by one step)',
        (None,),
    ),
    f"{ZERO}.zero_quantized_weights": _QUANTIZED,
    f"{ZERO}.zero_quantized_nontrainable_weights": _QUANTIZED,
    f"{ZERO}.zero_quantized_gradients": _QUANTIZED,
    f"{ZERO}.zeropp_loco_param": Harm(
        "it corrects quantised gradients, which are not built; leave it out", (None,)
    ),
    "amp": Harm("mixed precision by Apex is not built; write fp16 or bf16 instead"),
    "torch_autocast": Harm(
        "autocast is not built; write bf16 or fp16 instead, which store the weights in 16 bits"
    ),
    "sparse_attention": Harm("attention is the model's own; leave it out", (None,)),
    "progressive_layer_drop": Harm("no layers are left out while training; leave it out"),
    "curriculum_learning": Harm("the length of sequences does not grow while training; leave it out"),
    "data_efficiency": Harm("data is sampled in Workbench's own way; leave it out"),
    "quantize_training": Harm("quantisation in training is not built; leave it out"),
    "compression_training": Harm("compression in training is not built; leave it out", (None,)),
    "weight_quantization": Harm("weights are not quantised; leave it out", (None,)),
    "elasticity": Harm("it would choose the batch sizes; write them instead and leave it out"),
    "random_ltd": Harm("no tokens are left out of layers while training; leave it out"),
}

_WHOLE_SECTIONS = frozenset(key.removesuffix(".*") for key in MEANINGLESS if key.endswith(".*"))
_KEYS = DECIDING | HARMFUL.keys() | {key for key in MEANINGLESS if not key.endswith(".*")}


def _prefixes(path: KeyPath) -> Iterator[str]:
    return (".".join(path[:length]) for length in range(1, len(path) + 1))


_SECTIONS = frozenset(
    name for key in (*_KEYS, *_WHOLE_SECTIONS) for name in list(_prefixes(tuple(key.split("."))))[:-1]
)


_NAMES = _KEYS | _SECTIONS


def is_known(path: KeyPath) -> bool:
    """Return True if DeepSpeed has a key or a section of this path."""
    around = (name in _WHOLE_SECTIONS or name in HARMFUL for name in _prefixes(path))
    return ".".join(path) in _NAMES or any(around)


def place(section: str) -> str:
    """Return where the keys of a section stand, in words; the empty one is the whole."""
    return f"in {section}" if section else "at the top"


# The keys that no reader has judged

_NOTES = ("_", "//", "#", "$", "comment")
_LONGEST_NAME_COMPARED = 60
_MOST_NAMES_COMPARED = 20


def judge_leftovers(found: Findings) -> None:
    """Give a verdict to every key that has none yet; a section gets one only where it is judged as a whole."""
    compared = 0
    for path, member in found.members.items():
        if path in found.verdicts:
            continue
        around = next((path[:n] for n in range(1, len(path)) if path[:n] in found.verdicts), None)
        is_filled = isinstance(member.value, Mapping) and bool(member.value)
        if around is not None:
            whole = found.verdicts[around]
            found.judge(member, whole.judgement, f"part of {whole.key}", within=whole.key)
        elif member.key in HARMFUL:
            _judge_harmful(found, member)
        elif (reason := _why_meaningless(path)) is not None:
            if not is_filled:
                found.judge(member, "meaningless here", reason)
        elif not is_known(path):
            compared += 1
            _judge_unknown(found, member, compare=compared <= _MOST_NAMES_COMPARED)
        elif not is_filled:
            idle = (
                "it says nothing"
                if member.value == {}
                else "not worked out: a key that it depends on is refused"
            )
            found.judge(member, "meaningless here", idle)


def _why_meaningless(path: KeyPath) -> str | None:
    sections = (MEANINGLESS.get(f"{name}.*") for name in _prefixes(path))
    return MEANINGLESS.get(".".join(path)) or next(filter(None, sections), None)


def _judge_harmful(found: Findings, member: Member) -> None:
    harm = HARMFUL[member.key]
    value = member.value
    if found.get(member.key) is None:  # null, which has its verdict now
        return
    if isinstance(value, str):
        value = {"true": True, "false": False}.get(value.lower(), value)
    if isinstance(value, Mapping) and not harm.used:
        idle = _is_off(value)
    else:
        idle = any(value is each or (isinstance(each, str) and value == each) for each in harm.harmless)
    if idle:
        judgement: Judgement = "used" if harm.used else "meaningless here"
        found.judge(member, judgement, harm.used or "it is off")
    else:
        found.refuse(member, harm.reason)


def _is_off(section: Mapping[str, Any]) -> bool:
    """Return True if a section says that nothing in it is enabled; an empty one does too."""
    enabled = list(_enabled(section))
    return not section or (bool(enabled) and all(each in (False, "auto") for each in enabled))


def _enabled(section: Mapping[str, Any]) -> Iterator[Any]:
    for key, value in section.items():
        if key == "enabled":
            yield value
        elif isinstance(value, Mapping):
            yield from _enabled(value)


def _judge_unknown(found: Findings, member: Member, *, compare: bool) -> None:
    name, table = member.path[-1], member.path[:-1]
    here = place(".".join(table))
    if name.lower().startswith(_NOTES):
        found.judge(member, "meaningless here", "a note for readers")
        return
    if isinstance(member.value, Mapping) and any(_decides(key) for key in member.value):
        found.refuse(member, "holds a configuration of its own; name a file that holds this alone")
        return
    homes = [key.rpartition(".")[0] for key in sorted(DECIDING | HARMFUL.keys()) if key.endswith(f".{name}")]
    near = _nearest_key(name, table) if compare else None
    hint = f'did you mean "{near.rpartition(".")[2]}"?' if near else ""
    if homes and not (isinstance(member.value, Mapping) and member.value):
        where = " or ".join(map(place, homes[:4]))
        found.refuse(member, f"it does not belong {here} and would be ignored; it belongs {where}")
    elif near in DECIDING or near in HARMFUL or near in _SECTIONS:
        found.refuse(member, f"DeepSpeed has no such key {here}; {hint}")
    else:
        reason = f"neither DeepSpeed nor Workbench has such a key {here}, so it is left out"
        found.judge(member, "unknown", f"{reason}; {hint}" if hint else reason)


def _decides(name: str) -> bool:
    """Return True if a key or section of this name, at the top, may decide a field."""
    return any(key == name or key.startswith(f"{name}.") for key in DECIDING)


def _nearest_key(name: str, table: KeyPath) -> str | None:
    """Return the dotted name of the key in this section that `name` was probably meant to be, if any."""
    if len(name) > _LONGEST_NAME_COMPARED:
        return None
    prefix = ".".join((*table, ""))
    names = {
        key.removeprefix(prefix).split(".")[0]
        for key in (*_NAMES, *_WHOLE_SECTIONS)
        if key.startswith(prefix) and key != prefix
    }
    near = get_close_matches(name.lower(), sorted(names), n=1, cutoff=0.8)
    return prefix + near[0] if near else None
