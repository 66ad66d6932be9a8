"""Keys of DeepSpeed that no field answers to: those that mean nothing here, and those that may not be passed over.

Two tables of data. A path that ends in ".*" stands for all keys under it. `MEANINGLESS` changes nothing that is
computed on one GPU, or is done another way here; `HARMFUL` would change what is computed, unless it has one of its
harmless values.
"""

from __future__ import annotations

from typing import Any, NamedTuple

_Z = "zero_optimization"
_OO = f"{_Z}.offload_optimizer"
_OP = f"{_Z}.offload_param"

ONE_GPU = "it is about work between GPUs, and there is one"
BUFFERS = "Workbench sizes its own buffers: offload.chunk_mib, and as many as the work needs"
STREAMING = "blocks go through a ring on the device, which is filled ahead of the work"
RECORDED = "time, memory and speed of every lane are always recorded; `workbench attach` shows them"
METRICS = (
    "metrics are in the run's folder; `workbench metrics` prints them, and log.tensorboard writes events"
)
CHECKPOINTS = "checkpoints are Hugging Face folders with Workbench's own state; [checkpoint] says when"

MEANINGLESS: dict[str, str] = {
    # Communication
    **dict.fromkeys(
        (
            "communication_data_type",
            "seq_parallel_comm_data_type",
            "seq_parallel_communication_data_type",
            "prescale_gradients",
            "gradient_predivide_factor",
            "gradient_allreduce_op",
            "fp32_allreduce",
            "disable_allgather",
            "comms_logger.*",
            "sequence_parallel_size",
            "tensor_parallel.*",
            "expert_parallel.*",
            "use_data_before_expert_parallelism",
            "local_rank",
            "mesh_param",
            f"{_Z}.contiguous_gradients",
            f"{_Z}.reduce_scatter",
            f"{_Z}.reduce_bucket_size",
            f"{_Z}.allgather_partitions",
            f"{_Z}.allgather_bucket_size",
            "allgather_size",
            f"{_Z}.use_multi_rank_bucket_allreduce",
            f"{_Z}.round_robin_gradients",
            f"{_Z}.zero_hpz_partition_size",
            f"{_Z}.mics_shard_size",
            f"{_Z}.mics_hierarchical_params_gather",
            f"{_Z}.stage3_use_all_reduce_for_fetch_params",
            f"{_Z}.stage3_allgather_sequential",
            f"{_Z}.legacy_stage1",
        ),
        ONE_GPU,
    ),
    # Weights that leave the device
    **dict.fromkeys(
        (
            f"{_Z}.{prefix}{key}"
            for key in (
                "max_live_parameters",
                "max_reuse_distance",
                "prefetch_bucket_size",
                "param_persistence_threshold",
                "model_persistence_threshold",
                "module_granularity_threshold",
                "partition_stream_chunk_size",
            )
            for prefix in ("stage3_", "")
        ),
        STREAMING,
    ),
    f"{_Z}.sub_group_size": BUFFERS,
    f"{_Z}.memory_efficient_linear": STREAMING,
    f"{_Z}.leaf_module.*": "shards are found in the module tree, whatever the modules are",
    **dict.fromkeys(
        (f"{_Z}.override_module_apply", f"{_Z}.log_trace_cache_warnings", f"{_Z}.enable_sanity_checks"),
        "it is about DeepSpeed's own insides",
    ),
    **dict.fromkeys(
        (f"{_Z}.load_from_fp32_weights", f"{_Z}.elastic_checkpoint", f"{_Z}.pipeline_loading_checkpoint"),
        "checkpoints of DeepSpeed are not read; Workbench's own hold the master weights",
    ),
    **dict.fromkeys(
        (
            f"{_Z}.stage3_gather_16bit_weights_on_model_save",
            f"{_Z}.gather_16bit_weights_on_model_save",
            f"{_Z}.stage3_gather_fp16_weights_on_model_save",
        ),
        "every checkpoint holds the whole model as a Hugging Face folder",
    ),
    f"{_Z}.ignore_unused_parameters": "a parameter without a gradient is left as it is, as in torch",
    f"{_Z}.cpu_offload_use_pin_memory": "host memory that is copied is always pinned, where that can be",
    f"{_Z}.save_muon_momentum_buffer_in_memory": "it belongs to Muon",
    # Buffers and threads of offloading
    **dict.fromkeys(
        (
            f"{_OO}.buffer_count",
            f"{_OO}.buffer_size",
            f"{_OP}.buffer_count",
            f"{_OP}.buffer_size",
            f"{_OP}.max_in_cpu",
        ),
        BUFFERS,
    ),
    **dict.fromkeys(
        (f"{_OO}.pipeline_read", f"{_OO}.pipeline_write"),
        "reading ahead and writing behind are lanes of their own, and always on",
    ),
    f"{_OO}.fast_init": "files are allocated in full at the start",
    f"{_OO}.super_offload": "the update always overlaps; offload.overlap says how",
    f"{_OO}.cpuadam_cores_perc": "offload.threads says how many threads the host optimizer has",
    f"{_OO}.convert_grad_on_cpu": "gradients go down in their own 16 bits and become fp32 in the update",
    **dict.fromkeys(
        (
            f"aio.{key}"
            for key in (
                "block_size",
                "queue_depth",
                "intra_op_parallelism",
                "thread_count",
                "single_submit",
                "overlap_events",
                "use_gds",
            )
        ),
        "reads and writes of the disk tier are sized by Workbench",
    ),
    # Activation checkpointing
    **dict.fromkeys(
        (
            f"activation_checkpointing.{key}"
            for key in (
                "partition_activations",
                "number_checkpoints",
                "contiguous_memory_optimization",
                "synchronize_checkpoint_boundary",
                "profile",
            )
        ),
        "it speaks to users of DeepSpeed's own checkpoint function; every block is a checkpoint here, by "
        "train.activation_checkpointing",
    ),
    # What is told and saved
    **dict.fromkeys(
        (
            "wall_clock_breakdown",
            "memory_breakdown",
            "flops_profiler.*",
            "timers.*",
            "dump_state",
            "log_level",
        ),
        RECORDED,
    ),
    **dict.fromkeys(("wandb.*", "comet.*", "csv_monitor.*", "tensorboard.*", "monitor_config.*"), METRICS),
    **dict.fromkeys(("checkpoint.*", "nebula.*", "datastates.*", "datastates_ckpt.*"), CHECKPOINTS),
    # The rest
    "zero_allow_untested_optimizer": "every optimizer that is built is tested with every placement",
    "zero_force_ds_cpu_optimizer": "the host optimizer is always Workbench's own",
    "dataloader_drop_last": "training reads whole batches on and on; [data] and train.steps say how much",
    "vocabulary_size": "the model's own configuration says it",
    "autotuning.*": "`workbench plan --fit` finds the fastest configuration that fits",
    "compile.*": "blocks are not compiled",
    "distributed_backend": ONE_GPU,
    "gradient_checkpointing": "DeepSpeed passes it over; train.activation_checkpointing says it, and is on by default",
    "zero_force_ds_cpu_initialization": "weights are made or read shard by shard, straight into their tier",
    "graph_harvesting": "kernels are not recorded as graphs",
    "hybrid_engine.*": "it is about generating while training with feedback",
    "pipeline.*": ONE_GPU,
    "managed_gradient_accumulation": "gradient accumulation is always Workbench's own",
    "eigenvalue.*": "it steers quantisation in training, which is not built",
    "data_types.buffer_dtype": "buffers keep the format that the model gives them",
    "fp16.fused_mode": "another implementation of the same rule",
    "inference.*": "it is about inference",
    **dict.fromkeys(("use_node_local_storage", "load_universal_checkpoint"), CHECKPOINTS),
    "zero_init": "weights are made or read shard by shard, straight into their tier",
    **dict.fromkeys(
        ("deepspeed_plugin.*", "deepspeed_multinode_launcher", "zero3_init_flag", "zero3_save_16bit_model"),
        "it is an option of Accelerate and not of DeepSpeed",
    ),
}


class Harm(NamedTuple):
    """Why a key may not be passed over, and values with which it does nothing; an object says so by `enabled`."""

    reason: str
    harmless: tuple[Any, ...] = (False, None, "auto")


_QUANTIZED = "weights or gradients would be rounded to fewer bits on their way; leave it out"

HARMFUL: dict[str, Harm] = {
    "sparse_gradients": Harm("gradients of embeddings are dense here; write false"),
    f"{_Z}.zenflow": Harm(
        "ZenFlow updates the larger gradients at once and the others late, which is not AdamW; leave it out "
        '(offload.overlap = "delayed" is the nearest that is built, and lags by one step)',
        (None,),
    ),
    f"{_Z}.zero_quantized_weights": Harm(_QUANTIZED),
    f"{_Z}.zero_quantized_nontrainable_weights": Harm(_QUANTIZED),
    f"{_Z}.zero_quantized_gradients": Harm(_QUANTIZED),
    f"{_Z}.zeropp_loco_param": Harm(
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
