"""torchtune's YAML: components by their Python names, each with its arguments."""

from __future__ import annotations

from pathlib import Path

from workbench.imports.findings import Findings
from workbench.imports.recipes.rows import (
    Off,
    Row,
    Take,
    fill,
    fill_end_of_schedule,
    judge,
    read_optimizer_name,
    take,
)

NAME = "torchtune"
_FOLDER = "a run has its own folder; `workbench run --runs` says where"
_LOADING = "data is read and kept in Workbench's own way"
_OWN = "time, memory and speed of every lane are always recorded"
TORCHS = "torch.optim.AdamW's default"

TABLE: dict[str, Row] = {
    "checkpointer.checkpoint_dir": Take("model.pretrained", "the model's folder"),
    "checkpointer": "a Hugging Face folder is read whole, and every checkpoint is one",
    "tokenizer.max_seq_len": Take("data.sequence_length", "tokens of a row"),
    "tokenizer": "the tokenizer lies in the model's folder",
    "dataset.split": Take("data.split"),
    "dataset.train_on_input": Off("leave it out, and add --set data.loss_on=everything"),
    "dataset.packed": "rows are always packed",
    "dataset.column_map": "the shape of records is recognised",
    "dataset.new_system_prompt": Off("write it into the records, and leave it out"),
    "dataset.conversation_style": "the shape of records is recognised",
    "dataset.conversation_column": "the shape of records is recognised",
    "shuffle": _LOADING,
    "seed": Take("train.seed"),
    "batch_size": Take("train.micro_batch_size", "sequences of a micro-batch"),
    "epochs": Take("train.epochs", "how often the data is read"),
    "max_steps_per_epoch": Off(
        "epochs are whole; leave it out, and add --set train.steps=N --set train.epochs=0"
    ),
    "gradient_accumulation_steps": Take("train.gradient_accumulation", "micro-batches of a step"),
    "clip_grad_norm": Take("train.gradient_clipping", "largest norm of the whole gradient"),
    "optimizer.lr": Take("optimizer.learning_rate", "the learning rate at its highest"),
    "optimizer.weight_decay": Take("optimizer.weight_decay"),
    "optimizer.eps": Take("optimizer.eps"),
    "optimizer.fused": "another implementation of the same update",
    "optimizer_in_bwd": "the update always overlaps; offload.overlap says how",
    "lr_scheduler.num_warmup_steps": Take("schedule.warmup_steps", "steps of the warm-up"),
    "loss": "another implementation of the same arithmetic",
    "compile": "blocks are not compiled",
    "device": "train.device chooses the GPU where there is one",
    "enable_activation_checkpointing": Take(
        "train.activation_checkpointing", "blocks compute their forward again"
    ),
    "custom_sharded_layers": "state is partitioned between GPUs by `workbench run --gpus`",
    "fsdp_cpu_offload": "state is partitioned between GPUs by `workbench run --gpus`",
    "fsdp_reshard_after_forward": "state is partitioned between GPUs by `workbench run --gpus`",
    "tensor_parallel_dim": Off("tensors are not divided between GPUs; leave it out"),
    "log_every_n_steps": Take("log.every", "steps between progress lines"),
    "save_every_n_steps": Take("checkpoint.every", "steps between checkpoints"),
    "keep_last_n_checkpoints": Take("checkpoint.keep", "newest checkpoints that are kept"),
    "run_val_every_n_steps": Take("evaluate.every", "steps between evaluations"),
    "log_peak_memory_stats": _OWN,
    "log_level": _OWN,
    "profiler": _OWN,
    "metric_logger": _OWN,
    "output_dir": _FOLDER,
    "resume_from_checkpoint": "`workbench resume` goes on",
    "save_adapter_weights_only": "a checkpoint of an adapter holds the adapter alone",
    "enable_async_checkpointing": "checkpoints are written at the disk's pace beside training",
    "model.lora_attn_modules": "adapter.targets says it: every linear layer of the blocks",
    "model.apply_lora_to_mlp": "adapter.targets says it: every linear layer of the blocks",
    "model.apply_lora_to_output": "the output has no adapter",
    "model.use_dora": Off("DoRA is not built; leave it out"),
    "model.quantize_base": Off("weights are not quantised; leave it out"),
    "quantizer": Off("quantisation in training is not built; leave it out"),
    "ref_checkpointer": Off("preference training is not built; leave it out"),
    "teacher_model": Off("distillation is not built; leave it out"),
}
_SHAPES = {"get_cosine_schedule_with_warmup": "cosine"}


