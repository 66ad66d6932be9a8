"""LLaMA-Factory's YAML: the arguments of its `train`, most of them the Hugging Face Trainer's."""

from __future__ import annotations

from pathlib import Path

from workbench.imports.findings import Auto, Findings
from workbench.imports.recipes.rows import (
    TRAINERS,
    TRAINERS_OPTIMIZER,
    Off,
    Row,
    Take,
    fill,
    fill_end_of_schedule,
    judge,
    read_betas,
    read_deepspeed_file,
    read_held_out,
    read_optimizer_name,
    read_precision_keys,
    read_schedule,
    read_trackers,
    take,
)

NAME = "LLaMA-Factory"
_LOADING = "data is read and kept in Workbench's own way"
_FOLDER = "a run has its own folder; `workbench run --runs` says where"
_KERNEL = "another implementation of the same arithmetic"
_ELSEWHERE = "is not built; leave it out"

TABLE: dict[str, Row] = {
    "model_name_or_path": Take("model.pretrained", "the model and its tokenizer"),
    "model_revision": Take("model.revision"),
    "trust_remote_code": Take("model.trust_remote_code"),
    "cutoff_len": Take("data.sequence_length", "tokens of a row"),
    "per_device_train_batch_size": Take("train.micro_batch_size", "sequences of a micro-batch"),
    "gradient_accumulation_steps": Take("train.gradient_accumulation", "micro-batches of a step"),
    "learning_rate": Take("optimizer.learning_rate", "the learning rate at its highest"),
    "weight_decay": Take("optimizer.weight_decay"),
    "adam_epsilon": Take("optimizer.eps"),
    "max_grad_norm": Take("train.gradient_clipping", "largest norm of the whole gradient"),
    "seed": Take("train.seed"),
    "logging_steps": Take("log.every", "steps between progress lines"),
    "save_steps": Take("checkpoint.every", "steps between checkpoints"),
    "save_total_limit": Take("checkpoint.keep", "newest checkpoints that are kept"),
    "eval_steps": Take("evaluate.every", "steps between evaluations"),
    "lr_scheduler_kwargs.min_lr_rate": Take("schedule.min_ratio", "share of the highest rate at the end"),
    "label_smoothing_factor": Take("train.label_smoothing"),
    "neat_packing": Take("data.separate_documents", "documents of a row are kept apart"),
    "template": "the tokenizer's own chat template is taken",
    "dataset_dir": "the data is to be named, see dataset",
    "media_dir": _LOADING,
    "packing": "rows are always packed",
    "max_samples": Off("all records are read; leave it out, or name a file of fewer records as the data"),
    "tokenized_path": _LOADING,
    "overwrite_cache": _LOADING,
    "preprocessing_num_workers": _LOADING,
    "dataloader_num_workers": _LOADING,
    "dataloader_pin_memory": _LOADING,
    "output_dir": _FOLDER,
    "overwrite_output_dir": _FOLDER,
    "run_name": _FOLDER,
    "plot_loss": "`workbench attach` draws the losses",
    "save_only_model": "a checkpoint always holds the state, so that a run goes on",
    "save_strategy": "checkpoint.every says it",
    "eval_strategy": "evaluate.every says it",
    "evaluation_strategy": "evaluate.every says it",
    "per_device_eval_batch_size": "evaluation has the training's micro-batches",
    "do_train": "training is what a run does",
    "do_eval": "evaluate.every says it",
    "resume_from_checkpoint": "`workbench resume` goes on",
    "ddp_timeout": "`workbench run --gpus` sets its own limits",
    "flash_attn": _KERNEL,
    "enable_liger_kernel": _KERNEL,
    "use_unsloth": _KERNEL,
    "use_unsloth_gc": _KERNEL,
    "upcast_layernorm": "norms are computed as the model says",
    "low_cpu_mem_usage": "weights are read unit by unit, straight into their tier",
    "include_num_input_tokens_seen": "tokens are always counted",
    "push_to_hub": "`workbench export` has push",
    "hub_model_id": "`workbench export` has push",
    "do_predict": Off(f"predicting {_ELSEWHERE}"),
    "adapter_name_or_path": Off("going on from an adapter is not built; merge it first"),
    "quantization_bit": Off(
        "weights are not quantised; with offload.weights the whole model fits in 16 bits"
    ),
    "quantization_method": Off("weights are not quantised; leave it out"),
    "neftune_noise_alpha": Off(f"noise on embeddings {_ELSEWHERE}"),
    "use_dora": Off(f"DoRA {_ELSEWHERE}"),
    "pissa_init": Off(f"PiSSA {_ELSEWHERE}"),
    "loraplus_lr_ratio": Off("LoRA+ is not built; optimizer.learning_rate_scales is the nearest"),
    "use_rslora": Off(f"rank-stabilised LoRA {_ELSEWHERE}"),
    "additional_target": Off("modules beside an adapter are not trained; leave it out"),
    "mask_history": Off(f"masking earlier turns {_ELSEWHERE}"),
    "streaming": Off(f"streamed data {_ELSEWHERE}"),
    "rope_scaling": Off("set it in the model's own configuration"),
    "resize_vocab": Off(f"a changed vocabulary {_ELSEWHERE}"),
    "fp8": Off(f"fp8 {_ELSEWHERE}"),
    **{
        f"use_{rule}": Off(f"another update rule, which {_ELSEWHERE}")
        for rule in (
            "galore",
            "apollo",
            "badam",
            "adam_mini",
            "muon",
            "llama_pro",
            "mod",
            "dft_loss",
            "eaft_loss",
        )
    },
}


