"""Configurations of other tools as their projects print them: keys and values, typed from their examples and documents.

Each has the fields that it must give, the keys that are refused, and the keys that nobody here knows.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Real:
    keys: dict[str, Any]
    fields: dict[str, Any] = field(default_factory=dict)
    refused: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()


# LLaMA-Factory's examples, without their max_samples, which is refused

LF = {
    "model_name_or_path": "meta-llama/Meta-Llama-3-8B-Instruct",
    "trust_remote_code": True,
    "stage": "sft",
    "do_train": True,
    "dataset": "identity,alpaca_en_demo",
    "template": "llama3",
    "cutoff_len": 2048,
    "overwrite_cache": True,
    "preprocessing_num_workers": 16,
    "dataloader_num_workers": 4,
    "output_dir": "saves/llama3-8b/sft",
    "logging_steps": 10,
    "save_steps": 500,
    "plot_loss": True,
    "overwrite_output_dir": True,
    "save_only_model": False,
    "report_to": "none",
    "per_device_train_batch_size": 1,
    "gradient_accumulation_steps": 8,
    "learning_rate": 1.0e-4,
    "num_train_epochs": 3.0,
    "lr_scheduler_type": "cosine",
    "warmup_ratio": 0.1,
    "bf16": True,
    "ddp_timeout": 180000000,
    "resume_from_checkpoint": None,
}
LF_LORA = {**LF, "finetuning_type": "lora", "lora_rank": 8, "lora_target": "all"}
LF_FULL = {**LF, "finetuning_type": "full", "learning_rate": 1.0e-5}
LF_EVAL = {"val_size": 0.1, "per_device_eval_batch_size": 1, "eval_strategy": "steps", "eval_steps": 500}
LF_FIELDS = {
    "model.pretrained": "meta-llama/Meta-Llama-3-8B-Instruct",
    "data.sequence_length": 2048,
    "train.micro_batch_size": 1,
    "train.gradient_accumulation": 8,
    "train.epochs": 3.0,
    "train.precision": "bf16",
    "optimizer.betas": (0.9, 0.999),
    "optimizer.weight_decay": 0.0,
    "schedule.type": "cosine",
    "schedule.warmup_fraction": 0.1,
    "schedule.min_ratio": 0.0,
    "log.every": 10,
    "checkpoint.every": 500,
}
LORA_FIELDS = {**LF_FIELDS, "optimizer.learning_rate": 1e-4, "adapter.rank": 8, "adapter.alpha": 16.0}
FULL_FIELDS = {**LF_FIELDS, "optimizer.learning_rate": 1e-5, "adapter": None}

LLAMA_FACTORY = {
    "lora sft": Real(LF_LORA, LORA_FIELDS),
    "lora sft with evaluation": Real(
        LF_LORA | LF_EVAL, {**LORA_FIELDS, "data.validation_fraction": 0.1, "evaluate.every": 500}
    ),
    "lora pretrain": Real(
        {**LF_LORA, "stage": "pt", "dataset": "c4_demo"}, {**LORA_FIELDS, "data.loss_on": "everything"}
    ),
    "lora dpo": Real(
        {**LF_LORA, "stage": "dpo", "pref_beta": 0.1, "pref_loss": "sigmoid"},
        {},
        ("stage",),
        ("pref_beta", "pref_loss"),
    ),
    "lora kto": Real({**LF_LORA, "stage": "kto", "pref_beta": 0.1}, {}, ("stage",), ("pref_beta",)),
    "lora reward": Real({**LF_LORA, "stage": "rm", "dataset": "dpo_en_demo"}, {}, ("stage",)),
    "lora sft ds3": Real(
        {**LF_LORA, "deepspeed": "examples/deepspeed/ds_z3_config.json", "gradient_accumulation_steps": 2},
        {**LORA_FIELDS, "train.gradient_accumulation": 2},
        unknown=("deepspeed",),
    ),
    "full sft": Real(LF_FULL, FULL_FIELDS),
    "full sft, 2024": Real(
        {
            **LF_FULL,
            "bf16": None,
            "fp16": True,
            "warmup_ratio": None,
            "warmup_steps": 0.1,
            "cutoff_len": 1024,
            "evaluation_strategy": "steps",
        },
        {**FULL_FIELDS, "train.precision": "fp16", "data.sequence_length": 1024},
    ),
    "galore": Real(
        {
            **LF_FULL,
            "use_galore": True,
            "galore_layerwise": True,
            "galore_target": "mlp,self_attn",
            "galore_rank": 128,
            "galore_scale": 2.0,
            "bf16": None,
            "pure_bf16": True,
        },
        {},
        ("use_galore",),
        ("galore_layerwise", "galore_target", "galore_rank", "galore_scale"),
    ),
    "apollo": Real(
        {**LF_FULL, "use_apollo": True, "apollo_rank": 256}, {}, ("use_apollo",), ("apollo_rank",)
    ),
    "badam": Real({**LF_FULL, "use_badam": True, "badam_mode": "layer"}, {}, ("use_badam",), ("badam_mode",)),
    "adam-mini": Real({**LF_FULL, "use_adam_mini": True}, {}, ("use_adam_mini",)),
    "muon": Real(
        {**LF_FULL, "model_name_or_path": "Qwen/Qwen2-1.5B-Instruct", "template": "qwen", "use_muon": True},
        {},
        ("use_muon",),
    ),
    "mixture of depths": Real(
        {**LF_FULL, "mixture_of_depths": "convert", "optim": "paged_adamw_8bit"},
        {**FULL_FIELDS, "optimizer.type": "adamw"},
        unknown=("mixture_of_depths",),
    ),
    "loraplus": Real({**LF_LORA, "loraplus_lr_ratio": 16.0}, {}, ("loraplus_lr_ratio",)),
    "pissa": Real({**LF_LORA, "pissa_init": True, "pissa_iter": 16}, {}, ("pissa_init",), ("pissa_iter",)),
    "oft": Real(
        {**LF, "finetuning_type": "oft", "oft_block_size": 32, "oft_target": "all"},
        {},
        ("finetuning_type",),
        ("oft_block_size", "oft_target"),
    ),
    "llama pro": Real(
        {**LF, "finetuning_type": "freeze", "freeze_trainable_layers": 8, "use_llama_pro": True},
        {},
        ("finetuning_type", "use_llama_pro"),
        ("freeze_trainable_layers",),
    ),
    "qlora": Real(
        {**LF_LORA, "quantization_bit": 4, "quantization_method": "bnb"},
        {},
        ("quantization_bit", "quantization_method"),
    ),
    "fsdp qlora": Real(
        {**LF_LORA, "lora_target": "q_proj,v_proj", "quantization_bit": 4, "bf16": None, "fp16": True},
        {},
        ("quantization_bit",),
    ),
    "lora on two layers": Real(
        {**LF_LORA, "lora_target": "q_proj,v_proj", "flash_attn": "fa2", "enable_liger_kernel": True},
        {**LORA_FIELDS, "adapter.targets": ["q_proj", "v_proj"]},
    ),
}

# Axolotl's examples

AX = {
    "base_model": "NousResearch/Meta-Llama-3-8B",
    "model_type": "LlamaForCausalLM",
    "tokenizer_type": "AutoTokenizer",
    "load_in_8bit": False,
    "load_in_4bit": False,
    "strict": False,
    "datasets": [{"path": "tatsu-lab/alpaca", "type": "alpaca"}],
    "dataset_prepared_path": "last_run_prepared",
    "val_set_size": 0.05,
    "output_dir": "./outputs/out",
    "sequence_len": 4096,
    "sample_packing": True,
    "pad_to_sequence_len": True,
    "wandb_project": None,
    "wandb_entity": None,
    "wandb_watch": None,
    "wandb_name": None,
    "wandb_log_model": None,
    "gradient_accumulation_steps": 4,
    "micro_batch_size": 2,
    "num_epochs": 4,
    "optimizer": "adamw_torch_fused",
    "lr_scheduler": "cosine",
    "learning_rate": 0.0002,
    "train_on_inputs": False,
    "group_by_length": False,
    "bf16": "auto",
    "fp16": None,
    "tf32": False,
    "gradient_checkpointing": True,
    "early_stopping_patience": None,
    "resume_from_checkpoint": None,
    "local_rank": None,
    "logging_steps": 1,
    "xformers_attention": None,
    "flash_attention": True,
    "warmup_steps": 10,
    "evals_per_epoch": 4,
    "eval_table_size": None,
    "saves_per_epoch": 1,
    "debug": None,
    "deepspeed": None,
    "weight_decay": 0.0,
    "fsdp": None,
    "fsdp_config": None,
    "special_tokens": {"pad_token": "<|end_of_text|>"},
}
AX_LORA = {
    **AX,
    "adapter": "lora",
    "lora_model_dir": None,
    "lora_r": 32,
    "lora_alpha": 16,
    "lora_dropout": 0.05,
    "lora_target_linear": True,
    "lora_fan_in_fan_out": None,
}
AX_FSDP = {
    "fsdp": ["full_shard", "auto_wrap"],
    "fsdp_config": {
        "fsdp_limit_all_gathers": True,
        "fsdp_sync_module_states": True,
        "fsdp_offload_params": True,
        "fsdp_use_orig_params": False,
        "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
        "fsdp_transformer_layer_cls_to_wrap": "LlamaDecoderLayer",
        "fsdp_sharding_strategy": "FULL_SHARD",
    },
}
AX_FIELDS = {
    "model.pretrained": "NousResearch/Meta-Llama-3-8B",
    "data.source": "hub:tatsu-lab/alpaca",
    "data.sequence_length": 4096,
    "data.validation_fraction": 0.05,
    "data.loss_on": "answers",
    "train.micro_batch_size": 2,
    "train.gradient_accumulation": 4,
    "train.epochs": 4.0,
    "train.precision": "auto",
    "train.activation_checkpointing": True,
    "optimizer.type": "adamw",
    "optimizer.learning_rate": 2e-4,
    "schedule.type": "cosine",
    "schedule.min_ratio": 0.0,
    "schedule.warmup_steps": 10,
}
AX_LORA_FIELDS = {**AX_FIELDS, "adapter.rank": 32, "adapter.alpha": 16.0, "adapter.dropout": 0.05}

AXOLOTL = {
    "full": Real(
        {
            **AX,
            "optimizer": "paged_adamw_8bit",
            "learning_rate": 2e-5,
            "warmup_steps": 100,
            "gradient_checkpointing_kwargs": {"use_reentrant": False},
        },
        {**AX_FIELDS, "optimizer.learning_rate": 2e-5, "schedule.warmup_steps": 100, "adapter": None},
    ),
    "lora": Real({**AX_LORA, "load_in_8bit": False, "eval_sample_packing": False}, AX_LORA_FIELDS),
    "lora in 8 bits": Real({**AX_LORA, "load_in_8bit": True}, {}, ("load_in_8bit",)),
    "lora with embeddings": Real(
        {**AX_LORA, "lora_modules_to_save": ["embed_tokens", "lm_head"]}, {}, ("lora_modules_to_save",)
    ),
    "lora on some layers": Real(
        {
            **AX_LORA,
            "lora_target_linear": None,
            "lora_target_modules": ["gate_proj", "down_proj"],
            "loss_watchdog_threshold": 5.0,
            "loss_watchdog_patience": 3,
            "optimizer": "adamw_8bit",
        },
        {**AX_LORA_FIELDS, "adapter.targets": ["gate_proj", "down_proj"]},
    ),
    "lora kernels": Real(
        {**AX_LORA, "lora_mlp_kernel": True, "lora_qkv_kernel": True, "lora_o_kernel": True}, AX_LORA_FIELDS
    ),
    "chat": Real(
        {
            **AX_LORA,
            "chat_template": "llama3",
            "datasets": [
                {
                    "path": "fozziethebeat/alpaca_messages_2k_test",
                    "type": "chat_template",
                    "field_messages": "messages",
                }
            ],
            "eval_max_new_tokens": 128,
            "s2_attention": None,
        },
        {**AX_LORA_FIELDS, "data.source": "hub:fozziethebeat/alpaca_messages_2k_test"},
    ),
    "liger with fsdp": Real(
        {
            **AX,
            **AX_FSDP,
            "plugins": ["axolotl.integrations.liger.LigerPlugin"],
            "liger_rope": True,
            "liger_rms_norm": True,
            "liger_glu_activation": True,
            "attention": "flash",
        },
        {**AX_FIELDS, "offload.weights": "host", "offload.state": "host"},
    ),
    "qlora with fsdp": Real(
        {**AX_LORA, **AX_FSDP, "adapter": "qlora", "load_in_4bit": True}, {}, ("adapter", "load_in_4bit")
    ),
    "dpo": Real({**AX_LORA, "rl": "dpo"}, {}, ("rl",)),
    "two sources": Real(
        {
            **AX,
            "datasets": [
                {"path": "json", "data_files": ["a.jsonl", "b.jsonl"], "type": "alpaca"},
                {"path": "./data/c.jsonl", "type": "completion"},
            ],
        },
        {**AX_FIELDS, "data.source": ["a.jsonl", "b.jsonl", "./data/c.jsonl"]},
    ),
    "steps": Real(
        {
            **AX,
            "max_steps": 200,
            "warmup_steps": None,
            "warmup_ratio": 0.1,
            "wandb_project": "mine",
            "val_set_size": 0,
        },
        {"train.steps": 200, "schedule.warmup_fraction": 0.1, "log.tracker": ["wandb"]},
    ),
    "another rule": Real({**AX, "optimizer": "adopt_adamw"}, {}, ("optimizer",)),
    "sparse": Real(
        {**AX, "unfrozen_parameters": ["lm_head"], "neftune_noise_alpha": 5},
        {},
        ("unfrozen_parameters", "neftune_noise_alpha"),
    ),
}

# torchtune's recipes

TT = {
    "output_dir": "/tmp/torchtune/out",
    "tokenizer": {
        "_component_": "torchtune.models.llama3.llama3_tokenizer",
        "path": "/tmp/Meta-Llama-3.1-8B-Instruct/original/tokenizer.model",
        "max_seq_len": None,
    },
    "dataset": {"_component_": "torchtune.datasets.alpaca_dataset", "packed": False},
    "seed": None,
    "shuffle": True,
    "model": {"_component_": "torchtune.models.llama3_1.llama3_1_8b"},
    "checkpointer": {
        "_component_": "torchtune.training.FullModelHFCheckpointer",
        "checkpoint_dir": "/tmp/Meta-Llama-3.1-8B-Instruct/",
        "checkpoint_files": ["model-00001-of-00004.safetensors"],
        "recipe_checkpoint": None,
        "output_dir": "${output_dir}",
        "model_type": "LLAMA3",
    },
    "resume_from_checkpoint": False,
    "batch_size": 2,
    "epochs": 1,
    "optimizer": {"_component_": "torch.optim.AdamW", "lr": 2e-5, "fused": True},
    "loss": {"_component_": "torchtune.modules.loss.LinearCrossEntropyLoss"},
    "max_steps_per_epoch": None,
    "gradient_accumulation_steps": 1,
    "clip_grad_norm": None,
    "compile": False,
    "device": "cuda",
    "enable_activation_checkpointing": True,
    "enable_activation_offloading": False,
    "dtype": "bf16",
    "metric_logger": {
        "_component_": "torchtune.training.metric_logging.DiskLogger",
        "log_dir": "${output_dir}/logs",
    },
    "log_every_n_steps": 1,
    "log_peak_memory_stats": True,
    "log_level": "INFO",
    "profiler": {
        "_component_": "torchtune.training.setup_torch_profiler",
        "enabled": False,
        "cpu": True,
        "wait_steps": 5,
    },
}
TT_FIELDS = {
    "model.pretrained": "/tmp/Meta-Llama-3.1-8B-Instruct/",
    "data.source": "hub:tatsu-lab/alpaca",
    "train.micro_batch_size": 2,
    "train.epochs": 1.0,
    "train.precision": "bf16",
    "train.gradient_clipping": 0.0,
    "optimizer.learning_rate": 2e-5,
    "optimizer.weight_decay": 0.01,
    "schedule.type": "constant",
}
TT_LORA = {
    **TT,
    "model": {
        "_component_": "torchtune.models.llama3_1.lora_llama3_1_8b",
        "lora_attn_modules": ["q_proj", "v_proj", "output_proj"],
        "apply_lora_to_mlp": True,
        "apply_lora_to_output": False,
        "lora_rank": 8,
        "lora_alpha": 16,
        "lora_dropout": 0.0,
    },
    "optimizer": {"_component_": "torch.optim.AdamW", "fused": True, "weight_decay": 0.01, "lr": 3e-4},
    "lr_scheduler": {
        "_component_": "torchtune.training.lr_schedulers.get_cosine_schedule_with_warmup",
        "num_warmup_steps": 100,
    },
    "save_adapter_weights_only": False,
}
TT_LORA_FIELDS = {
    **TT_FIELDS,
    "optimizer.learning_rate": 3e-4,
    "schedule.type": "cosine",
    "schedule.min_ratio": 0.0,
    "schedule.warmup_steps": 100,
    "adapter.rank": 8,
    "adapter.alpha": 16.0,
}

TORCHTUNE = {
    "full": Real(TT, TT_FIELDS),
    "full, 8 bits": Real(
        {
            **TT,
            "optimizer": {"_component_": "bitsandbytes.optim.PagedAdamW8bit", "lr": 2e-5},
            "optimizer_in_bwd": True,
        },
        TT_FIELDS,
    ),
    "full, 70B": Real(
        {**TT, "custom_sharded_layers": ["tok_embeddings", "output"], "fsdp_cpu_offload": True}, TT_FIELDS
    ),
    "lora": Real(TT_LORA, TT_LORA_FIELDS),
    "qlora": Real(
        {
            **TT_LORA,
            "model": {**TT_LORA["model"], "_component_": "torchtune.models.llama3_1.qlora_llama3_1_8b"},
        },
        {},
        ("model._component_",),
    ),
    "dora": Real({**TT_LORA, "model": {**TT_LORA["model"], "use_dora": True}}, {}, ("model.use_dora",)),
    "own data": Real(
        {
            **TT,
            "dataset": {
                "_component_": "torchtune.datasets.instruct_dataset",
                "source": "json",
                "data_files": "data/mine.json",
                "split": "train",
            },
            "metric_logger": {
                "_component_": "torchtune.training.metric_logging.WandBLogger",
                "project": "torchtune",
            },
        },
        {**TT_FIELDS, "data.source": "data/mine.json", "log.tracker": ["wandb"]},
    ),
    "offloaded activations": Real(
        {**TT, "enable_activation_offloading": True}, {**TT_FIELDS, "offload.activations": "host"}
    ),
    "tensor parallel": Real({**TT, "tensor_parallel_dim": 8}, {}, ("tensor_parallel_dim",)),
    "sgd": Real(
        {**TT, "optimizer": {"_component_": "torch.optim.SGD", "lr": 1e-3}}, {}, ("optimizer._component_",)
    ),
}

# Accelerate's configurations

AC = {
    "compute_environment": "LOCAL_MACHINE",
    "debug": False,
    "distributed_type": "MULTI_GPU",
    "downcast_bf16": "no",
    "gpu_ids": "all",
    "machine_rank": 0,
    "main_training_function": "main",
    "mixed_precision": "bf16",
    "num_machines": 1,
    "num_processes": 4,
    "rdzv_backend": "static",
    "same_network": True,
    "tpu_env": [],
    "tpu_use_cluster": False,
    "tpu_use_sudo": False,
    "use_cpu": False,
}


def zero(**keys: Any) -> dict[str, Any]:
    return {**AC, "distributed_type": "DEEPSPEED", "deepspeed_config": keys}


FSDP = {
    "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
    "fsdp_backward_prefetch": "BACKWARD_PRE",
    "fsdp_cpu_ram_efficient_loading": True,
    "fsdp_forward_prefetch": False,
    "fsdp_offload_params": False,
    "fsdp_sharding_strategy": "FULL_SHARD",
    "fsdp_state_dict_type": "FULL_STATE_DICT",
    "fsdp_sync_module_states": True,
    "fsdp_use_orig_params": True,
}
ACCELERATE = {
    "several GPUs": Real(AC, {"train.precision": "bf16", "optimizer.learning_rate": 5e-5}),
    "fp16": Real({**AC, "mixed_precision": "fp16"}, {"train.precision": "fp16"}),
    "no mixed precision": Real({**AC, "mixed_precision": "no"}, {"train.precision": "fp32"}),
    "a processor": Real({**AC, "use_cpu": True, "mixed_precision": "no"}, {"train.device": "cpu"}),
    "fp8": Real(
        {**AC, "mixed_precision": "fp8", "fp8_config": {"backend": "TE"}},
        {},
        ("mixed_precision", "fp8_config"),
    ),
    "ZeRO 1": Real(
        zero(gradient_accumulation_steps=1, gradient_clipping=1.0, zero3_init_flag=False, zero_stage=1),
        {"train.gradient_accumulation": 1},
    ),
    "ZeRO 2 offloaded": Real(
        zero(
            gradient_accumulation_steps=1,
            gradient_clipping=1.0,
            offload_optimizer_device="cpu",
            offload_param_device="none",
            zero3_init_flag=False,
            zero_stage=2,
        ),
        {"offload.state": "host", "train.gradient_clipping": 1.0},
    ),
    "ZeRO 3 offloaded": Real(
        zero(
            gradient_accumulation_steps=1,
            gradient_clipping=1.0,
            offload_optimizer_device="cpu",
            offload_param_device="cpu",
            zero3_init_flag=True,
            zero3_save_16bit_model=True,
            zero_stage=3,
        ),
        {"offload.state": "host", "offload.weights": "host"},
    ),
    "ZeRO 3": Real(
        zero(
            deepspeed_multinode_launcher="standard",
            offload_optimizer_device="none",
            offload_param_device="none",
            zero3_init_flag=True,
            zero3_save_16bit_model=True,
            zero_stage=3,
        ),
        {"offload.state": "device", "offload.weights": "device"},
    ),
    "ZeRO 3 by a file": Real(
        zero(deepspeed_config_file="ds_z3.json", zero3_init_flag=True),
        {},
        unknown=("deepspeed_config.deepspeed_config_file",),
    ),
    "FSDP": Real({**AC, "distributed_type": "FSDP", "fsdp_config": FSDP}, {"train.precision": "bf16"}),
    "FSDP offloaded": Real(
        {
            **AC,
            "distributed_type": "FSDP",
            "fsdp_config": {**FSDP, "fsdp_offload_params": True, "fsdp_activation_checkpointing": True},
        },
        {"offload.weights": "host", "offload.state": "host", "train.activation_checkpointing": True},
    ),
    "FSDP 2": Real(
        {
            **AC,
            "distributed_type": "FSDP",
            "fsdp_config": {
                "fsdp_version": 2,
                "fsdp_offload_params": False,
                "fsdp_reshard_after_forward": True,
            },
        }
    ),
    "Megatron-LM": Real(
        {**AC, "distributed_type": "MEGATRON_LM", "megatron_lm_config": {"megatron_lm_tp_degree": 2}},
        {},
        ("megatron_lm_config",),
    ),
}

# DeepSpeed's documents, and the files that the others name

AUTO_SIZES = dict.fromkeys(
    (
        "train_batch_size",
        "train_micro_batch_size_per_gpu",
        "gradient_accumulation_steps",
        "gradient_clipping",
    ),
    "auto",
)
AUTO_NUMBERS = {
    "fp16": {
        "enabled": "auto",
        "loss_scale": 0,
        "loss_scale_window": 1000,
        "initial_scale_power": 16,
        "hysteresis": 2,
        "min_loss_scale": 1,
    },
    "bf16": {"enabled": "auto"},
}
LF_ZERO = {**AUTO_SIZES, **AUTO_NUMBERS, "zero_allow_untested_optimizer": True}
STAGE_2 = {
    "stage": 2,
    "allgather_partitions": True,
    "allgather_bucket_size": 5e8,
    "overlap_comm": True,
    "reduce_scatter": True,
    "reduce_bucket_size": 5e8,
    "contiguous_gradients": True,
    "round_robin_gradients": True,
}
STAGE_3 = {
    "stage": 3,
    "overlap_comm": True,
    "contiguous_gradients": True,
    "sub_group_size": 1e9,
    "reduce_bucket_size": "auto",
    "stage3_prefetch_bucket_size": "auto",
    "stage3_param_persistence_threshold": "auto",
    "stage3_max_live_parameters": 1e9,
    "stage3_max_reuse_distance": 1e9,
    "stage3_gather_16bit_weights_on_model_save": True,
}
CPU = {"device": "cpu", "pin_memory": True}
ZERO_ONE_ADAM = {
    "lr": 1e-3,
    "weight_decay": 0.01,
    "bias_correction": False,
    "var_freeze_step": 1000,
    "var_update_scaler": 16,
    "local_step_scaler": 1000,
    "local_step_clipper": 16,
    "cuda_aware": False,
    "comm_backend_name": "nccl",
}
DEEPSPEED = {
    "LLaMA-Factory's z0": Real(
        {**LF_ZERO, "zero_optimization": {**STAGE_2, "stage": 0}}, {"offload.state": "device"}
    ),
    "LLaMA-Factory's z2": Real(
        {**LF_ZERO, "zero_optimization": STAGE_2},
        {"offload.state": "device", "optimizer.learning_rate": 5e-5},
    ),
    "LLaMA-Factory's z2 offloaded": Real(
        {**LF_ZERO, "zero_optimization": {**STAGE_2, "offload_optimizer": CPU}}, {"offload.state": "host"}
    ),
    "LLaMA-Factory's z3": Real({**LF_ZERO, "zero_optimization": STAGE_3}, {"offload.weights": "device"}),
    "LLaMA-Factory's z3 offloaded": Real(
        {**LF_ZERO, "zero_optimization": {**STAGE_3, "offload_optimizer": CPU, "offload_param": CPU}},
        {"offload.weights": "host", "offload.state": "host"},
    ),
    "the Trainer's ZeRO 3": Real(
        {
            **AUTO_SIZES,
            **AUTO_NUMBERS,
            "optimizer": {
                "type": "AdamW",
                "params": dict.fromkeys(("lr", "betas", "eps", "weight_decay"), "auto"),
            },
            "scheduler": {
                "type": "WarmupLR",
                "params": dict.fromkeys(("warmup_min_lr", "warmup_max_lr", "warmup_num_steps"), "auto"),
            },
            "zero_optimization": {**STAGE_3, "offload_optimizer": CPU, "offload_param": CPU},
            "steps_per_print": 2000,
            "wall_clock_breakdown": False,
        },
        {"optimizer.learning_rate": 5e-5, "optimizer.betas": (0.9, 0.999), "optimizer.weight_decay": 0.0},
    ),
    "0/1 Adam": Real(
        {
            "train_batch_size": 4096,
            "train_micro_batch_size_per_gpu": 16,
            "optimizer": {"type": "ZeroOneAdam", "params": ZERO_ONE_ADAM},
            "gradient_clipping": 1.0,
        },
        {},
        ("optimizer.type", "optimizer.params.bias_correction"),
    ),
    "1-bit Adam": Real(
        {
            "train_batch_size": 4096,
            "train_micro_batch_size_per_gpu": 16,
            "optimizer": {
                "type": "OneBitAdam",
                "params": {
                    "lr": 4e-4,
                    "freeze_step": 23000,
                    "cuda_aware": False,
                    "comm_backend_name": "nccl",
                },
            },
        },
        {},
        ("optimizer.type",),
    ),
    "one cycle": Real(
        {
            "train_batch_size": 64,
            "scheduler": {
                "type": "OneCycle",
                "params": {
                    "cycle_first_step_size": 1000,
                    "cycle_min_lr": 0.0001,
                    "cycle_max_lr": 0.001,
                    "decay_lr_rate": 0.001,
                    "cycle_min_mom": 0.85,
                },
            },
        },
        {},
        ("scheduler.type",),
    ),
    "rate range test": Real(
        {
            "train_batch_size": 64,
            "scheduler": {
                "type": "LRRangeTest",
                "params": {
                    "lr_range_test_min_lr": 0.0001,
                    "lr_range_test_step_size": 200,
                    "lr_range_test_step_rate": 5,
                    "lr_range_test_staircase": False,
                },
            },
        },
        {},
        ("scheduler.type",),
    ),
}

TOOLS = {
    "LLaMA-Factory": LLAMA_FACTORY,
    "Axolotl": AXOLOTL,
    "torchtune": TORCHTUNE,
    "Accelerate": ACCELERATE,
    "DeepSpeed": DEEPSPEED,
}
REAL = {(tool, name): real for tool, configurations in TOOLS.items() for name, real in configurations.items()}