def read(found: Findings, folder: Path) -> None:
    """Judge every key."""
    model = found.word("model._component_") or ""
    kind = model.rpartition(".")[2]
    if kind.startswith("qlora"):
        found.refuse("model._component_", "weights are not quantised; take the component without the q")
    elif kind.startswith("lora"):
        found.put(
            "adapter.type",
            "lora",
            "model._component_",
            "an adapter beside frozen weights; the folder says which model",
        )
        for key, field in (("lora_rank", "rank"), ("lora_alpha", "alpha"), ("lora_dropout", "dropout")):
            if found.get(f"model.{key}") is not None:
                take(found, f"model.{key}", Take(f"adapter.{field}"))
    elif model:
        found.judge("model._component_", "used", "all weights are trained; the folder says which model")
    for key in ("lora_rank", "lora_alpha", "lora_dropout"):
        if not kind.startswith("lora"):
            found.judge(f"model.{key}", "meaningless here", "there is no such adapter")
    dtype = found.word("dtype")
    if dtype in ("bf16", "fp16", "fp32"):
        found.put(
            "train.precision",
            dtype,
            "dtype",
            f"weights and arithmetic in {dtype}, master weights in fp32",
            "used",
        )
    elif dtype is not None:
        found.refuse("dtype", 'must be "bf16", "fp16" or "fp32"')
    read_optimizer_name(found, "optimizer._component_")
    shape = (found.word("lr_scheduler._component_") or "").rpartition(".")[2]
    if shape in _SHAPES:
        found.put(
            "schedule.type",
            _SHAPES[shape],
            "lr_scheduler._component_",
            "the learning rate's way after the warm-up",
        )
    elif shape:
        found.refuse(
            "lr_scheduler._component_", f"not a schedule that is built; these are: {', '.join(_SHAPES)}"
        )
    _read_dataset(found)
    offloaded = found.switch("enable_activation_offloading")
    if isinstance(offloaded, bool):
        tier = "host" if offloaded else "device"
        found.put(
            "offload.activations", tier, "enable_activation_offloading", f"activations are on the {tier}"
        )
    logger = (found.word("metric_logger._component_") or "").rpartition(".")[2]
    trackers = {"WandBLogger": "wandb", "TensorBoardLogger": "tensorboard"}
    if logger in trackers:
        found.put(
            "log.tracker",
            [trackers[logger]],
            "metric_logger._component_",
            "programs that get the metrics too",
        )
    betas = found.get("optimizer.betas")
    if betas is not None and isinstance(betas.value, list) and len(betas.value) == 2:
        found.put(
            "optimizer.betas", tuple(betas.value), "optimizer.betas", "decay rates of the two means", "used"
        )
    judge(found, TABLE, NAME)
    fill(found, {"schedule.type": "constant"}, "the file names no schedule, so the learning rate stays")
    fill_end_of_schedule(found)
    defaults = {
        "optimizer.learning_rate": 1e-3,
        "optimizer.betas": (0.9, 0.999),
        "optimizer.weight_decay": 0.01,
    }
    fill(found, defaults, TORCHS)
    fill(found, {"train.gradient_clipping": 0.0}, f"{NAME}'s default, which is none")


def _read_dataset(found: Findings) -> None:
    source, files = found.word("dataset.source"), found.word("dataset.data_files")
    component = (found.word("dataset._component_") or "").rpartition(".")[2]
    named = {"alpaca_dataset": "tatsu-lab/alpaca", "alpaca_cleaned_dataset": "yahma/alpaca-cleaned"}
    if files and source in ("json", "csv", "parquet", "text"):
        found.put("data.source", files, "dataset.data_files", "the text; the shape of records is recognised")
        found.judge("dataset.source", "meaningless here", "the file's name says it")
    elif source:
        value = source if source.startswith((".", "/", "~")) else f"hub:{source}"
        found.put("data.source", value, "dataset.source", "the text; the shape of records is recognised")
    elif component in named:
        found.put(
            "data.source",
            f"hub:{named[component]}",
            "dataset._component_",
            "the data that this component reads",
        )
    elif component:
        reason = "no data that is known here; name files or hub datasets with --set data.source=NAME"
        found.put("data.source", "", "dataset._component_", reason)
    if component and (source or files):
        found.judge("dataset._component_", "meaningless here", "the shape of records is recognised")
