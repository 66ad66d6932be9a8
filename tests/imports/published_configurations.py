"""Two configurations as they are printed where people copy them from; the second lost its braces."""

BLOG = (
    '{"train_batch_size": "auto", "train_micro_batch_size_per_gpu": 4, '
    '"optimizer": {"type": "AdamW", "params": {"lr": 5e-5}}, "zero_optimization": {"stage": 2, '
    '"offload_optimizer": {"device": "cpu", "pin_memory": true}, "allgather_partitions": true, '
    '"allgather_bucket_size": 2e8, "reduce_scatter": true, "reduce_bucket_size": 2e8, "overlap_comm": true, '
    '"contiguous_gradients": true}, "fp16": {"enabled": true}, "gradient_clipping": 1.0}'
)

TUTORIAL = (
    '"zero_optimization": { "stage": 2, "offload_optimizer": { "device": "cpu", "contiguous_gradients": true, '
    '"overlap_comm": true'
)

INFINITY = """{
    // stage 3, everything on a fast disk
    "train_batch_size": 16,
    "train_micro_batch_size_per_gpu": 4,
    "fp16": {"enabled": false, "loss_scale": 0, "loss_scale_window": 1000, "hysteresis": 2, "min_loss_scale": 1},
    "bf16": {"enabled": true},
    "optimizer": {
        "type": "Adam",
        "params": {"lr": 2e-4, "betas": [0.9, 0.95], "eps": 1e-8, "weight_decay": 0.1}
    },
    "scheduler": {
        "type": "WarmupDecayLR",
        "params": {"warmup_min_lr": 0, "warmup_max_lr": 2e-4, "warmup_num_steps": 10, "total_num_steps": 100}
    },
    "zero_optimization": {
        "stage": 3,
        "offload_optimizer": {"device": "nvme", "nvme_path": "/fast", "pin_memory": true, "ratio": 0.9},
        "offload_param": {"device": "nvme", "nvme_path": "/fast", "buffer_count": 5, "buffer_size": 1e8},
        "sub_group_size": 1e9,
        "stage3_prefetch_bucket_size": "auto"
    },
    "activation_checkpointing": {"cpu_checkpointing": true},
    "aio": {"block_size": 262144, "queue_depth": 32, "thread_count": 1, "single_submit": false},
    "tensorboard": {"enabled": false},
    "steps_per_print": 10,
    "wall_clock_breakdown": false
}
"""
