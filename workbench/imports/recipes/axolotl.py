"""Axolotl's YAML."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from workbench.imports.findings import Findings
from workbench.imports.recipes.rows import (
    OFF,
    TRAINERS,
    TRAINERS_OPTIMIZER,
    Off,
    Row,
    Take,
    fill,
    fill_end_of_schedule,
    is_there,
    judge,
    read_betas,
    read_deepspeed_file,
    read_fsdp,
    read_held_out,
    read_optimizer_name,
    read_precision_keys,
    read_schedule,
    take,
)

NAME = "Axolotl"
_LOADING = "data is read and kept in Workbench's own way"
_FOLDER = "a run has its own folder; `workbench run --runs` says where"
_KERNEL = "another implementation of the same arithmetic"
_AUTO = "the model's own files say it"
_PACKED = "rows are always packed and full"
_WANDB = "`wandb` reads it from its environment; log.tracker turns it on"

TABLE: dict[str, Row] = {
    "base_model": Take("model.pretrained", "the model and its tokenizer"),
    "revision_of_model": Take("model.revision"),
    "trust_remote_code": Take("model.trust_remote_code"),
    "sequence_len": Take("data.sequence_length", "tokens of a row"),
    "micro_batch_size": Take("train.micro_batch_size", "sequences of a micro-batch"),
    "gradient_accumulation_steps": Take("train.gradient_accumulation", "micro-batches of a step"),
    "learning_rate": Take("optimizer.learning_rate", "the learning rate at its highest"),
    "weight_decay": Take("optimizer.weight_decay"),
    "adam_epsilon": Take("optimizer.eps"),
    "max_grad_norm": Take("train.gradient_clipping", "largest norm of the whole gradient"),
    "gradient_checkpointing": Take("train.activation_checkpointing", "blocks compute their forward again"),
    "seed": Take("train.seed"),
    "logging_steps": Take("log.every", "steps between progress lines"),
    "save_steps": Take("checkpoint.every", "steps between checkpoints"),
    "save_total_limit": Take("checkpoint.keep", "newest checkpoints that are kept"),
    "eval_steps": Take("evaluate.every", "steps between evaluations"),
    "lr_scheduler_kwargs.min_lr_rate": Take("schedule.min_ratio", "share of the highest rate at the end"),
    "cosine_min_lr_ratio": Take("schedule.min_ratio", "share of the highest rate at the end"),
    "early_stopping_patience": Take("evaluate.patience"),
    "tf32": Take("train.tf32", "matrix products of fp32 are rounded to TF32"),
    "tokenizer_config": Take("data.tokenizer", "the tokenizer"),
    "model_type": _AUTO,
    "tokenizer_type": _AUTO,
    "tokenizer_use_fast": _AUTO,
    "is_llama_derived_model": _AUTO,
    "is_mistral_derived_model": _AUTO,
    "is_falcon_derived_model": _AUTO,
    "chat_template": "the tokenizer's own chat template is taken",
    "default_system_message": Off("write it into the records, and leave it out"),
    "special_tokens": "the tokenizer's own special tokens are taken",
    "dataset_prepared_path": _LOADING,
    "dataset_processes": _LOADING,
    "dataset_keep_in_memory": _LOADING,
    "dataset_exact_deduplication": Off("write each record once, and leave it out"),
    "shuffle_merged_datasets": _LOADING,
    "push_dataset_to_hub": _LOADING,
    "dataloader_num_workers": _LOADING,
    "output_dir": _FOLDER,
    "hub_model_id": "`workbench export` has push",
    "hub_strategy": "`workbench export` has push",
    "sample_packing": _PACKED,
    "multipack_real_batches": _PACKED,
    "sample_packing_eff_est": _PACKED,
    "eval_sample_packing": _PACKED,
    "pad_to_sequence_len": _PACKED,
    "group_by_length": _PACKED,
    "eval_batch_size": "evaluation has the training's micro-batches",
    "evals_per_epoch": "evaluate.every counts steps",
    "saves_per_epoch": "checkpoint.every counts steps",
    "evaluation_strategy": "evaluate.every says it",
    "eval_strategy": "evaluate.every says it",
    "save_strategy": "checkpoint.every says it",
    "save_safetensors": "weights are always safetensors",
    "save_first_step": "checkpoint.every says it",
    "eval_table_size": "samples are in the run's folder",
    "eval_max_new_tokens": "sample.tokens says it",
    "resume_from_checkpoint": "`workbench resume` goes on",
    "auto_resume_from_checkpoints": "`workbench run --resume auto` goes on",
    "gradient_checkpointing_kwargs": "recomputing is Workbench's own",
    "flash_attention": _KERNEL,
    "flash_attn_cross_entropy": _KERNEL,
    "flash_attn_rms_norm": _KERNEL,
    "flash_attn_fuse_mlp": _KERNEL,
    "flash_attn_fuse_qkv": _KERNEL,
    "xformers_attention": _KERNEL,
    "sdp_attention": _KERNEL,
    "attention": _KERNEL,
    "s2_attention": Off("shifted sparse attention is not built; leave it out"),
    "loss_watchdog_threshold": "a run that diverges ends by itself",
    "loss_watchdog_patience": "a run that diverges ends by itself",
    "attn_implementation": _KERNEL,
    "lora_mlp_kernel": _KERNEL,
    "lora_qkv_kernel": _KERNEL,
    "lora_o_kernel": _KERNEL,
    "liger_rope": _KERNEL,
    "liger_rms_norm": _KERNEL,
    "liger_glu_activation": _KERNEL,
    "liger_layer_norm": _KERNEL,
    "liger_fused_linear_cross_entropy": _KERNEL,
    "liger_cross_entropy": _KERNEL,
    "cut_cross_entropy": _KERNEL,
    "plugins": _KERNEL,
    "torch_compile": "blocks are not compiled",
    "strict": "every key has a verdict here",
    "debug": "the log has what a run does",
    "local_rank": "`workbench run --gpus` says it",
    "ddp_timeout": "`workbench run --gpus` sets its own limits",
    "fsdp": "state is partitioned between GPUs by `workbench run --gpus`",
    "fsdp_config": "state is partitioned between GPUs by `workbench run --gpus`",
    "fsdp_version": "state is partitioned between GPUs by `workbench run --gpus`",
    "wandb_entity": _WANDB,
    "wandb_watch": _WANDB,
    "wandb_name": _WANDB,
    "wandb_run_id": _WANDB,
    "wandb_log_model": _WANDB,
    "lora_model_dir": Off("going on from an adapter is not built; merge it first"),
    "lora_modules_to_save": Off("modules beside an adapter are not trained; leave it out"),
    "lora_fan_in_fan_out": "it follows from the layer",
    "load_in_8bit": Off("weights are not quantised; with offload.weights the whole model fits in 16 bits"),
    "load_in_4bit": Off("weights are not quantised; with offload.weights the whole model fits in 16 bits"),
    "peft_use_dora": Off("DoRA is not built; leave it out"),
    "peft_use_rslora": Off("rank-stabilised LoRA is not built; leave it out"),
    "rl": Off("preference training is not built; leave it out"),
    "neftune_noise_alpha": Off("noise on embeddings is not built; leave it out"),
    "unfrozen_parameters": Off("write the contrary, what is frozen, in model.freeze"),
    "relora_steps": Off("ReLoRA is not built; leave it out"),
    "pretraining_dataset": Off("streamed data is not built; name it in datasets"),
    "tensor_parallel_size": Off("tensors are not divided between GPUs; leave it out"),
    "context_parallel_size": Off("sequences are not divided between GPUs; leave it out"),
    "sequence_parallel_degree": Off("sequences are not divided between GPUs; leave it out"),
    "qat": Off("quantisation in training is not built; leave it out"),
    "overrides_of_model_config": Off("set it in the model's own configuration"),
}


def read(found: Findings, folder: Path) -> None:
    """Judge every key. `folder`: where the file lies, for the DeepSpeed file that it names."""
    _read_datasets(found)
    _read_adapter(found)
    on_inputs = found.switch("train_on_inputs")
    if isinstance(on_inputs, bool):
        loss_on = "everything" if on_inputs else "answers"
        found.put("data.loss_on", loss_on, "train_on_inputs", f"the loss counts {loss_on}")
    steps = found.whole("max_steps")
    if isinstance(steps, int):
        take(found, "max_steps", Take("train.steps", "the steps of the run"))
        found.judge("num_epochs", "meaningless here", "max_steps decides")
    elif found.get("num_epochs") is not None:
        take(found, "num_epochs", Take("train.epochs", "how often the data is read"))
    else:
        fill(found, {"train.epochs": 1.0}, f"{NAME}'s default")
    read_held_out(found, "val_set_size")
    read_schedule(found, "lr_scheduler")
    read_precision_keys(found, ("bf16", "bfloat16"), "fp16")
    read_optimizer_name(found, "optimizer")
    read_betas(found, "adam_beta1", "adam_beta2")
    if found.get("wandb_project") is not None:
        found.put("log.tracker", ["wandb"], "wandb_project", "metrics go to wandb, too")
    read_deepspeed_file(found, "deepspeed", folder)
    read_fsdp(found)
    judge(found, TABLE, NAME)
    fill(found, TRAINERS_OPTIMIZER, TRAINERS)
    fill(found, {"schedule.type": "cosine"}, f"{NAME}'s default")
    fill_end_of_schedule(found)


def _read_datasets(found: Findings) -> None:
    member = found.get("datasets")
    if member is None:
        return
    entries: list[Any] = member.value if isinstance(member.value, list) else [member.value]
    sources = []
    for entry in entries:
        path = entry.get("path") if isinstance(entry, dict) else entry
        if not isinstance(path, str) or not path:
            found.refuse(member, "each of its entries must have a path")
            return
        files = entry.get("data_files") if isinstance(entry, dict) else None
        if path in ("json", "csv", "parquet", "text") and files:
            sources += [str(name) for name in (files if isinstance(files, list) else [files])]
        else:
            here = is_there(Path(path)) or path.startswith((".", "/", "~"))
            sources.append(path if here or "/" not in path else f"hub:{path}")
    value = sources[0] if len(sources) == 1 else sources
    found.put("data.source", value, "datasets", "the text; the shape of records is recognised")
    splits = {entry.get("split") for entry in entries if isinstance(entry, dict) and entry.get("split")}
    if len(splits) == 1 and "[" not in str(next(iter(splits))):
        found.put("data.split", splits.pop(), "datasets", "the text; the shape of records is recognised")
    found.judge("test_datasets", "unknown", "left out; name one with --set evaluate.source=NAME")


def _read_adapter(found: Findings) -> None:
    kind = found.word("adapter")
    if kind == "lora":
        found.put("adapter.type", "lora", "adapter", "an adapter beside frozen weights", "used")
        for key, field in (("lora_r", "rank"), ("lora_alpha", "alpha"), ("lora_dropout", "dropout")):
            if found.get(key) is not None:
                take(found, key, Take(f"adapter.{field}"))
        member = found.get("lora_target_modules")
        if (
            member is not None
            and isinstance(member.value, list)
            and found.switch("lora_target_linear") is not True
        ):
            found.put(
                "adapter.targets",
                member.value,
                "lora_target_modules",
                "the modules that get an adapter",
                "used",
            )
        elif member is not None:
            found.judge(member, "meaningless here", "lora_target_linear decides")
        found.judge("lora_target_linear", "used", "every linear layer of the blocks")
    elif kind:
        found.refuse("adapter", 'not built; "lora" is, and 16-bit weights may be on the host or on disk')
    for path, member in found.members.items():
        if (
            path not in found.verdicts
            and path[-1].startswith("lora_")
            and (kind != "lora" or member.value in OFF)
        ):
            found.judge(
                member, "meaningless here", "it is off" if kind == "lora" else "there is no such adapter"
            )