def read(found: Findings, folder: Path) -> None:
    """Judge every key. `folder`: where the file lies, for the DeepSpeed file that it names."""
    _read_stage(found)
    _read_finetuning(found)
    _read_data(found)
    steps = found.whole("max_steps")
    if isinstance(steps, int) and steps > 0:
        take(found, "max_steps", Take("train.steps", "the steps of the run"))
        found.judge("num_train_epochs", "meaningless here", "max_steps decides")
    else:
        found.judge("max_steps", "meaningless here", "num_train_epochs decides")
        if found.get("num_train_epochs") is not None:
            take(found, "num_train_epochs", Take("train.epochs", "how often the data is read"))
        fill(found, {"train.epochs": 3.0}, TRAINERS)
    read_schedule(found, "lr_scheduler_type")
    read_precision_keys(found, ("bf16", "pure_bf16"), "fp16")
    read_optimizer_name(found, "optim")
    read_betas(found, "adam_beta1", "adam_beta2")
    read_trackers(found, "report_to")
    off = found.switch("disable_gradient_checkpointing")
    if isinstance(off, bool):
        key = "disable_gradient_checkpointing"
        found.put("train.activation_checkpointing", not off, key, "the contrary of it")
    if found.get("gradient_checkpointing") is not None:
        take(found, "gradient_checkpointing", Take("train.activation_checkpointing"))
    read_deepspeed_file(found, "deepspeed", folder)
    judge(found, TABLE, NAME)
    fill(found, {**TRAINERS_OPTIMIZER, "schedule.type": "linear"}, TRAINERS)
    fill_end_of_schedule(found)
    fill(found, {"data.sequence_length": 2048}, f"{NAME}'s default")


def _read_stage(found: Findings) -> None:
    stage = found.word("stage")
    if stage == "pt":
        found.put("data.loss_on", "everything", "stage", "pre-training: every token is in the loss")
    elif stage in (None, "sft"):
        if stage:
            found.put("data.loss_on", "answers", "stage", "the loss counts answers")
    else:
        found.refuse("stage", 'not built; "sft" and "pt" are')


def _read_finetuning(found: Findings) -> None:
    kind = found.word("finetuning_type")
    if kind == "full":
        found.judge("finetuning_type", "used", "all weights are trained")
    elif kind in (None, "lora"):
        rank = found.whole("lora_rank")
        rank = rank if isinstance(rank, int) else 8
        alpha = found.number("lora_alpha")
        known = "finetuning_type" if kind else ""
        if known:
            found.put("adapter.type", "lora", known, "an adapter beside frozen weights", "used")
        else:
            found.fill("adapter.type", "finetuning_type", f"{NAME}'s default", "lora")
        for key, row in (("lora_rank", "rank"), ("lora_alpha", "alpha"), ("lora_dropout", "dropout")):
            if found.get(key) is not None:
                take(found, key, Take(f"adapter.{row}"))
        fill(found, {"adapter.rank": rank}, f"{NAME}'s default")
        if alpha is None or isinstance(alpha, Auto):
            fill(found, {"adapter.alpha": float(2 * rank)}, f"{NAME}'s default, twice the rank")
        target = found.word("lora_target")
        if target == "all":
            found.judge("lora_target", "used", "every linear layer of the blocks")
        elif target:
            names = [name.strip() for name in target.split(",") if name.strip()]
            found.put("adapter.targets", names, "lora_target", "the modules that get an adapter", "used")
    else:
        found.refuse("finetuning_type", 'not built; "full" and "lora" are')
    for path, member in found.members.items():
        if path not in found.verdicts and path[-1].startswith("lora_"):
            found.judge(member, "meaningless here", "there is no adapter")


def _read_data(found: Findings) -> None:
    named = "its names are those of dataset_info.json; name"
    if found.get("dataset") is not None:
        found.put("data.source", "", "dataset", f"{named} files or hub datasets with --set data.source=NAME")
    found.judge("eval_dataset", "unknown", f"{named} a file or folder with --set evaluate.source=NAME")
    read_held_out(found, "val_size")
